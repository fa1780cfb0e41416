"""Connections between nodes over WebSockets. The code that uses a connection gets a socket. The bytes of this
socket are sent in binary WebSocket messages.

The socket of a WebSocket connection is used in the same way as a Unix socket, with the same limits for unread
bytes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import aiohttp

from parley.common.node_challenge import Challenge, new_nonce, read_fields, write_fields
from parley.common.os_errors import os_detail
from parley.common.resolver import DaemonResolver
from parley.errors import NoLink
from parley.wire.nodes import NODE_PATH

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["CLOSE_SECONDS", "HEARTBEAT_SECONDS", "MAX_MESSAGE_BYTES", "WebSocketDialer", "carry"]

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 4.0
"""The time in seconds without a message after which a ping is sent to the other end. The connection ends if no pong
arrives within half of this time.
"""
MESSAGE_BYTES: Final = 256 * 1024
"""The maximum size of a message that this process sends, in bytes."""
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""The maximum size of a message that this process accepts, in bytes."""
CLOSE_SECONDS: Final = 1.0
"""The maximum time in seconds to wait until the other end has also closed the connection."""


class WebSocketDialer:
    """Opens WebSocket connections to other nodes."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def dial(
        self, address: str, *, token: str, versions: Sequence[str], seconds: float
    ) -> tuple[socket.socket, str]:
        """Connect to the node that has announced the URL `address`. Return a socket that carries the bytes of the
        connection, and the version of the protocol between nodes that the other node has chosen.

        `token` is the shared token of the nodes. Both nodes prove that they have the token, without sending it.
        `versions` contains the versions of the protocol that this node offers. `seconds` is the maximum time for
        connecting.

        Raises:
            ConnectionRefusedError: the computer is running, but no process is listening at the URL.
            NoLink: the connection failed for any other reason.
        """
        if self._session is None:
            resolver = cast("aiohttp.abc.AbstractResolver", DaemonResolver())
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, resolver=resolver), cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with asyncio.timeout(seconds):
                challenge = await _challenge(self._session, address, token, versions)
                proof = challenge.proof(token, "caller")
                shown = write_fields(
                    caller=challenge.caller, called=challenge.called, version=challenge.version, proof=proof
                )
                opened = await self._session.ws_connect(
                    address.rstrip("/") + NODE_PATH,
                    protocols=versions,
                    headers={"Authorization": shown},
                    heartbeat=HEARTBEAT_SECONDS,
                    max_msg_size=MAX_MESSAGE_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                )
        except TimeoutError:
            raise NoLink("no response in time") from None
        # The library's errors contain the request with its proof, so they must not be chained or passed on.
        except aiohttp.ClientConnectorError as error:
            if error.os_error.errno == errno.ECONNREFUSED:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused") from None
            raise NoLink(os_detail(error.os_error)) from None
        except aiohttp.WSServerHandshakeError as error:
            raise NoLink(f"the response has HTTP status {error.status}", status=error.status) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoLink(type(error).__name__) from None
        if opened.protocol != challenge.version:
            await opened.close()
            raise NoLink("the server knows none of the versions " + ", ".join(versions))
        ours, theirs = socket.socketpair()
        task = asyncio.get_running_loop().create_task(carry(opened, ours))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return theirs, challenge.version

    async def close(self) -> None:
        """Wait up to `CLOSE_SECONDS` for the WebSockets to end, and then close the WebSockets that are still open.
        The caller must first close the sockets that `dial` returned.
        """
        if self._carrying:
            await asyncio.wait(self._carrying, timeout=CLOSE_SECONDS)
        for task in self._carrying:
            task.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _challenge(
    session: aiohttp.ClientSession, address: str, token: str, versions: Sequence[str]
) -> Challenge:
    """Request a challenge from the node at the URL `address`, check that the node has `token`, and return the
    challenge.

    Raises:
        NoLink: the server at the URL does not have the token, or supports none of the versions.
    """
    caller = new_nonce()
    headers = {"Authorization": write_fields(caller=caller), "Sec-WebSocket-Protocol": ", ".join(versions)}
    url = address.rstrip("/") + NODE_PATH
    async with session.get(url, headers=headers, allow_redirects=False) as answer:
        status, shown = answer.status, answer.headers.get("WWW-Authenticate", "")
    fields = read_fields(shown)
    if status != HTTPStatus.UNAUTHORIZED or fields.get("version") not in versions:
        raise NoLink(f"the response has HTTP status {status}", status=status)
    challenge = Challenge(url=address, version=fields["version"], caller=caller, called=fields.get("called", ""))
    if not challenge.is_proof(token, "called", fields.get("proof", "")):
        raise NoLink("the server does not have the token of the nodes, or has announced another URL")
    return challenge


async def carry(opened: aiohttp.ClientWebSocketResponse | web.WebSocketResponse, channel: socket.socket) -> None:
    """Copy bytes in both directions between a WebSocket and a socket until either of them ends. Then close both."""
    channel.setblocking(False)
    tasks = [asyncio.ensure_future(one) for one in (_receive(opened, channel), _send(opened, channel))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if (error := task.exception()) is not None:
                log.debug("a connection to another node ended: %s", type(error).__name__)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        channel.close()
        await opened.close()


async def _receive(opened: aiohttp.ClientWebSocketResponse | web.WebSocketResponse, channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    async for message in opened:
        if message.type is not aiohttp.WSMsgType.BINARY:
            log.warning("closed the connection of another node: it sent a message of the wrong type")
            return
        await loop.sock_sendall(channel, message.data)
    if isinstance(error := opened.exception(), aiohttp.WebSocketError):
        log.warning("closed the connection of another node: it sent an invalid WebSocket frame: %s", error)


async def _send(opened: aiohttp.ClientWebSocketResponse | web.WebSocketResponse, channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(channel, MESSAGE_BYTES):
        await opened.send_bytes(data)

"""The connections between the nodes that share a database, in addition to the connections between the processes
that share a home directory.

A process connects to another node with a WebSocket at the URL of that node. The WebSocket carries the same messages
as the Unix sockets between processes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from parley.common.limited_log import LimitedLog
from parley.errors import NoLink, ParleyError
from parley.peers.link import SocketLink
from parley.peers.unix import UnixPeers
from parley.transports.unix import MAX_UNREAD_BYTES, Connection
from parley.wire.nodes import NODE_VERSIONS

if TYPE_CHECKING:
    from parley.transports.websocket import WebSocketDialer

__all__ = ["NodePeers"]

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
"""The maximum duration, in seconds, of an attempt to connect to a node."""


class NodePeers:
    """The implementation of `Peers` for a node: WebSockets between nodes, and Unix sockets between the processes
    that share a home directory.
    """

    def __init__(
        self,
        local: UnixPeers,
        *,
        token: str,
        serve: Callable[[Connection, str], Coroutine[Any, Any, None]],
        urls: Callable[[], Awaitable[list[str]]],
        on_refused: Callable[[str], None],
        versions: Sequence[str] = NODE_VERSIONS,
    ) -> None:
        """Create an object without connections. Connections are established when they are needed.

        `local` is the object that connects to the other processes with the same home directory. `token` is the
        shared token of the nodes. `serve` is awaited for each connection from another node; its arguments are the
        connection and the version of the protocol between nodes. `urls` returns the URLs of the other nodes.
        `on_refused` is called with the URL of a node if the computer of the node refuses a connection. `versions`
        contains the supported versions of this protocol, the newest first.
        """
        self._local, self._token, self._urls, self._on_refused = local, token, urls, on_refused
        self._serve, self.versions = serve, versions
        self._url = ""
        self._dialer: WebSocketDialer | None = None
        self._log = LimitedLog(log)
        self._pending: list[tuple[str, bytes]] = []
        self._notifying: asyncio.Task[None] | None = None
        self._notification_links: dict[str, SocketLink] = {}
        self._closed = False

    def advertise(self, url: str) -> None:
        """Announce `url` to other processes as the address of this process. Call this method when this process
        accepts connections from other nodes.
        """
        self._url = url

    def accept(self, channel: socket.socket, version: str) -> None:
        """Serve the node at the other end of the socket `channel`. `version` is the negotiated version of the
        protocol between nodes.
        """
        self._local.accept(channel, serve=lambda connection: self._serve(connection, version))

    @property
    def url(self) -> str:
        """The URL that this process has announced to other nodes; empty if no URL was announced."""
        return self._url

    @property
    def address(self) -> str:
        return self._url or self._local.address

    async def listen(self) -> None:
        await self._local.listen()

    async def connect(
        self, address: str, *, on_notification: Callable[[str, Raw], None], on_lost: Callable[[], None]
    ) -> SocketLink | None:
        if not address.startswith("http"):
            return await self._local.connect(address, on_notification=on_notification, on_lost=on_lost)
        try:
            channel, version = await self._dial(address)
        except ConnectionRefusedError:
            self._on_refused(address)
            return None
        except NoLink as error:
            self._log.warning("cannot connect to the node at %s: %s", address, error.detail)
            return None
        if self._closed:
            channel.close()
            return None
        # This end always reads. If both ends could stop reading, they could wait for each other forever.
        connection = Connection(channel, stop_reading_at=MAX_UNREAD_BYTES)
        return self._local.link(connection, on_notification=on_notification, on_lost=on_lost, version=version)

    async def _dial(self, address: str) -> tuple[socket.socket, str]:
        if self._dialer is None:
            loop = asyncio.get_running_loop()
            library = await loop.run_in_executor(None, import_module, "parley.transports.websocket")
            if self._dialer is None:
                self._dialer = library.WebSocketDialer()
        return await self._dialer.dial(address, token=self._token, versions=self.versions, seconds=CONNECT_SECONDS)

    def can_reach(self, address: str) -> bool:
        return address.startswith("http") or self._local.can_reach(address)

    def notify_all(self, method: str, params: bytes) -> None:
        self._local.notify_all(method, params)
        if self._closed:
            return
        self._pending.append((method, params))
        if self._notifying is None:
            self._notifying = asyncio.get_running_loop().create_task(self._notify_nodes())

    async def _notify_nodes(self) -> None:
        try:
            while self._pending:
                notifications, self._pending = self._pending, []
                urls = await self._urls()
                await asyncio.gather(*(self._notify(url, notifications) for url in urls))
        except ParleyError as error:
            log.debug("cannot notify other nodes: %s", error)
            self._pending.clear()
        finally:
            self._notifying = None

    async def _notify(self, url: str, notifications: list[tuple[str, bytes]]) -> None:
        link = self._notification_links.get(url)
        if link is None:
            link = await self.connect(
                url,
                on_notification=lambda method, params: None,
                on_lost=partial(self._lose, url),
            )
            if link is None:
                return
            self._notification_links[url] = link
        if link.keeps_up:
            for method, params in notifications:
                link.notify(method, params)

    def _lose(self, url: str) -> None:
        self._notification_links.pop(url, None)

    def has_others(self) -> bool:
        return True  # an exact result would need a database query

    async def close(self) -> None:
        self._closed = True
        if self._notifying is not None:
            self._notifying.cancel()
            await asyncio.wait((self._notifying,))
        await self._local.close()
        if self._dialer is not None:
            await self._dialer.close()

"""The endpoint `/node`, to which other nodes connect.

Both nodes prove that they have the shared token (`common/node_challenge.py`). The connecting node first sends a
nonce. The response contains a nonce and the proof of this node. The connecting node then sends its own proof, and
this node opens a WebSocket.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from parley.common.limited_log import LimitedLog
from parley.common.node_challenge import Challenge, read_fields, write_fields
from parley.ports.http import HttpRequest
from parley.server.http.authentication import UNAUTHORIZED, Authenticator
from parley.wire.http import HttpAnswer
from parley.wire.nodes import common_version

if TYPE_CHECKING:
    from socket import socket

__all__ = ["NodeEndpoint"]

log = logging.getLogger(__name__)


CHALLENGE_SECONDS: Final = 30.0
"""The time in seconds for which a nonce of this node is valid."""


class NodeEndpoint:
    """Accepts connections from other nodes.

    A connecting node must prove that it has the shared token of the nodes. No other endpoint accepts this proof.
    """

    def __init__(
        self,
        token: str,
        authenticator: Authenticator,
        accept: Callable[[socket, str], None],
        *,
        url: Callable[[], str],
        versions: Sequence[str],
    ) -> None:
        """Create the endpoint.

        `token` is the shared token of the nodes. `authenticator` counts wrong proofs. `accept` is called with the
        socket and the version of each accepted connection, where the version is the version of the protocol between
        nodes. `url` returns the URL that this node has announced; an empty string if this node has announced no
        URL. `versions` contains the versions of this protocol that this node supports, the newest first.
        """
        self._token, self._authenticator, self._accept = token, authenticator, accept
        self._url, self._versions = url, versions
        self._key = secrets.token_bytes(32)
        self._used: dict[str, float] = {}
        """The nonces of this node that were used in a valid proof, each with its expiry time."""
        self._log = LimitedLog(log)

    async def answer(self, request: HttpRequest) -> object:
        """Return the response to a request: a challenge, an opened WebSocket, or an error."""
        given = request.header("Authorization")
        fields = read_fields(given[0]) if len(given) == 1 else {}
        version = common_version(request.header("Sec-WebSocket-Protocol"), self._versions)
        if fields.keys() == {"caller"} and (url := self._url()):
            if version is None:
                return self._upgrade_required(request)
            challenge = Challenge(url=url, version=version, caller=fields["caller"], called=self._nonce())
            proof = challenge.proof(self._token, "called")
            shown = write_fields(called=challenge.called, version=version, proof=proof)
            return HttpAnswer(status=HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": shown})
        if not self._is_proven(fields):
            self._log.warning("refused the link of a node at %s: its token is wrong", request.remote)
            if delay := self._authenticator.failed():
                await asyncio.sleep(delay)
            return UNAUTHORIZED
        if request.method != "GET":
            return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET"})
        if (
            version is None
            or version != fields.get("version")
            or [one.lower() for one in request.header("Upgrade")] != ["websocket"]
        ):
            return self._upgrade_required(request)
        request.mark_authenticated()
        return request.open_link(version, lambda channel: self._accept(channel, version))

    def _upgrade_required(self, request: HttpRequest) -> HttpAnswer:
        known = ", ".join(self._versions)
        self._log.warning("refused the link of a node at %s: it knows none of %s", request.remote, known)
        headers = {"Upgrade": "websocket", "Sec-WebSocket-Protocol": known}
        return HttpAnswer(status=HTTPStatus.UPGRADE_REQUIRED, headers=headers)

    def _nonce(self) -> str:
        """Return a new nonce: a signed string that contains a random number and an expiry time. This node does not
        have to store the nonce, because the other node sends the nonce back.
        """
        text = f"{secrets.token_hex(16)}.{int(time.monotonic() + CHALLENGE_SECONDS)}"
        return self._signed(text)

    def _signed(self, text: str) -> str:
        signature = hmac.digest(self._key, text.encode(errors="surrogateescape"), "sha256").hex()
        return f"{text}.{signature}"

    def _is_proven(self, fields: Mapping[str, str]) -> bool:
        """Return whether `fields`, the fields of the header `Authorization`, prove that the sender has the shared
        token. The proof must contain an unexpired nonce of this node that was not used before.
        """
        called = fields.get("called", "")
        text, _, _ = called.rpartition(".")
        expected = self._signed(text).encode(errors="surrogateescape")
        if not hmac.compare_digest(expected, called.encode(errors="surrogateescape")):
            return False
        expires, now = int(text.partition(".")[2]), time.monotonic()
        challenge = Challenge(
            url=self._url(), version=fields.get("version", ""), caller=fields.get("caller", ""), called=called
        )
        if expires < now or called in self._used:
            return False
        if not challenge.is_proof(self._token, "caller", fields.get("proof", "")):
            return False
        self._used = {one: until for one, until in self._used.items() if until >= now} | {called: expires}
        return True

"""The endpoint `/node`, to which other nodes connect."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from parley.common.limited_log import LimitedLog
from parley.ports.http import HttpRequest
from parley.server.http.authentication import UNAUTHORIZED, Authenticator, bearer_token
from parley.server.http.tokens import token_digest
from parley.wire.http import HttpAnswer
from parley.wire.nodes import common_version

if TYPE_CHECKING:
    from socket import socket

__all__ = ["NodeEndpoint"]

log = logging.getLogger(__name__)


class NodeEndpoint:
    """Accepts connections of other nodes. Only the shared token of the nodes is valid here, and it is valid nowhere
    else.
    """

    def __init__(
        self,
        token: str,
        authenticator: Authenticator,
        accept: Callable[[socket, str], None],
        *,
        versions: Sequence[str],
    ) -> None:
        """Create the endpoint. `token` is the shared token of the nodes. `authenticator` counts wrong tokens.
        `accept` gets the socket and the version of each accepted connection. `versions` are the versions that this
        node supports, the newest first.
        """
        self._digest, self._authenticator, self._accept = token_digest(token), authenticator, accept
        self._versions = versions
        self._log = LimitedLog(log)

    async def answer(self, request: HttpRequest) -> object:
        """Return the answer to a request: an opened WebSocket, or an error."""
        if not hmac.compare_digest(token_digest(bearer_token(request)), self._digest):
            self._log.warning("refused the link of a node at %s: its token is wrong", request.remote)
            if delay := self._authenticator.failed():
                await asyncio.sleep(delay)
            return UNAUTHORIZED
        if request.method != "GET":
            return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET"})
        version = common_version(request.header("Sec-WebSocket-Protocol"), self._versions)
        if version is None or [one.lower() for one in request.header("Upgrade")] != ["websocket"]:
            known = ", ".join(self._versions)
            self._log.warning("refused the link of a node at %s: it knows none of %s", request.remote, known)
            headers = {"Upgrade": "websocket", "Sec-WebSocket-Protocol": known}
            return HttpAnswer(status=HTTPStatus.UPGRADE_REQUIRED, headers=headers)
        request.authenticated()
        return request.open_link(version, lambda channel: self._accept(channel, version))

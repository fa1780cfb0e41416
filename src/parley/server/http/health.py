"""The endpoints `/livez` and `/readyz`, for load balancers and container managers.

Health checks need no token, and accept every Host header, because load balancers often address a server by its IP
address. The responses contain only the state of the server. No health check reads the store.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Literal

from parley.ports.http import HttpRequest
from parley.wire.http import HttpAnswer
from parley.wire.jsonrpc import encode

__all__ = ["LIVE_PATH", "READY_PATH", "Health", "Readiness"]

LIVE_PATH: Final = "/livez"
READY_PATH: Final = "/readyz"

Readiness = Literal["ok", "starting", "stopping", "store unavailable"]
"""The state that `/readyz` returns: `ok` if the server can serve new clients, otherwise the reason why it cannot.
"""

_HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-store"}


class Health:
    """Handles the requests to `/livez` and `/readyz`."""

    def __init__(self, readiness: Callable[[], Readiness]) -> None:
        self._readiness = readiness

    def answer(self, request: HttpRequest) -> HttpAnswer | None:
        """If the request is a health check, return the response; otherwise, return None."""
        if request.target not in (LIVE_PATH, READY_PATH):
            return None
        if request.method not in ("GET", "HEAD"):
            return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        state = "ok" if request.target == LIVE_PATH else self._readiness()
        status = HTTPStatus.OK if state == "ok" else HTTPStatus.SERVICE_UNAVAILABLE
        return HttpAnswer(status=status, body=encode({"status": state}), headers=_HEADERS)

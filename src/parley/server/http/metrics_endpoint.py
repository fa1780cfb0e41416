"""The endpoint `/metrics`, for Prometheus and compatible collectors.

A request needs a token that may see all conversations, because the metrics concern all conversations. The metrics
contain no content of conversations and no ids.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from parley.ports.http import HttpRequest
from parley.server.context import Principal
from parley.wire.http import HttpAnswer

__all__ = ["METRICS_PATH", "MetricsEndpoint"]

METRICS_PATH: Final = "/metrics"

_HEADERS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8", "Cache-Control": "no-store"}


class MetricsEndpoint:
    """Handles requests for the metrics."""

    def __init__(self, text: Callable[[], str]) -> None:
        """Create the endpoint. `text` is a function that returns the metrics in the text format of Prometheus."""
        self._text = text

    def answer(self, request: HttpRequest, principal: Principal) -> HttpAnswer:
        """Return the response to the request from `principal`."""
        if principal.conversation is not None:
            return HttpAnswer(status=HTTPStatus.FORBIDDEN)
        if request.method not in ("GET", "HEAD"):
            return HttpAnswer(status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
        return HttpAnswer(status=HTTPStatus.OK, body=self._text().encode(), headers=_HEADERS)

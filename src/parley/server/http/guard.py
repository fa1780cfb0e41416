"""Checks the hosts and origins of HTTP requests before anything else is read.

A web page can make a browser send requests to a server on loopback. The checks of Host, Origin, Sec-Fetch-Site and
Content-Type stop it, even if its host name was made to point to this computer (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from parley.ports.http import HttpRequest

__all__ = ["Guard"]

MOST_HEADER_BYTES: Final = 32 * 1024
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")

_OWN_SITE: Final = ("same-origin", "none")


class Guard:
    """The accepted hosts. No Origin is accepted: the server has no pages, and programs that are not browsers
    send none.
    """

    def __init__(self, *, port: int, hosts: Iterable[str] = ()) -> None:
        """Create the guard. `hosts` are accepted besides loopback, with and without the port of the server."""
        names = (*LOOPBACK_NAMES, *(host.lower() for host in hosts))
        self._hosts = frozenset(names) | {f"{name}:{port}" for name in names}

    def refusal(self, request: HttpRequest) -> HTTPStatus | None:
        """Return the HTTP status with which a request is refused, or None."""
        if request.header_bytes > MOST_HEADER_BYTES:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        host = request.header("Host")
        if len(host) != 1:
            return HTTPStatus.BAD_REQUEST
        if host[0].lower() not in self._hosts or request.header("Origin"):
            return HTTPStatus.FORBIDDEN
        if any(value not in _OWN_SITE for value in request.header("Sec-Fetch-Site")):
            return HTTPStatus.FORBIDDEN
        if request.method == "OPTIONS":  # no page of another origin may ask what is allowed
            return HTTPStatus.FORBIDDEN
        if not request.target.startswith("/"):  # it may name another host than the header
            return HTTPStatus.BAD_REQUEST
        return None

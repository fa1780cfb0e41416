"""Checks the hosts and origins of HTTP requests before anything else is read.

A web page can make a browser send requests to a server on loopback. The checks of Host, Origin, Sec-Fetch-Site and
Content-Type prevent that, even if the host name of the page was changed to point to this computer (DNS rebinding).
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
    """The accepted hosts, and the origins of web pages that may send requests.

    Programs other than browsers send no Origin.
    """

    def __init__(self, *, port: int, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        """Create the guard.

        `hosts` are accepted in addition to loopback, with and without the port of the server.
        """
        names = (*LOOPBACK_NAMES, *(host.lower() for host in hosts))
        self._hosts = frozenset(names) | {f"{name}:{port}" for name in names}
        self._origins = frozenset(origins)

    def page_of(self, request: HttpRequest) -> str | None:
        """Return the origin of the web page that sent a request; None if the request does not come from a web page
        or the origin is not accepted.
        """
        given = request.header("Origin")
        return given[0] if len(given) == 1 and given[0] in self._origins else None

    def refusal(self, request: HttpRequest) -> HTTPStatus | None:
        """Return the HTTP status with which a request is refused; None if it is accepted."""
        if request.header_bytes > MOST_HEADER_BYTES:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        host = request.header("Host")
        if len(host) != 1:
            return HTTPStatus.BAD_REQUEST
        page = self.page_of(request)
        if host[0].lower() not in self._hosts or (request.header("Origin") and page is None):
            return HTTPStatus.FORBIDDEN
        if page is None and any(value not in _OWN_SITE for value in request.header("Sec-Fetch-Site")):
            return HTTPStatus.FORBIDDEN
        if (
            request.method == "OPTIONS" and page is None
        ):  # only pages of accepted origins may send a preflight request
            return HTTPStatus.FORBIDDEN
        if not request.target.startswith("/"):  # a full URL may name another host than the header
            return HTTPStatus.BAD_REQUEST
        return None

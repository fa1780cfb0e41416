"""Checks the host and the origin of each HTTP request before its body is read.

A web page can make a browser send requests to a server on loopback. The checks of the headers Host, Origin,
Sec-Fetch-Site and Content-Type reject such requests, even if the host name of the page now resolves to this
computer (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from parley.ports.http import HttpRequest

__all__ = ["Guard"]

MAX_HEADER_BYTES: Final = 32 * 1024
LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")

_OWN_SITE: Final = ("same-origin", "none")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


class Guard:
    """Decides which values of the header Host and which origins of web pages are accepted.

    A request without Origin is accepted, because programs other than browsers send no Origin.
    """

    def __init__(
        self,
        *,
        port: int,
        hosts: Iterable[str],
        origins: Iterable[str],
        scheme: str,
        public_url: str | None,
    ) -> None:
        """Create the guard.

        `port` is the port of the server. `hosts` contains the host names that are accepted in addition to loopback.
        Each host name is accepted with and without the port. `origins` contains the accepted origins of web pages
        from other servers. `scheme` is the scheme of the server's own URL. `public_url` is the URL at which clients
        reach the server through a proxy; None if there is no proxy.
        """
        names = (*LOOPBACK_NAMES, *(host.lower() for host in hosts))
        self._hosts = frozenset(names) | {f"{name}:{port}" for name in names}
        self._origins = frozenset(origins)
        self._scheme = scheme
        public = urlsplit(public_url or "")
        self._public_origin = _origin(public.scheme, public.netloc.rpartition("@")[2]) if public_url else None
        self._public_path = public.path.rstrip("/")

    def path_of(self, request: HttpRequest) -> str:
        """Return the path of the request relative to the URL of the server, without the query.

        The result does not contain the path of the public URL, even if a proxy has not removed this path.
        """
        path = request.target.partition("?")[0]
        if self._public_path and path.startswith(f"{self._public_path}/"):
            return path.removeprefix(self._public_path)
        return path

    def folder_of(self, request: HttpRequest) -> str | None:
        """If the request is for the path of the public URL without the final slash, return the last segment of this
        path. Otherwise, return None.

        Such a request must be redirected to the path with the slash. Without the slash, the browser would resolve
        relative URLs in the page wrongly.
        """
        if not self._public_path or request.target.partition("?")[0] != self._public_path:
            return None
        return self._public_path.rpartition("/")[2]

    def page_of(self, request: HttpRequest) -> str | None:
        """If a web page from another server sent the request and the origin of this page is in `origins`, return
        this origin. Otherwise, return None.
        """
        given = request.header("Origin")
        return given[0] if len(given) == 1 and given[0] in self._origins else None

    def own_origin(self, request: HttpRequest) -> str | None:
        """If the request has the origin of a web page of this server, return this origin. Otherwise, return None.
        The origin belongs to this server if it matches the header Host or the public URL.
        """
        given, host = request.header("Origin"), request.header("Host")
        if len(given) != 1 or len(host) != 1:
            return None
        return given[0] if given[0] in (_origin(self._scheme, host[0]), self._public_origin) else None

    def is_from_own_page(self, request: HttpRequest) -> bool:
        """Return whether a script on a web page of this server sent the request.

        When a page sends a GET to its own origin, the browser sends no Origin. For such a request, Sec-Fetch-Site
        shows whether the page belongs to this server.
        """
        if request.header("Origin"):
            return self.own_origin(request) is not None
        return request.method in ("GET", "HEAD") and request.header("Sec-Fetch-Site") == ["same-origin"]

    def accepts_host(self, request: HttpRequest) -> bool:
        """Return whether the header Host of the request names this server. Also return True if the request does not
        have exactly one header Host, because `refusal` handles this error separately.
        """
        host = request.header("Host")
        return len(host) != 1 or host[0].lower() in self._hosts

    def refusal(self, request: HttpRequest, *, is_page: bool = False) -> HTTPStatus | None:
        """Return the HTTP error status with which the request must be refused; None if the request is accepted.

        `is_page` is True if the request is for a file of the web page. Such a request is also accepted if the user
        has followed a link on another site.
        """
        if request.header_bytes > MAX_HEADER_BYTES:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        host = request.header("Host")
        if len(host) != 1:
            return HTTPStatus.BAD_REQUEST
        is_accepted = self.page_of(request) is not None
        if host[0].lower() not in self._hosts:
            return HTTPStatus.FORBIDDEN
        if request.header("Origin") and not is_accepted and self.own_origin(request) is None:
            return HTTPStatus.FORBIDDEN
        if (
            not is_accepted
            and any(value not in _OWN_SITE for value in request.header("Sec-Fetch-Site"))
            and not (is_page and _is_navigation(request))
        ):
            return HTTPStatus.FORBIDDEN
        # Only pages of accepted origins may send a preflight request.
        if request.method == "OPTIONS" and not is_accepted:
            return HTTPStatus.FORBIDDEN
        if not request.target.startswith("/"):  # a full URL may name a host other than the header Host
            return HTTPStatus.BAD_REQUEST
        return None


def _is_navigation(request: HttpRequest) -> bool:
    """Return whether the request opens a page in a browser tab, for example after a click on a link."""
    return (
        request.method == "GET"
        and request.header("Sec-Fetch-Mode") == ["navigate"]
        and request.header("Sec-Fetch-Dest") == ["document"]
    )


def _origin(scheme: str, host: str) -> str:
    """Return the origin in the form that browsers send: in lower case and without the default port. `host` may
    contain a port.
    """
    return f"{scheme}://{host.removesuffix(_DEFAULT_PORTS.get(scheme, ''))}".lower() if host else ""

"""HTTP of the resident server: its address, its certificate, its tokens and its limits."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from parley.app.available_memory import why_too_large
from parley.app.http_choice import TOKEN_VARIABLE, HttpChoice
from parley.common.os_errors import os_detail
from parley.config.types import ServeSettings
from parley.errors import BadSetting
from parley.server.context import Principal, Role
from parley.server.http.authentication import Authenticator, RateLimit, new_token
from parley.server.http.endpoint import PATH, HttpEndpoint, HttpLimits
from parley.server.http.guard import LOOPBACK_NAMES, Guard
from parley.server.http.sessions import HttpSessions
from parley.server.serve import ClientConnection, ServerCore
from parley.transports.http.listener import HttpListener, HttpListenerOptions

__all__ = ["HttpService"]

log = logging.getLogger(__name__)

SHORTEST_TOKEN: Final = 32
CLOSE_SECONDS: Final = 0.5
"""How long the last answers may take when the server shuts down."""


class HttpService:
    """Serves HTTP clients of a server core."""

    def __init__(
        self,
        core: ServerCore,
        settings: ServeSettings,
        choice: HttpChoice,
        *,
        key: bytes,
        on_connected: Callable[[ClientConnection], None],
    ) -> None:
        """Listen. `key` signs the ids of events.

        Raises:
            BadSetting: the server cannot listen on the configured address, or that would not be safe.
        """
        settings = choice.applied_to(settings)
        self.token = new_token() if choice.creates_token else None
        self._authenticator = Authenticator()
        for token in (self.token, _checked(choice.token)):
            if token is not None:
                self._authenticator.add(token, Principal(name="serve", role=Role.ADMIN))
        tls = _tls_context(settings)
        self._check_exposure(settings, has_token=self.token is not None or choice.token is not None)
        self.sessions = HttpSessions(
            core,
            key=key,
            most=settings.max_sessions,
            idle_seconds=settings.session_minutes * 60,
            on_connected=on_connected,
        )
        options = HttpListenerOptions(
            max_connections=settings.max_connections,
            max_unauthenticated_body_bytes=settings.max_unauthenticated_body_bytes,
            tls=tls,
        )
        self._listener = HttpListener(lambda request: self._endpoint.answer(request), options)
        try:
            port = self._listener.listen(settings.host, settings.port)
        except OSError as error:
            detail = os_detail(error)
            raise BadSetting(f"cannot listen on {settings.host} port {settings.port}: {detail}") from None
        self._endpoint = HttpEndpoint(
            self.sessions,
            guard=Guard(port=port, hosts=_hosts(settings)),
            authenticator=self._authenticator,
            rate=RateLimit(settings.requests_per_second),
            limits=HttpLimits(max_body_bytes=settings.max_body_bytes),
            why_too_large=why_too_large,
        )
        self.url = _url(settings, port)

    def stop_accepting(self) -> None:
        """Accept no more connections."""
        self._listener.stop_accepting()

    async def close(self) -> None:
        """End all sessions and connections, after the core has shut down."""
        await self.sessions.close()
        await self._listener.close(CLOSE_SECONDS)

    def _check_exposure(self, settings: ServeSettings, *, has_token: bool) -> None:
        """Refuse to listen beyond loopback without TLS or without a token."""
        if _bracketed(settings.host) in LOOPBACK_NAMES:
            return
        if settings.tls_cert is None and settings.public_url is None:
            raise BadSetting(
                f"serve.host {settings.host!r} is not loopback: set serve.tls_cert and serve.tls_key, or set "
                "serve.public_url to the address of a proxy that adds TLS"
            )
        if not has_token:
            raise BadSetting(
                f"serve.host {settings.host!r} is not loopback, and there is no token: use --json, or set "
                f"{TOKEN_VARIABLE}"
            )


def _checked(token: str | None) -> str | None:
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise BadSetting(f"{TOKEN_VARIABLE} must have at least {SHORTEST_TOKEN} characters")
    return token


def _tls_context(settings: ServeSettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise BadSetting("serve.tls_cert and serve.tls_key belong together")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(os.path.expanduser(settings.tls_cert), os.path.expanduser(settings.tls_key))
    except (OSError, ValueError) as error:
        detail = os_detail(error) if isinstance(error, OSError) and error.errno else "they do not fit together"
        raise BadSetting(f"serve.tls_cert and serve.tls_key cannot be used: {detail}") from None
    return context


def _hosts(settings: ServeSettings) -> list[str]:
    """Return the values of the Host header that are accepted besides loopback."""
    hosts = [] if settings.public_url is None else [urlsplit(settings.public_url).netloc.rpartition("@")[2]]
    if settings.host not in ("", "0.0.0.0", "::"):
        hosts.append(_bracketed(settings.host))
    return hosts


def _url(settings: ServeSettings, port: int) -> str:
    """Return the address for clients."""
    if settings.public_url is not None:
        return settings.public_url.rstrip("/") + PATH
    scheme = "http" if settings.tls_cert is None else "https"
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0") else "[::1]" if settings.host == "::" else settings.host
    return f"{scheme}://{_bracketed(host)}:{port}{PATH}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host

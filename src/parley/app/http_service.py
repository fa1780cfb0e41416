"""The HTTP service of the resident server: its address, certificate, tokens and limits."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from parley.app.available_memory import why_too_large
from parley.app.http_choice import TOKEN_VARIABLE, HttpChoice
from parley.app.http_urls import bracketed, own_url, scheme_of, server_url
from parley.app.node_membership import NodeMembership
from parley.app.stores import is_shared
from parley.common.os_errors import os_detail
from parley.config.tls_files import forget_tls_files, hide_tls_files
from parley.config.types import ServeSettings
from parley.errors import BadSetting, StoreError
from parley.ports.availability import AVAILABLE
from parley.ports.store import Store
from parley.server.context import PAGE_USER, Principal, Role
from parley.server.http.authentication import Authenticator, RateLimit, new_token
from parley.server.http.endpoint import PATH, HttpEndpoint, HttpLimits
from parley.server.http.guard import LOOPBACK_NAMES, Guard
from parley.server.http.health import Health, Readiness
from parley.server.http.metrics_endpoint import MetricsEndpoint
from parley.server.http.node_endpoint import NodeEndpoint
from parley.server.http.page_endpoint import PageEndpoint, PushSubscriptions
from parley.server.http.sessions import HttpSessions
from parley.server.http.sign_ins import SignIns
from parley.server.http.stateless import StatelessRequests
from parley.server.http.tokens import StoredTokens, token_digest
from parley.server.mcp_settings import mcp_settings
from parley.server.serve import ClientConnection, ServerCore
from parley.transports.http.listener import HttpListener, HttpListenerOptions
from parley.web.assets import PageAssets, page_assets

__all__ = ["HttpService"]

log = logging.getLogger(__name__)

MIN_TOKEN_CHARACTERS: Final = 32
CLOSE_SECONDS: Final = 0.5
"""The maximum time, in seconds, that a shutdown waits until the last responses have been sent."""


class HttpService:
    """Serves HTTP clients of a server core."""

    def __init__(
        self,
        core: ServerCore,
        settings: ServeSettings,
        choice: HttpChoice,
        *,
        on_connected: Callable[[ClientConnection], None],
        on_request_ended: Callable[[], None] = lambda: None,
        tokens: StoredTokens | None = None,
        store: Store | None = None,
        nodes: NodeMembership | None = None,
        metrics: Callable[[], str] | None = None,
        page_files: Mapping[str, bytes] | None = None,
        open_push: Callable[[SignIns, Callable[[], ServeSettings]], PushSubscriptions] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Start the service and begin to listen.

        `metrics` returns the metrics of the server as text; None if there are no metrics. `nodes` is the cluster
        membership of this process; None if the server accepts no connections from other nodes. `page_files`
        replaces the installed files of the web page, unless it is None. `now` returns the time, in seconds since
        the epoch, for the sign-ins to the page. `open_push` creates the sender of push messages; None if none are
        sent. Its arguments are the sign-ins and a function that returns the current settings.

        `on_connected` is called with the client of a new session. `on_request_ended` is called when a request
        without a session has ended. `tokens` are the tokens of the home directory, which the caller loads; None if
        there are no such tokens. `store` contains the sessions and the sign-ins to the page. If `store` is None,
        sessions are kept only in memory and there is no page.

        Raises:
            BadSetting: the server cannot listen on the configured address, or listening there would be unsafe.
            OSError: the key of the home directory cannot be read or created, or the files of the page cannot be
                read.
        """
        settings = choice.applied_to(settings)
        self.token = new_token() if choice.creates_token else None
        self._authenticator = Authenticator(tokens)
        for token in (self.token, _checked(choice.token)):
            if token is not None:
                token_id = token_digest(token).hex()[:16]
                self._authenticator.add(token, Principal(name="serve", role=Role.ADMIN, token_id=token_id))
        tls = _tls_context(settings)
        self._core, self._choice, self._tokens, self._nodes = core, choice, tokens, nodes
        self._check_exposure(settings)
        self.sign_ins = None if store is None else SignIns(self._authenticator, store, now=now)
        """The sign-ins to the web page; None if there is no page."""
        self.sessions = HttpSessions(
            core,
            key=core.context.signing_key,
            max_sessions=settings.max_sessions,
            idle_seconds=settings.session_minutes * 60,
            on_connected=on_connected,
            is_valid=self._is_valid,
            store=store,
            is_shared=store is not None and is_shared(store),
        )
        self._settings = settings
        self._stateless = StatelessRequests(core, on_ended=on_request_ended, is_valid=self._is_valid)
        self._listener = HttpListener(lambda request: self._endpoint.answer(request), _options(settings, tls))
        try:
            self.port = port = self._listener.listen(settings.host, settings.port)
        except OSError as error:
            detail = os_detail(error)
            raise BadSetting(f"cannot listen on {settings.host} port {settings.port}: {detail}") from None
        self.node_url = None if nodes is None else nodes.settings().url or own_url(settings, port)
        """The URL at which other nodes reach this server; None if this server accepts no connections from other
        nodes.
        """
        page = None
        if self.sign_ins is not None:
            files = page_assets() if page_files is None else PageAssets(page_files)
            push = None if open_push is None else open_push(self.sign_ins, lambda: self._settings)
            page = PageEndpoint(files, self.sign_ins, self._authenticator, push)
            self.sign_ins.on_ended(self._end_all_of)
        self._endpoint = HttpEndpoint(
            self.sessions,
            self._stateless,
            is_modern=lambda: mcp_settings(core.context.loader).modern,
            guard=self._guard(settings),
            health=Health(self._readiness),
            authenticator=self._authenticator,
            rate=RateLimit(settings.requests_per_second),
            limits=HttpLimits(max_body_bytes=settings.max_body_bytes),
            why_too_large=why_too_large,
            nodes=None if nodes is None else _node_endpoint(nodes, self._authenticator),
            page=page,
            metrics=None if metrics is None else MetricsEndpoint(metrics),
        )
        self.url = server_url(settings, port)
        self.own_url = own_url(settings, port) + PATH
        """The URL at which clients on this computer reach the server directly, not through a proxy."""
        self.host = settings.host
        """The address or name on which the server listens."""
        self.page_url = f"{self.url.removesuffix(PATH)}/" if page is not None and page.files.build else None
        """The URL of the web page; None if there is no page."""
        self._keeping: list[asyncio.Task[None]] = []
        if tokens is not None:
            tokens.on_revoked(self._end_all_of)

    def keep_current(self) -> None:
        """Begin to reload the tokens and the sign-ins to the web page at regular intervals."""
        loop = asyncio.get_running_loop()
        if self._tokens is not None:
            self._keeping.append(loop.create_task(self._tokens.keep_current()))
        if self.sign_ins is not None:
            self._keeping.append(loop.create_task(self.sign_ins.keep_current()))

    @property
    def client_count(self) -> int:
        """The number of clients: sessions, and requests in progress that have no session."""
        return len(self.sessions) + len(self._stateless)

    def _readiness(self) -> Readiness:
        if self._endpoint.refuses_new_clients:
            return "stopping"
        if self._nodes is not None and not self._nodes.has_joined:
            return "starting"
        return "ok" if self._core.context.availability == AVAILABLE else "store unavailable"

    async def sign_in_url(self) -> str | None:
        """Return the URL of the web page with a new one-time sign-in code; None if there is no page.

        Raises:
            StoreError: the code cannot be stored.
        """
        if self.sign_ins is None or self.page_url is None:
            return None
        return f"{self.page_url}#code={await self.sign_ins.new_code()}"

    async def reload_sign_ins(self) -> None:
        """Load the sign-ins to the web page from the store, and end the sign-ins that were removed from the
        store.
        """
        if self.sign_ins is None:
            return
        try:
            await self.sign_ins.reload()
        except StoreError as error:
            log.warning("the sign-ins of the page cannot be read: %s", error)

    def _is_valid(self, principal: Principal) -> bool:
        """Return whether the token of a principal is valid.

        If the principal has signed in to the web page, the sign-in must be valid too.
        """
        if principal.sign_in and (self.sign_ins is None or not self.sign_ins.is_current(principal)):
            return False
        return principal.token_holder == PAGE_USER or self._authenticator.is_valid(principal.token_holder)

    def _end_all_of(self, principal: Principal) -> None:
        self.sessions.end_all_of(principal)
        self._stateless.end_all_of(principal)

    def apply(self, settings: ServeSettings) -> None:
        """Apply new settings. New limits, hosts and origins take effect with the next request. A new certificate
        takes effect for new connections.

        The host, the port and the use of TLS must be the same as before, because a change of them requires a
        restart of the server.

        Raises:
            BadSetting: the settings cannot be used; nothing has changed.
        """
        settings = self._choice.applied_to(settings)
        tls = _tls_context(settings)
        if _address(settings) != _address(self._settings):
            raise BadSetting("a change of serve.host, of serve.port or of the use of TLS requires a restart")
        self._check_exposure(settings)
        self._settings = settings
        self.sessions.apply(max_sessions=settings.max_sessions, idle_seconds=settings.session_minutes * 60)
        self._listener.apply(_options(settings, tls))
        self._endpoint.apply(
            guard=self._guard(settings),
            rate=RateLimit(settings.requests_per_second),
            limits=HttpLimits(max_body_bytes=settings.max_body_bytes),
        )

    def _guard(self, settings: ServeSettings) -> Guard:
        return Guard(
            port=self.port,
            hosts=_hosts(settings, self.node_url),
            origins=settings.origins,
            scheme=scheme_of(settings),
            public_url=settings.public_url,
        )

    def stop_accepting_clients(self) -> None:
        """Stop accepting clients. A node still accepts connections from other nodes, because the other nodes may
        follow the turns that this node is running.
        """
        self._endpoint.refuse_new_clients()

    def stop_accepting(self) -> None:
        """Stop accepting connections. Open connections continue."""
        self._listener.stop_accepting()
        for task in self._keeping:
            task.cancel()  # the task must end before the store is closed

    async def close(self) -> None:
        """End all sessions and connections. The server core must have shut down first."""
        await self.sessions.close()
        await self._stateless.close()
        await self._listener.close(CLOSE_SECONDS)
        forget_tls_files()

    def _check_exposure(self, settings: ServeSettings) -> None:
        """Check that a listening address other than loopback is protected by TLS and by a token. A proxy may
        provide TLS instead of this server.

        A node may start without a token. The database that contains the tokens may be reachable only from a node,
        so the first token may have to be created on a running node.

        Raises:
            BadSetting: TLS or a token is missing.
        """
        if bracketed(settings.host) in LOOPBACK_NAMES:
            return
        if settings.tls_cert is None and settings.public_url is None:
            raise BadSetting(
                f"serve.host {settings.host!r} is not loopback: set serve.tls_cert and serve.tls_key, or set "
                "serve.public_url to the URL of a proxy that adds TLS"
            )
        if not (self.token or self._choice.token or self._tokens or self._nodes is not None):
            raise BadSetting(
                f"serve.host {settings.host!r} is not loopback, and there is no token: use `parley token "
                f"create`, --json, or {TOKEN_VARIABLE}"
            )


def _node_endpoint(nodes: NodeMembership, authenticator: Authenticator) -> NodeEndpoint:
    peers = nodes.peers
    return NodeEndpoint(nodes.token, authenticator, peers.accept, url=lambda: peers.url, versions=peers.versions)


def _checked(token: str | None) -> str | None:
    if token is not None and len(token) < MIN_TOKEN_CHARACTERS:
        raise BadSetting(f"{TOKEN_VARIABLE} must have at least {MIN_TOKEN_CHARACTERS} characters")
    return token


def _tls_context(settings: ServeSettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise BadSetting("serve.tls_cert and serve.tls_key must be set together")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, settings)
    return context


def _tls_files(settings: ServeSettings) -> tuple[str, ...]:
    """Return the paths of the certificate and the private key. The result is empty if the server does not
    use TLS.
    """
    return tuple(os.path.expanduser(path) for path in (settings.tls_cert, settings.tls_key) if path is not None)


def _load_certificate(context: ssl.SSLContext, settings: ServeSettings) -> None:
    files = _tls_files(settings)
    try:
        context.load_cert_chain(*files)
    except (OSError, ValueError) as error:
        detail = os_detail(error) if isinstance(error, OSError) and error.errno else "they do not fit together"
        raise BadSetting(f"serve.tls_cert and serve.tls_key cannot be used: {detail}") from None
    hide_tls_files(files)


def _address(settings: ServeSettings) -> tuple[str, int, bool]:
    return settings.host, settings.port, settings.tls_cert is not None


def _options(settings: ServeSettings, tls: ssl.SSLContext | None) -> HttpListenerOptions:
    return HttpListenerOptions(
        max_connections=settings.max_connections,
        max_unauthenticated_body_bytes=settings.max_unauthenticated_body_bytes,
        tls=tls,
    )


def _hosts(settings: ServeSettings, *urls: str | None) -> list[str]:
    """Return the values of the Host header that are accepted in addition to loopback addresses.

    The values are the host and port of the public URL and of each URL in `urls`. The host on which the server
    listens is included, unless the server listens on all addresses. Each None in `urls` is ignored.
    """
    hosts = [urlsplit(url).netloc.rpartition("@")[2] for url in (settings.public_url, *urls) if url is not None]
    if settings.host not in ("", "0.0.0.0", "::"):
        hosts.append(bracketed(settings.host))
    return hosts

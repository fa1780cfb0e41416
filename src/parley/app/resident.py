"""The resident server, which serves any number of clients of a home directory and continues to run when they leave.

The first line of a connection determines its purpose. A line with the member `parley` is the hello of a relay, or a
request about the server itself. Any other line is the first message of an ordinary MCP client.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import ValidationError

from parley.app.available_memory import why_too_large
from parley.app.background import shorten_log
from parley.app.discovery import ResidentLock, describe
from parley.app.hello import Hello, decode_hello, encode_answer, is_path, read_first_line, send_answer
from parley.app.resident_sockets import ResidentSockets
from parley.app.restart_settings import restart_settings
from parley.app.serving import Server, report_unknown_keys
from parley.common.limited_log import LimitedLog
from parley.common.resident_socket import HELLO_VERSION, RELAY
from parley.config.checks import MAX_PATH_BYTES
from parley.config.installation import add_installation
from parley.config.load import Loader
from parley.config.nodes import why_not_node
from parley.config.types import NodeSettings, ServeSettings
from parley.errors import ConfigError, StoreError
from parley.server.serve import ClientConnection
from parley.server.session import Session
from parley.transports.unix import Connection
from parley.version import __version__

if TYPE_CHECKING:
    from parley.app.http_choice import HttpChoice
    from parley.app.http_service import HttpService
    from parley.server.http.tokens import StoredTokens

__all__ = ["Resident"]

log = logging.getLogger(__name__)

FIRST_LINE_SECONDS: Final = 30.0
"""The timeout, in seconds, for the first line of a connection."""
MAX_SILENT: Final = 128
"""The maximum number of connections whose first line has not arrived yet. If another connection arrives, the server
closes the connection that has waited longest.
"""
CHECK_SECONDS: Final = 60.0
"""The maximum interval, in seconds, between two checks by a server that exits when idle. The server checks whether
it is idle and whether its log is too long.
"""
CLOSE_SECONDS: Final = 1.0
"""The maximum time, in seconds, that a shutdown waits for the tasks that serve connections."""


class Resident:
    """The resident server of one home directory."""

    def __init__(
        self,
        server: Server,
        home: str,
        *,
        http: HttpChoice | None = None,
        now: Callable[[], float] = time.monotonic,
        first_line_seconds: float = FIRST_LINE_SECONDS,
    ) -> None:
        """Create the server. `http` contains the HTTP options of the command line; None if the server must not
        serve HTTP. `now` returns a monotonic time in seconds. `first_line_seconds` is the timeout, in seconds, for
        the first line of a connection.
        """
        self._server, self._home, self._now = server, home, now
        self._choice = http
        self._first_line_seconds = first_line_seconds
        self._began = time.time()
        self._began_with = restart_settings(server.loader, http)
        self._sockets: ResidentSockets | None = None
        self._most_connections = ServeSettings().max_connections
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting: dict[asyncio.Task[None], None] = {}
        """The tasks in `_tasks` that are waiting for the first line of their connection, the oldest first."""
        self._clients: dict[int, ClientConnection] = {}
        self._http: HttpService | None = None
        self._tokens: StoredTokens | None = None
        self._count = 0
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        self._is_limited = asyncio.Event()
        """An event that the first call of `stop` sets. After this call, the server waits at most `drain_seconds`
        for running turns.
        """
        self._idle_since = now()
        self._lock_log = LimitedLog(log)

    # --- running -----------------------------------------------------------------------

    def listen(self, path: str | None = None, *, lock: ResidentLock | None = None) -> None:
        """Accept connections on the socket of the home directory and, if `path` is given, on a second socket at
        `path`.

        While the server is listening, it holds `lock`. If the lock file is removed, the server acquires the lock
        again.

        Raises:
            OSError: the server cannot listen on one of the sockets.
        """
        self._most_connections = self._settings().max_connections
        self._sockets = ResidentSockets(
            self._home,
            path,
            on_channel=self._accepted,
            on_bound_again=self._describe_again,
            on_check=lambda: None if lock is None else self._keep(lock),
        )

    def _keep(self, lock: ResidentLock) -> None:
        """If the lock file was removed or replaced, acquire the lock again, so that no second server can be
        started.
        """
        try:
            if lock.keep():
                log.warning("the lock file of the resident server was removed or replaced; it is locked again")
        except OSError as error:
            self._lock_log.warning("the lock file of the resident server cannot be locked again: %s", error)

    def _describe_again(self) -> None:
        """Rewrite the description file of the server. The file may have been removed together with the socket."""
        with suppress(OSError):
            describe(self._home, self.description)

    async def listen_http(self) -> None:
        """Load the tokens of the home directory, and then accept HTTP connections. Do nothing if the server must
        not serve HTTP.

        A node accepts connections before it waits for its database and loads the tokens.

        Raises:
            BadSetting: the server cannot listen on the configured address, or listening there would be unsafe.
            BadHome: the server is a node and cannot use its database, or another running node has its id.
            StoreFailed: the server is a node and cannot reach its database.
            OSError: the key of the home directory cannot be read or created.
        """
        if (choice := self._choice) is None:
            return
        # imported here: these modules import the HTTP library, which few servers need
        from parley.app.http_service import HttpService
        from parley.server.http.tokens import StoredTokens

        tokens, nodes = StoredTokens(self._server.store), self._server.nodes
        if nodes is None:
            await tokens.reload()
        self._http = HttpService(
            self._server.core,
            self._settings(),
            choice,
            on_connected=self._watch,
            on_request_ended=self._note_use,
            tokens=tokens,
            store=self._server.store,
            nodes=nodes,
            open_push=self._server.open_push,
            metrics=self._server.metrics(lambda: self.client_count).text,
        )
        if nodes is not None and self._http.node_url is not None:
            # health checks get responses while this node waits
            await nodes.wait_for_database()
            await tokens.reload()
            conversations = self._server.conversations
            await nodes.join(self._http.node_url, running=lambda: len(conversations.running))
        self._http.keep_current()
        self._tokens = tokens

    async def reload(self) -> None:
        """Reload the tokens, the sign-ins to the web page, and those HTTP settings that do not need a restart.
        Other settings are read whenever they are used.
        """
        if self._tokens is not None:
            await self._tokens.reload()
        if self._http is not None:
            await self._http.reload_sign_ins()
        try:
            settings = self._server.loader.serve_settings()
            if self._http is not None:
                self._http.apply(settings)
            self._most_connections = settings.max_connections
        except ConfigError as error:
            log.warning("the settings of the server were not reloaded: %s", error)
        report_unknown_keys(self._server.loader)

    @property
    def token(self) -> str | None:
        """The bearer token that was created for this process; None if no token was created."""
        return None if self._http is None else self._http.token

    async def sign_in_url(self) -> str | None:
        """Return the URL of the web page with a new one-time sign-in code; None if the page cannot be used."""
        try:
            return None if self._http is None else await self._http.sign_in_url()
        except StoreError as error:
            log.warning("the code for the web page cannot be stored: %s", error)
            return None

    @property
    def description(self) -> dict[str, Any]:
        """The URL, socket path, process id and version of the server, for clients and other processes."""
        return {
            "url": None if self._http is None else self._http.url,
            "socket": None if self._sockets is None else self._sockets.path,
            "pid": os.getpid(),
            "version": __version__,
        }

    def why_not_node(self) -> str | None:
        """Return the reason why the server is not a node; None if it is a node."""
        nodes = self._server.nodes
        if nodes is not None and nodes.has_joined:
            return None
        return why_not_node(self._server.loader) or "it does not serve HTTP"

    def _node_fault(self) -> str | None:
        """Return the reason why the server is not a node, although node settings or a node token are configured.
        Return None if the server is a node, or if neither is configured.
        """
        loader = self._server.loader
        is_meant = loader.node_settings() != NodeSettings() or loader.node_token() is not None
        return self.why_not_node() if is_meant else None

    def _changed_settings(self) -> list[str]:
        """Return the names of the settings that have changed since the server started and need a restart to take
        effect.
        """
        now = restart_settings(self._server.loader, self._choice)
        return [
            name
            for name, value in now.items()
            if self._began_with.get(name, value) != value
            and (self._http is not None or name in ("serve.http", "store.url"))  # other settings have no effect
        ]

    def stop(self) -> None:
        """Request a shutdown as soon as the running turns have ended, but no later than `drain_seconds` after
        this call. A second call requests an immediate shutdown.
        """
        if self._is_limited.is_set():
            self._stopping_now.set()
        self._is_limited.set()
        self._stopping.set()

    def drain(self) -> None:
        """Request a shutdown as soon as the running turns have ended. There is no time limit unless `stop` is
        called.
        """
        self._stopping.set()

    async def run(self, *, exits_when_idle: bool) -> None:
        """Serve until `stop` or `drain` is called. If `exits_when_idle` is True, also return when the server has
        been idle for the configured time.
        """
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                timeout = min(CHECK_SECONDS, self._seconds_to_idle_exit()) if exits_when_idle else None
                await asyncio.wait({stopped}, timeout=timeout)
                if exits_when_idle:
                    with suppress(OSError):  # a log that stays too long does no harm
                        await asyncio.to_thread(shorten_log, self._home)
                if exits_when_idle and not self._stopping.is_set() and self._seconds_to_idle_exit() == 0:
                    log.info("exiting: no clients and no turns for a while")
                    return
        finally:
            stopped.cancel()

    def stop_listening(self) -> None:
        """Stop accepting connections on the Unix sockets. Open connections continue, and HTTP is not affected."""
        if self._sockets is not None:
            self._sockets.close()

    async def shut_down(self) -> None:
        """Refuse new clients, wait for running turns, and then close all sessions and connections."""
        if self._is_limited.is_set():
            self.stop_listening()
        if self._server.nodes is not None:
            self._server.nodes.drain()
        if self._http is not None:
            self._http.stop_accepting_clients()
        for task in tuple(self._greeting):
            task.cancel()
        await self._drain()
        self.stop_listening()
        if self._http is not None:
            self._http.stop_accepting()
        await self._server.core.shutdown()
        if self._http is not None:
            await self._http.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)

    async def _drain(self) -> None:
        """Wait until no turn is running, or until `drain_seconds` have passed since the first call of `stop`. Do
        not wait for turns that are waiting for an approval.
        """
        seconds = self._settings().drain_seconds
        drained = asyncio.ensure_future(self._server.conversations.drain())
        limited = asyncio.ensure_future(self._is_limited.wait())
        now = asyncio.ensure_future(self._stopping_now.wait())
        try:
            await asyncio.wait({drained, limited}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({drained, now}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not drained.done() and not now.done():
                turns = sum(one.approvals.open is None for one in self._server.conversations.running)
                log.warning("interrupting %d turns that did not end within %d seconds", turns, seconds)
        finally:
            for one in (drained, limited, now):
                one.cancel()
            failure, *_ = await asyncio.gather(drained, limited, now, return_exceptions=True)
            if isinstance(failure, Exception):
                log.error("waiting for the running turns failed", exc_info=failure)

    def _seconds_to_idle_exit(self) -> float:
        """Return the time, in seconds, after which the server exits if it stays idle. Return infinity if the
        settings disable the exit of idle servers.
        """
        if self.client_count or self._greeting or self._server.conversations.running:
            self._note_use()
        minutes = self._settings().idle_exit_minutes
        return max(0.0, self._idle_since + minutes * 60 - self._now()) if minutes else math.inf

    def _note_use(self) -> None:
        self._idle_since = self._now()

    @property
    def client_count(self) -> int:
        """The number of clients that are connected over sockets and HTTP."""
        return len(self._clients) + (0 if self._http is None else self._http.client_count)

    def _settings(self) -> ServeSettings:
        try:
            return self._server.loader.serve_settings()
        except ConfigError as error:
            log.warning("cannot read the settings of the server, using their defaults: %s", error)
            return ServeSettings()

    # --- connections -------------------------------------------------------------------

    def _accepted(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        if len(self._greeting) >= MAX_SILENT:
            next(iter(self._greeting)).cancel()
        elif len(self._tasks) >= self._most_connections:
            log.warning("refused a connection: %d are open", len(self._tasks))
            with suppress(OSError):
                channel.send(encode_answer({"ok": False, "reason": "it has too many connections"}))
            channel.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(channel))
        self._tasks.add(task)
        self._greeting[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._greeting.pop(task, None)

    async def _serve(self, channel: socket.socket) -> None:
        try:
            async with asyncio.timeout(self._first_line_seconds):
                line, rest = await read_first_line(channel)
            if (task := asyncio.current_task()) is not None:
                self._greeting.pop(task, None)
            try:
                hello = decode_hello(line)
            except ValidationError as error:
                await send_answer(channel, {"ok": False, "reason": f"the first line has invalid members: {error}"})
                return
            if hello is None and self._stopping.is_set():
                log.info("refused a client: the server is stopping")
            elif hello is None:
                await self._serve_client(channel, line + rest, None)
            elif hello.v != HELLO_VERSION:
                reason = f"it supports version {HELLO_VERSION} of the relay protocol, not version {hello.v}"
                await send_answer(channel, {"ok": False, "reason": reason})
            elif hello.parley == RELAY:
                await self._serve_relay(channel, hello, rest)
            else:
                await send_answer(channel, await self._answer(hello))
        except OSError as error:
            log.debug("a connection ended: %s", error)
        except Exception:
            log.exception("failed to serve a connection")
        finally:
            channel.close()

    async def _serve_relay(self, channel: socket.socket, hello: Hello, rest: bytes) -> None:
        for member, paths in (("cwd", (hello.cwd,)), ("installed", hello.installed)):
            if not all(map(is_path, paths)):
                reason = f"`{member}` is not an absolute path of at most {MAX_PATH_BYTES} bytes"
                await send_answer(channel, {"ok": False, "reason": reason})
                return
        if not add_installation(hello.installed):
            await send_answer(
                channel, {"ok": False, "reason": "`installed` has too many paths, or there are too many relays"}
            )
            return
        try:
            loader = Loader(
                environ=hello.env,
                server_dir=hello.cwd,
                overrides=hello.overrides,
                home=self._server.loader.home,
            )
        except ConfigError as error:
            await send_answer(channel, {"ok": False, "reason": str(error)})
            return
        if self._stopping.is_set():
            await send_answer(channel, {"ok": False, "reason": "it is stopping"})
            return
        await self._serve_client(channel, rest, loader)

    async def _serve_client(self, channel: socket.socket, received: bytes, loader: Loader | None) -> None:
        self._count += 1
        number, loader = self._count, loader or self._server.loader
        if loader is not self._server.loader:
            await send_answer(channel, {"ok": True, "client": number})
        transport = Connection(channel, most_unread=sys.maxsize, why_too_large=why_too_large, received=received)

        def connected(client: ClientConnection) -> None:
            self._clients[number] = client
            self._watch(client)

        try:
            await self._server.core.serve_client(transport, loader=loader, connected=connected)
        finally:
            self._clients.pop(number, None)
            self._note_use()
            transport.close()

    def _watch(self, client: ClientConnection) -> None:
        """Arrange that the turns of a client are interrupted when the client leaves, if the setting `[mcp]
        when_client_leaves` requires this.
        """
        client.session.on_leave(self, lambda: self._left(client.session))

    def _left(self, session: Session) -> None:
        if not self._stopping.is_set() and _interrupts(session.loader):
            session.interrupt_turns()

    async def _answer(self, hello: Hello) -> dict[str, Any]:
        """Execute a request about the server itself, and return the members of the response."""
        match hello.parley:
            case "sign-in":
                if (page := await self.sign_in_url()) is not None:
                    return {"ok": True, "page": page}
                reason = "it serves no web page; `parley serve --stop` and then `parley serve` start one that does"
                return {"ok": False, "reason": reason}
            case "status":
                return {
                    "ok": True,
                    **self.description,
                    "clients": self.client_count,
                    "turns": len(self._server.conversations.running),
                    "started": self._began,
                    "stopping": self._stopping.is_set(),
                    "store": self._server.core.context.availability,
                    "node": None if self._server.nodes is None else self._server.nodes.description,
                    "not_a_node": self._node_fault(),
                    "own_url": None if self._http is None else self._http.own_url,
                    "listens_on": None if self._http is None else self._http.host,
                    "changed_settings": self._changed_settings(),
                }
            case "stop":
                asyncio.get_running_loop().call_soon(self.stop)
                return {"ok": True, **self.description}
            case "drain":
                asyncio.get_running_loop().call_soon(self.drain)
                return {"ok": True, **self.description}
            case "reload":
                await self.reload()
                return {"ok": True, **self.description}
            case "interrupt":
                client = self._clients.get(hello.client or 0)
                return {"ok": True, "interrupted": 0 if client is None else client.session.interrupt_turns()}
            case _:
                return {"ok": False, "reason": f"it does not know the request {hello.parley!r}"}


def _interrupts(loader: Loader) -> bool:
    try:
        return loader.mcp_settings().when_client_leaves == "interrupt"
    except ConfigError:
        return False

"""The resident server: serves any number of local clients of a home, and continues when they leave.

The first line of a connection decides what it is. A line with the member `parley` is the hello of a relay, or a
request about the server itself. Any other line is the first message of an ordinary MCP client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, ValidationError, convert

from parley.app.available_memory import why_too_large
from parley.app.discovery import ResidentLock, describe, read_description, remove_description
from parley.app.home_key import home_key
from parley.app.memory import freeze_existing_objects, skip_final_collection
from parley.app.serving import Server, prepare_process
from parley.app.signals import SIGNALS, ignore_signals
from parley.common.home import SOCKET
from parley.common.os_errors import os_detail
from parley.common.resident_socket import HELLO_VERSION, RELAY, NoResident, Refused, ask, connect
from parley.config.checks import MOST_PATH_BYTES
from parley.config.load import Loader
from parley.config.types import ServeSettings
from parley.errors import BadHome, ConfigError, ParleyError
from parley.server.serve import ClientConnection
from parley.server.session import Session
from parley.tools.rlimits import raise_own_limit
from parley.transports.unix import Connection, Listener
from parley.version import __version__

if TYPE_CHECKING:
    from parley.app.http_choice import HttpChoice
    from parley.app.http_service import HttpService

__all__ = ["AlreadyRunning", "Resident", "run_resident"]

log = logging.getLogger(__name__)

MOST_HELLO_BYTES: Final = 8 * 1024 * 1024
"""A longer first line is a message of an ordinary client. The environment of a process is smaller."""
LOOK_SECONDS: Final = 60.0
"""How often a server that exits when idle checks whether it is idle."""
LOCK_AGAIN_SECONDS: Final = 0.02
LOCK_TRIES: Final = 250
"""How long a second server waits for the first to listen, or to end: five seconds."""
CLOSE_SECONDS: Final = 1.0
"""How long a shutdown waits for the tasks of connections after the clients were removed."""


class AlreadyRunning(ParleyError):
    """Another resident server of the home runs."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description
        super().__init__(f"a resident server of this home runs already, as process {description.get('pid', '?')}")


class Hello(Struct):
    """The first line of a relay, or a request about the server."""

    parley: str
    v: int = 0
    env: dict[str, str] = {}
    cwd: str = "/"
    overrides: tuple[str, ...] = ()
    client: int | None = None
    """For `interrupt`: the number that the relay of that client was told."""


class Resident:
    """The resident server of one home."""

    def __init__(self, server: Server, home: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._server, self._home, self._now = server, home, now
        self._began = time.time()
        self._listener: Listener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._greeting: set[asyncio.Task[None]] = set()
        """Those of `_tasks` whose connection has not sent its first line yet."""
        self._clients: dict[int, ClientConnection] = {}
        self._http: HttpService | None = None
        self._count = 0
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        self._idle_since = now()

    # --- running -----------------------------------------------------------------------

    def listen(self) -> None:
        """Accept connections. Raises OSError."""
        self._listener = Listener(self._home, SOCKET, on_channel=self._accepted)

    def listen_http(self, choice: HttpChoice) -> None:
        """Accept HTTP connections.

        Raises:
            BadSetting: the server cannot listen on the configured address.
            OSError: the home cannot be used.
        """
        from parley.app.http_service import HttpService  # with the HTTP library, which few servers need

        key = home_key(self._home)
        self._http = HttpService(self._server.core, self._settings(), choice, key=key, on_connected=self._watch)

    @property
    def token(self) -> str | None:
        """The HTTP token that was created for the life of this process; None if there is none."""
        return None if self._http is None else self._http.token

    @property
    def description(self) -> dict[str, Any]:
        """The address and the process of the server, for clients and other processes."""
        return {
            "url": None if self._http is None else self._http.url,
            "socket": os.path.join(self._home, SOCKET),
            "pid": os.getpid(),
            "version": __version__,
        }

    def stop(self) -> None:
        """Let running turns end, then shut the server down; a second call shuts it down at once."""
        if self._stopping.is_set():
            self._stopping_now.set()
        self._stopping.set()

    async def run(self, *, exits_when_idle: bool) -> None:
        """Serve until `stop` is called, or until the server was idle for the configured time."""
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                timeout = min(LOOK_SECONDS, self._seconds_to_idle_exit()) if exits_when_idle else None
                await asyncio.wait({stopped}, timeout=timeout)
                if exits_when_idle and not self._stopping.is_set() and self._seconds_to_idle_exit() == 0:
                    log.info("exiting: no clients and no turns for a while")
                    return
        finally:
            stopped.cancel()

    def stop_listening(self) -> None:
        """Accept no more connections on the socket."""
        if self._listener is not None:
            self._listener.close()

    async def shut_down(self) -> None:
        """Accept no more connections, wait for running turns, then end everything."""
        self.stop_listening()
        if self._http is not None:
            self._http.stop_accepting()
        for task in self._greeting:
            task.cancel()
        await self._drain()
        await self._server.core.shutdown()
        if self._http is not None:
            await self._http.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)

    async def _drain(self) -> None:
        """Wait until no turn runs, for at most `drain_seconds`. A turn that waits for an approval stays open."""
        seconds = self._settings().drain_seconds
        stopped = asyncio.ensure_future(self._stopping_now.wait())
        ends = time.monotonic() + seconds
        try:
            while (turns := self._running_turns()) and not stopped.done():
                left = ends - time.monotonic()
                if left <= 0:
                    log.warning("interrupting %d turns that did not end within %d seconds", len(turns), seconds)
                    return
                await asyncio.wait({stopped, *turns}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()

    def _running_turns(self) -> set[asyncio.Future[Any]]:
        """Return the turns that run here and do not wait for an approval."""
        running = self._server.conversations.running
        return {one.turn.work for one in running if one.turn is not None and one.open_approval is None}

    def _seconds_to_idle_exit(self) -> float:
        minutes = self._settings().idle_exit_minutes
        if self._client_count or self._greeting or self._server.conversations.running or not minutes:
            self._idle_since = self._now()
        return max(0.0, self._idle_since + (minutes or 1) * 60 - self._now())

    @property
    def _client_count(self) -> int:
        return len(self._clients) + (0 if self._http is None else len(self._http.sessions))

    def _settings(self) -> ServeSettings:
        try:
            return self._server.loader.serve_settings()
        except ConfigError as error:
            log.warning("cannot read the settings of the server, using their defaults: %s", error)
            return ServeSettings()

    # --- connections -------------------------------------------------------------------

    def _accepted(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(channel))
        for tasks in (self._tasks, self._greeting):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _serve(self, channel: socket.socket) -> None:
        try:
            line, rest = await _first_line(channel)
            if (task := asyncio.current_task()) is not None:
                self._greeting.discard(task)
            hello = _hello(line)
            if hello is None:
                await self._serve_client(channel, line + rest, None)
            elif hello.v != HELLO_VERSION:
                reason = f"it speaks version {HELLO_VERSION} of the relay, and was greeted with version {hello.v}"
                await _send(channel, {"ok": False, "reason": reason})
            elif hello.parley == RELAY:
                await self._serve_relay(channel, hello, rest)
            else:
                await _send(channel, self._answer(hello))
        except OSError as error:
            log.debug("a connection ended: %s", error)
        except Exception:
            log.exception("failed to serve a connection")
        finally:
            channel.close()

    async def _serve_relay(self, channel: socket.socket, hello: Hello, rest: bytes) -> None:
        directory = hello.cwd
        if not directory.startswith("/") or "\0" in directory or len(os.fsencode(directory)) > MOST_PATH_BYTES:
            await _send(channel, {"ok": False, "reason": "`cwd` is not an absolute path of at most 4096 bytes"})
            return
        try:
            loader = Loader(
                environ=hello.env, server_dir=hello.cwd, overrides=hello.overrides, home=self._server.loader.home
            )
        except ConfigError as error:
            await _send(channel, {"ok": False, "reason": str(error)})
            return
        if self._stopping.is_set():
            await _send(channel, {"ok": False, "reason": "it is stopping"})
            return
        await self._serve_client(channel, rest, loader)

    async def _serve_client(self, channel: socket.socket, received: bytes, loader: Loader | None) -> None:
        self._count += 1
        number, loader = self._count, loader or self._server.loader
        if loader is not self._server.loader:
            await _send(channel, {"ok": True, "client": number})
        transport = Connection(channel, most_unread=sys.maxsize, why_too_large=why_too_large, received=received)

        def connected(client: ClientConnection) -> None:
            self._clients[number] = client
            self._watch(client)

        try:
            await self._server.core.serve_client(transport, loader=loader, connected=connected)
        finally:
            self._clients.pop(number, None)
            self._idle_since = self._now()
            transport.close()

    def _watch(self, client: ClientConnection) -> None:
        """Interrupt the turns of a client when it leaves, if the settings say so."""
        client.session.on_leave(self, lambda: self._left(client.session))

    def _left(self, session: Session) -> None:
        if not self._stopping.is_set() and _interrupts(session.loader):
            session.interrupt_turns()

    def _answer(self, hello: Hello) -> dict[str, Any]:
        """Answer a request about the server itself."""
        match hello.parley:
            case "status":
                return {
                    "ok": True,
                    **self.description,
                    "clients": self._client_count,
                    "turns": len(self._server.conversations.running),
                    "started": self._began,
                    "stopping": self._stopping.is_set(),
                }
            case "stop":
                asyncio.get_running_loop().call_soon(self.stop)
                return {"ok": True, **self.description}
            case "interrupt":
                client = self._clients.get(hello.client or 0)
                return {"ok": True, "interrupted": 0 if client is None else client.session.interrupt_turns()}
            case _:
                return {"ok": False, "reason": f"it does not know {hello.parley!r}"}


async def run_resident(
    overrides: Sequence[str],
    *,
    exits_when_idle: bool,
    http: HttpChoice | None,
    ready: Callable[[Mapping[str, Any]], None],
) -> None:
    """Run the resident server of the home until a signal or `parley serve --stop` stops it.

    `http` is None if the server must not serve HTTP; otherwise the settings decide. `ready` is called with the
    description of the server and the token that was created for it.

    Raises:
        AlreadyRunning: the home has a resident server.
        ConfigError: the overrides or the home cannot be used.
    """
    raise_own_limit()
    server = Server(environ=os.environ, server_dir=os.getcwd(), overrides=overrides, prepare_process=lambda: None)
    home = server.loader.home
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        lock = ResidentLock(home)
        await _acquire(lock, home)
        resident = Resident(server, home)
        resident.listen()
        try:
            if http is not None and _serves_http(server.loader.serve_settings(), exits_when_idle=exits_when_idle):
                resident.listen_http(http)
            describe(home, resident.description)
        except (ConfigError, OSError):
            resident.stop_listening()
            raise
    except OSError as error:
        raise BadHome(home, f"no resident server can be started: {os_detail(error)}") from error
    prepare_process()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, resident.stop)
    loop.add_signal_handler(signal.SIGHUP, lambda: log.info("settings are read again with each conversation"))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    freeze_existing_objects()
    try:
        ready({**resident.description, "token": resident.token})
        _notify_systemd("READY=1")
        await resident.run(exits_when_idle=exits_when_idle)
        _notify_systemd("STOPPING=1")
        await resident.shut_down()
    finally:
        remove_description(home)
        ignore_signals()
        await server.close()
        lock.release()
        skip_final_collection()


def _serves_http(settings: ServeSettings, *, exits_when_idle: bool) -> bool:
    return settings.http == "on" or (settings.http == "auto" and not exits_when_idle)


async def _acquire(lock: ResidentLock, home: str) -> None:
    """Acquire the lock of the resident server, or wait until the server that holds it can be used.

    Raises:
        AlreadyRunning: another server holds the lock.
    """
    for _ in range(LOCK_TRIES):
        if lock.acquire():
            return
        try:
            with connect(home) as channel:
                raise AlreadyRunning(ask(channel, "status"))
        except (NoResident, Refused):
            await asyncio.sleep(LOCK_AGAIN_SECONDS)  # it starts or ends
    raise AlreadyRunning(read_description(home))


def _interrupts(loader: Loader) -> bool:
    try:
        return loader.mcp_settings().when_client_leaves == "interrupt"
    except ConfigError:
        return False


async def _first_line(channel: socket.socket) -> tuple[bytes, bytes]:
    """Return the first line with its end, and the bytes after it.

    A line that is too long or incomplete is returned as far as it was read.
    """
    loop, received = asyncio.get_running_loop(), bytearray()
    while len(received) < MOST_HELLO_BYTES:
        piece = await loop.sock_recv(channel, 64 * 1024)
        received += piece
        if not piece:
            break
        if b"\n" in piece:
            end = received.index(b"\n") + 1
            return bytes(received[:end]), bytes(received[end:])
    return bytes(received), b""


def _hello(line: bytes) -> Hello | None:
    """Decode a hello or a request about the server; None if the line is the first message of an ordinary MCP
    client.

    The standard library decodes it, because variables may contain bytes that are not UTF-8.
    """
    if b'"parley"' not in line:
        return None
    try:
        found = json.loads(line)
        if not isinstance(found, dict) or "parley" not in found:
            return None
        return convert(found, Hello)
    except ValidationError as error:
        return Hello(parley=f"a line with wrong members: {error}", v=HELLO_VERSION)
    except (ValueError, RecursionError):
        return None


async def _send(channel: socket.socket, answer: Mapping[str, Any]) -> None:
    await asyncio.get_running_loop().sock_sendall(channel, json.dumps(answer).encode() + b"\n")


def _notify_systemd(state: str) -> None:
    """Tell systemd about the state of the server, if systemd started it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(state.encode(), address)

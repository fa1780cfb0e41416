"""Runs the resident server in this process: acquires its lock, handles signals, and reports its state."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from parley.app.discovery import ResidentLock, describe, describe_holder, read_description, remove_description
from parley.app.garbage_collection import collect_rarely, skip_final_collection
from parley.app.resident import Resident
from parley.app.serving import Server, prepare_process, report_unknown_keys
from parley.app.signals import SIGNALS, ignore_signals
from parley.common.os_errors import os_detail
from parley.common.resident_socket import NoResident, Refused, ask, connect
from parley.config.types import NodeSettings, ServeSettings
from parley.config.working_directory import working_directory
from parley.errors import BadHome, ParleyError
from parley.tools.rlimits import raise_own_limit

if TYPE_CHECKING:
    from parley.app.http_choice import HttpChoice

__all__ = ["AlreadyRunning", "run_resident"]

log = logging.getLogger(__name__)

LOCK_AGAIN_SECONDS: Final = 0.02
LOCK_SECONDS: Final = 5.0
"""The time, in seconds, for which a server tries to acquire the lock while another server holds it. The time is
long enough for the other server to begin to listen or, if it is shutting down, to release the lock.
"""


class AlreadyRunning(ParleyError):
    """Raised when the home directory already has a running resident server."""

    def __init__(self, description: Mapping[str, Any], holder: str) -> None:
        """Create an error whose text contains `holder`, a description of the process that holds the lock.
        `description` contains the URL and the socket of the running server, if they are known.
        """
        self.description = description
        super().__init__(f"a resident server of this home is already running: {holder}")


async def run_resident(
    overrides: Sequence[str],
    *,
    exits_when_idle: bool,
    http: HttpChoice | None,
    socket_path: str | None = None,
    ready: Callable[[Mapping[str, Any]], None],
) -> None:
    """Run the resident server of the home directory until a signal or `parley serve --stop` stops it.

    If `exits_when_idle` is True, the server also stops when it has been idle for the configured time. If `http` is
    None, the server does not serve HTTP. Otherwise, `http` contains the HTTP options of the command line, and the
    settings and `exits_when_idle` determine whether the server serves HTTP. The server listens on the socket of the
    home directory and, if `socket_path` is given, also on a socket at that path.

    When the server accepts connections, `ready` is called with the description of the server and the members
    `token` and `page`. `token` is the bearer token that was created for this process; None if no token was created.
    `page` is the URL of the web page with a one-time sign-in code; None if the page cannot be used.

    Raises:
        AlreadyRunning: another resident server of the home directory is running.
        ConfigError: the overrides or the home directory cannot be used.
        StoreFailed: the server is a node and cannot reach its database.
    """
    raise_own_limit()
    server = Server(environ=os.environ, server_dir=working_directory(), overrides=overrides, is_resident=True)
    home = server.loader.home
    server.loader.store_url()
    server.loader.serve_settings()
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        lock = ResidentLock(home)
        await _acquire(lock, home)
        resident = Resident(server, home, http=http)
        resident.listen(socket_path, lock=lock)
        try:
            if _serves_http(server.loader.serve_settings(), exits_when_idle=exits_when_idle):
                await resident.listen_http()
            describe(home, resident.description)
        except (ParleyError, OSError):
            resident.stop_listening()
            raise
    except OSError as error:
        raise BadHome(home, f"no resident server can be started: {os_detail(error)}") from error
    prepare_process()
    server.open_telemetry()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, resident.stop)
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        reloads.add(task := loop.create_task(resident.reload()))
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    collect_rarely()
    report_unknown_keys(server.loader)
    if server.loader.node_settings() != NodeSettings() and (why := resident.why_not_node()) is not None:
        log.warning("[node] has no effect: this server is not a node: %s", why)
    try:
        ready({**resident.description, "token": resident.token, "page": await resident.sign_in_url()})
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
    """Acquire the lock of the resident server. If another server holds the lock, try again for `LOCK_SECONDS`,
    because the other server may be shutting down.

    Also try to connect to the socket of the home directory, because the lock file of a running server may have been
    removed.

    Raises:
        AlreadyRunning: another server holds the lock, or listens on the socket of the home directory.
    """
    until, is_acquired = time.monotonic() + LOCK_SECONDS, False
    while time.monotonic() < until:
        is_acquired = lock.acquire()
        try:
            channel = connect(home)
        except NoResident:
            if is_acquired:
                return
        else:
            with channel, suppress(NoResident, Refused):
                running = ask(channel, "status")
                raise AlreadyRunning(running, f"process {running.get('pid', '?')}")
        await asyncio.sleep(LOCK_AGAIN_SECONDS)  # the other server may be starting or ending
    description = read_description(home)
    holder = f"process {description.get('pid', '?')}" if is_acquired else describe_holder(home)
    raise AlreadyRunning(description, holder)


def _notify_systemd(state: str) -> None:
    """Report the state of the server to systemd. `state` is a message in the format of `sd_notify`, such as
    `READY=1`. Do nothing if systemd expects no report.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(state.encode(), address)

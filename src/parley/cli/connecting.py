"""Connects a command to a server: the server at a URL, the resident server of the home, or a child process."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

from parley.app.background import start_in_background
from parley.app.discovery import describe_holder
from parley.cli.logs import OneLine
from parley.cli.printing import print_note
from parley.cli.runner import FAILED, USAGE_ERROR, CommandFailed
from parley.cli.server_address import ServerAddress
from parley.client import (
    Client,
    ClientError,
    RemoteServer,
    ResidentSocket,
    ServerProcess,
    ServerRefused,
    ToolFailed,
    Transport,
    connect,
)
from parley.client.approval import OnApproval
from parley.client.client import RECONNECT_SECONDS
from parley.common.home import SERVER_LOG, SOCKET, named_home
from parley.common.os_errors import os_detail
from parley.config.working_directory import working_directory
from parley.wire.mcp import LogMessage
from parley.wire.notifications import STORE_LOGGER

__all__ = ["Connected", "ConnectionOptions", "add_resident_option", "connected"]

CLIENT: Final = "parley-cli"
CONFIG_ERRORS: Final = ("bad_setting", "profile_not_found", "provider_not_found")
"""The error codes which mean that the settings cannot be used."""
HANDSHAKE_SECONDS: Final = 30.0
"""The maximum duration of the handshake with the server at a URL, in seconds."""
MAX_LOG_NOTES: Final = 10
"""The maximum number of messages about the database of the server that are printed within `LOG_NOTES_SECONDS`."""
LOG_NOTES_SECONDS: Final = 60.0
MAX_LOG_NOTE_CHARACTERS: Final = 1000
NOT_RUNNING: Final = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR)


REPLACE_SECONDS: Final = 10.0
"""The minimum number of seconds between two replacements of a resident server that was killed."""


@dataclass(frozen=True)
class ConnectionOptions:
    """The options and callbacks for the connection of a command to a server."""

    report: Callable[[str], None] | None = None
    """A function that is called with each message about the connection that the user should see. By default, the
    messages are printed to stderr.
    """
    on_lost: Callable[[], None] | None = None
    """A function that is called when the connection has been lost, after the loss was reported to the user."""
    on_approval: OnApproval | None = None
    """A function that is called with each approval that the server asks this command to decide; None if the command
    decides no approvals.
    """
    reconnect_seconds: float = RECONNECT_SECONDS
    """The number of seconds for which the command tries to reconnect after the connection is lost. After this time,
    the command fails.
    """
    wants_server: Callable[[], bool] = lambda: False
    """A function that returns True if another resident server should be started after the resident server was
    stopped. If the command has the option `--resident`, a server that was killed is always replaced.
    """


class Connected(NamedTuple):
    client: Client
    child: ServerProcess | None
    """The server if it is a child process of this command; otherwise None. When this command ends, the child
    process interrupts its turns and exits.
    """

    @property
    def is_resident(self) -> bool:
        return self.child is None


def add_resident_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--resident`, for commands that begin turns."""
    parser.add_argument(
        "--resident",
        action="store_true",
        help="start a resident server in the background if none runs, or if it is killed; it exits after "
        "`serve.idle_exit_minutes` without clients and turns",
    )


@asynccontextmanager
async def connected(
    command: str,
    address: ServerAddress | None,
    *,
    config: Sequence[str] = (),
    resident: bool = False,
    options: ConnectionOptions | None = None,
) -> AsyncIterator[Connected]:
    """Connect to the server at `address`, and yield the connection. If `address` is None, connect to the resident
    server of the home. If no resident server is running, start a child process as the server.

    `command` is the name of the command, for the messages on stderr. `config` contains the `-c` overrides for turns
    that the command begins. If `resident` is True, the command starts a resident server instead of a child process,
    and replaces the resident server if it is killed.

    Raises:
        CommandFailed: the server cannot be reached or started, or a tool call in the `async with` block failed.
        ConfigError: the overrides, the home or its settings cannot be used.
    """
    if logging.lastResort is not None:  # the log of a command can contain text from the server
        logging.lastResort.setFormatter(OneLine())
    options = ConnectionOptions() if options is None else options
    report = partial(print_note, command) if options.report is None else options.report
    if address is not None:
        async with AsyncExitStack() as stack:
            stack.enter_context(_without_tool_names())
            yield Connected(await _remote(stack, report, options, address), child=None)
        return
    home = _home(config)
    async with AsyncExitStack() as stack:
        stack.enter_context(_without_tool_names())
        client = await _resident(stack, report, options, home, config, restarts=resident)
        if client is None:
            _check_settings(config)
        if client is None and resident:
            await _start_resident(home)
            client = await _resident(stack, report, options, home, config, restarts=resident)
            if client is None:
                raise CommandFailed(f"no resident server could be started; see {os.path.join(home, SERVER_LOG)}")
        if client is not None:
            yield Connected(client, child=None)
        else:
            yield await _child(stack, config)


def _home(config: Sequence[str]) -> str:
    """Return the path of the home. If there are no overrides and the environment names the home, the settings are
    not loaded, so that commands start fast.

    Raises:
        ConfigError: the overrides are invalid, or the environment names no home.
    """
    named = None if config else named_home(os.environ, working_directory())
    if named is not None:
        return named.path
    from parley.cli.settings import settings_loader

    return settings_loader(config).home


def _check_settings(config: Sequence[str]) -> None:
    """Check that a server can be started with the home and its settings.

    Raises:
        ConfigError: the overrides, the home or its settings cannot be used.
    """
    # Imported here, because a command that uses a resident server needs no settings.
    from parley.cli.settings import settings_loader

    loader = settings_loader(config)
    _ = loader.home
    # Raises an error if config.toml is invalid. Without this check, a server would use the database in the home
    # instead of the database that the file names.
    loader.store_url()


class _ReplacedServer(ResidentSocket):
    """A transport that reconnects to the resident server. If necessary, the transport starts another resident
    server first.

    If the server was killed, its socket file still exists, but connections to the socket fail. The transport then
    always starts another server. If the server was stopped, it has removed its socket file. The transport then
    starts another server only if `wants_server` returns True.
    """

    def __init__(
        self,
        path: str,
        overrides: Sequence[str],
        report: Callable[[str], None],
        wants_server: Callable[[], bool],
        home: str,
    ) -> None:
        super().__init__(path, overrides=overrides)
        self._report, self._wants_server, self._home = report, wants_server, home
        self._replaced_at: float | None = None

    async def restart(self) -> None:
        try:
            await super().restart()
        except (ConnectionRefusedError, FileNotFoundError) as error:
            now = asyncio.get_running_loop().time()
            was_killed = error.errno == errno.ECONNREFUSED
            if not was_killed and not (error.errno == errno.ENOENT and self._wants_server()):
                raise
            if self._replaced_at is not None and now - self._replaced_at < REPLACE_SECONDS:
                raise
            self._replaced_at = now
            how = "was killed; starting another one" if was_killed else "is not running; starting it"
            self._report(f"the resident server {how}")
            await asyncio.to_thread(start_in_background, self._home, os.environ)
            await super().restart()


@contextmanager
def _without_tool_names() -> Iterator[None]:
    """Convert a `ToolFailed` in the `with` block to a `CommandFailed`.

    The text of the `CommandFailed` does not name the tool, because users of commands do not know the tools.
    """
    try:
        yield
    except ToolFailed as error:
        code = USAGE_ERROR if error.code in CONFIG_ERRORS else FAILED
        raise CommandFailed(error.message or "the server gave no reason", code=code) from None


async def _resident(
    stack: AsyncExitStack,
    report: Callable[[str], None],
    options: ConnectionOptions,
    home: str,
    config: Sequence[str],
    *,
    restarts: bool,
) -> Client | None:
    """Connect to the resident server of the home; return None if no resident server is running. If `restarts` is
    True and the server is killed while the client is connected, the client starts another server.
    """
    path = os.path.join(home, SOCKET)
    socket = (
        _ReplacedServer(path, config, report, options.wants_server, home)
        if restarts
        else ResidentSocket(path, overrides=config)
    )
    try:
        return await stack.enter_async_context(_reporting(socket, report, options, "the resident server"))
    except OSError as error:
        if error.errno not in NOT_RUNNING:
            report(f"not using the resident server, {describe_holder(home)}: {error}")
        return None


async def _remote(
    stack: AsyncExitStack, report: Callable[[str], None], options: ConnectionOptions, address: ServerAddress
) -> Client:
    """Connect to the server at `address`, and return the client. `stack` closes the connection."""
    transport = RemoteServer(address.url, token=address.token)
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            return await stack.enter_async_context(_reporting(transport, report, options, address.shown))
    except ServerRefused as error:
        if error.status != HTTPStatus.UNAUTHORIZED:
            raise CommandFailed(str(error)) from None
        raise CommandFailed(_why_unauthorized(address)) from None
    except TimeoutError:
        raise CommandFailed(f"{address.shown} did not respond within {HANDSHAKE_SECONDS:.0f} s") from None
    except ClientError as error:
        raise CommandFailed(str(error)) from None


def _why_unauthorized(address: ServerAddress) -> str:
    if address.token is None:
        return (
            f"{address.shown} requires a token; put it into the environment variable {address.token_variable}, or "
            "name another variable with --token-env"
        )
    return (
        f"{address.shown} refused the token in {address.token_variable}; the token may be mistyped, expired or "
        "revoked (`parley token ls` on the server lists the tokens)"
    )


def _reporting(
    transport: Transport, report: Callable[[str], None], options: ConnectionOptions, name: str
) -> AbstractAsyncContextManager[Client]:
    """Return a context manager that connects to a server over `transport`. If the connection is lost, or the server
    cannot reach its database, `report` is called with a message for the user.

    `name` is the name of the server in this message.
    """

    def report_loss() -> None:
        seconds = options.reconnect_seconds
        how_long = f" for {seconds:.0f} s" if seconds <= RECONNECT_SECONDS else ""
        report(f"lost the connection to {name}; trying to reconnect{how_long}")
        if options.on_lost is not None:
            options.on_lost()

    reported: deque[float] = deque(maxlen=MAX_LOG_NOTES)

    def report_log(message: LogMessage) -> None:
        if message.logger != STORE_LOGGER or not isinstance(message.data, dict):
            return
        now = time.monotonic()
        if len(reported) == MAX_LOG_NOTES and now - reported[0] < LOG_NOTES_SECONDS:
            return
        reported.append(now)
        report(str(message.data.get("message"))[:MAX_LOG_NOTE_CHARACTERS])

    return connect(
        transport,
        client_name=CLIENT,
        on_approval=options.on_approval,
        reconnect_seconds=options.reconnect_seconds,
        on_lost=report_loss,
        on_log=report_log,
    )


async def _child(stack: AsyncExitStack, config: Sequence[str]) -> Connected:
    overrides = [word for override in config for word in ("-c", override)]
    server = ServerProcess(
        (sys.executable, "-P", "-m", "parley", "mcp", "--in-process", *overrides),
        new_session=True,  # Ctrl-C goes only to this command, which then interrupts the turn
    )
    try:
        return Connected(await stack.enter_async_context(connect(server, client_name=CLIENT)), child=server)
    except OSError as error:
        raise CommandFailed(f"cannot start a server: {os_detail(error)}") from None


async def _start_resident(home: str) -> None:
    try:
        await asyncio.to_thread(start_in_background, home, os.environ)
    except OSError as error:
        raise CommandFailed(f"cannot start a resident server: {os_detail(error)}") from None

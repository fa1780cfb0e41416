"""`parley mcp`: connects an MCP client on stdin and stdout to the resident server, or serves the client in this
process.
"""

from __future__ import annotations

import gc
import os
import signal
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from parley.app.signals import SIGNALS
from parley.cli.runner import add_config_option
from parley.common.files import read_file

if TYPE_CHECKING:
    import argparse

__all__ = ["DEFAULTS", "DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Serve an MCP client on stdin and stdout: newline-delimited JSON-RPC.

If a resident server of the home runs (`parley serve`, or one that --resident
started), the client is connected to it, and turns continue after the client has
disconnected. Otherwise this process is the server. It ends when stdin is closed, on
SIGTERM, when its terminal is closed (unless it was started with nohup), or on Ctrl-C
while no turn runs. Logs go to stderr; PARLEY_LOG sets their level (debug, info,
warning, error), their format (text, json) and their file (file=PATH).

Conversations are stored in the home (PARLEY_HOME, else CODEX_HOME, else
~/.parley), which any number of servers share.

exit code: 0 when the client has disconnected, 1 if the resident server ends first, 2
for wrong arguments, -c overrides or database URLs. Other errors in the settings
are reported to the client."""

DEFAULTS: Final = SimpleNamespace(config=[], ephemeral=False, resident=False, in_process=False)
"""The parsed arguments of a command line without options. Most MCP clients start the server without options."""


STDIN: Final = 0
STDERR: Final = 2

WAITING: Final = (
    "waiting for an MCP client's JSON-RPC messages on stdin, one on each line; "
    "Ctrl-D ends it, `parley demo` shows a conversation"
)
"""The note that is printed if stdin is a terminal. An MCP client never uses a terminal."""


def configure(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--ephemeral",
        action="store_true",
        help="keep conversations in memory only: they end with this server, and no other server sees them",
    )
    where.add_argument(
        "--resident",
        action="store_true",
        help="start a resident server in the background if none runs; it exits after `serve.idle_exit_minutes` "
        "without clients and turns",
    )
    where.add_argument(
        "--in-process", action="store_true", help="serve the client in this process, even if a resident server runs"
    )
    add_config_option(parser)


def run(args: argparse.Namespace | SimpleNamespace) -> int:
    if os.isatty(STDIN):
        _print_line(WAITING)
    # Signals are blocked until the relay or the server has installed its handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if not (args.ephemeral or args.in_process):
        code = _relay(args)
        if code is not None:
            return code
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    return _serve(args)


def _relay(args: argparse.Namespace | SimpleNamespace) -> int | None:
    """Connect the client to the resident server, and return the exit code after the client has disconnected. Return
    None if this process must serve the client.
    """
    from parley.common.home import SERVER_LOG, SOCKET, named_home

    try:
        directory = os.getcwd()
    except OSError:
        return None  # the server reports the error
    named = named_home(os.environ, directory)
    if named is None:
        return None
    home = named.path
    may_start = args.resident
    if not (may_start or os.path.lexists(os.path.join(home, SOCKET)) or _wants_resident(home, args)):
        return None  # without a resident server, the imports below are not needed
    from parley.app.relay import Relay
    from parley.common.resident_socket import NoResident, Refused

    while True:
        # the default handlers let a user end the wait for a server that hangs
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            relay = Relay(home, environ=os.environ, directory=directory, overrides=args.config)
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        except Refused as error:
            _print_line(f"the resident server refused this client, so this process serves the client: {error}")
            return None
        except NoResident as error:
            if may_start is None:
                log = os.path.join(home, SERVER_LOG)
                _print_line(f"no resident server could be started, so this process serves the client; see {log}")
                return None
            if str(error):
                from parley.app.discovery import describe_holder

                _print_line(f"{error} ({describe_holder(home)}); this process serves the client")
                return None
            if not (may_start or _wants_resident(home, args)):
                return None
            _start_resident(home)
            may_start = None  # another server must not be started
        else:
            return relay.run()


def _wants_resident(home: str, args: argparse.Namespace | SimpleNamespace) -> bool:
    """Return whether the settings require a resident server. The settings are loaded only if config.toml or an
    override contains the word `resident`, because loading the settings takes longer than connecting a client to
    the resident server.
    """
    try:
        is_mentioned = b"resident" in read_file(os.path.join(home, "config.toml"))
    except OSError:
        is_mentioned = False
    if not is_mentioned and not any("resident" in override for override in args.config):
        return False
    from parley.cli.settings import settings_loader
    from parley.errors import ConfigError

    try:
        return settings_loader(args.config).mcp_settings().resident
    except ConfigError:
        return False  # the server reports the error


def _start_resident(home: str) -> None:
    from parley.app.background import start_in_background

    try:
        start_in_background(home, os.environ)
    except OSError as error:
        _print_line(f"cannot start a resident server: {error.strerror}")


def _serve(args: argparse.Namespace | SimpleNamespace) -> int:
    gc.disable()  # imports create little garbage, and the server enables collection again (`collect_rarely`)
    import asyncio

    from parley.app.serving import serve_stdio
    from parley.cli.logs import set_up_logging

    set_up_logging(os.environ)
    asyncio.run(serve_stdio(args.config, is_ephemeral=args.ephemeral))
    return 0


def _print_line(text: str) -> None:
    with suppress(OSError):
        os.write(STDERR, f"parley mcp: {text}\n".encode())

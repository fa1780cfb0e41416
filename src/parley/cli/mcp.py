"""`parley mcp`: serve an MCP client on stdin and stdout."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

from parley.app.signals import SIGNALS
from parley.cli.logs import set_up_logging
from parley.cli.runner import CommandFailed, add_config_option
from parley.errors import ConfigError

if TYPE_CHECKING:
    import argparse

__all__ = ["DEFAULTS", "DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Serve an MCP client on stdin and stdout: newline-delimited JSON-RPC. The server
ends when stdin is closed, on SIGTERM, when its terminal is closed (unless it was
started with nohup), or on Ctrl-C while no turn runs. Logs go to stderr; PARLEY_LOG
sets their level (debug, info, warning, error).

Conversations are stored in the home (PARLEY_HOME, else CODEX_HOME, else
~/.parley), which any number of servers share."""

DEFAULTS: Final = SimpleNamespace(config=[], ephemeral=False)
"""The arguments of a command line without options, which is how most clients start the server."""

NOT_STARTED: Final = 2

STDIN: Final = 0
STDERR: Final = 2

WAITING: Final = (
    "parley mcp: waiting for an MCP client's JSON-RPC messages on stdin, one on each line; "
    "Ctrl-D ends it, `parley demo` shows a conversation"
)
"""Printed if stdin is a terminal: an MCP client never gives the server one."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ephemeral",
        action="store_true",
        help="keep conversations in memory only: they end with this server, and no other server sees them",
    )
    add_config_option(parser)


def run(args: argparse.Namespace | SimpleNamespace) -> int:
    _fill_closed_descriptors()
    if os.isatty(STDIN):
        with suppress(OSError):
            os.write(STDERR, f"{WAITING}\n".encode())
    # Hold signals back until the server has its handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    import asyncio

    from parley.app.serving import serve_stdio

    try:
        set_up_logging(os.environ)
        asyncio.run(serve_stdio(args.config, is_ephemeral=args.ephemeral))
    except ConfigError as error:
        raise CommandFailed(str(error), code=NOT_STARTED) from None
    return 0


def _fill_closed_descriptors() -> None:
    """Open /dev/null for closed stdin, stdout and stderr: the next opened file would take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)

"""`parley mcp`: serve an MCP client on stdin and stdout."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from parley.app.signals import SIGNALS
from parley.cli.logs import set_up_logging
from parley.cli.overrides import run_with_overrides
from parley.cli.printing import print_error
from parley.errors import ConfigError

__all__ = ["run_mcp"]

EPHEMERAL: Final = "--ephemeral"

STDIN: Final = 0
STDERR: Final = 2

WAITING: Final = (
    "parley mcp: waiting for an MCP client's JSON-RPC messages on stdin, one on each line; "
    "Ctrl-D ends it, `parley demo` shows a conversation"
)
"""What is printed where stdin is a terminal: an MCP client never gives the server one."""

USAGE: Final = """\
usage: parley mcp [-c KEY=VALUE]... [--ephemeral]

Serve an MCP client on stdin and stdout: newline-delimited JSON-RPC. Ends when
stdin is closed, on SIGTERM, when its terminal is closed (unless started with
nohup), or on Ctrl-C while no turn runs. Logs go to stderr; PARLEY_LOG sets how
much (debug, info, warning, error).

Conversations are kept in the home (PARLEY_HOME, else CODEX_HOME, else ~/.parley),
which any number of servers share.

options:
  --ephemeral              keep conversations in memory alone: they end with this
                           server, and no other has them
  -c, --config KEY=VALUE   a setting that wins over config.toml: a dotted key and
                           a TOML value, such as -c model=o3 or
                           -c model_providers.x.base_url=http://localhost:8000/v1;
                           a value that is no TOML is taken as text. May be
                           given more than once
  -h, --help               this text
"""


def run_mcp(arguments: Sequence[str]) -> int:
    """Serve, and return the exit code: 0 after an orderly end, 2 when it could not begin."""
    others = [argument for argument in arguments if argument != EPHEMERAL]
    serve = partial(_serve, is_ephemeral=len(others) < len(arguments))
    return run_with_overrides(others, command="mcp", usage=USAGE, run=serve)


def _serve(overrides: Sequence[str], *, is_ephemeral: bool) -> int:
    _fill_closed_descriptors()
    if os.isatty(STDIN):
        with suppress(OSError):
            os.write(STDERR, f"{WAITING}\n".encode())
    # A signal that comes while we start is kept until somebody is there to end in order.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    import asyncio

    from parley.app.serving import serve_stdio

    try:
        set_up_logging(os.environ)
        asyncio.run(serve_stdio(overrides, is_ephemeral=is_ephemeral))
    except ConfigError as error:
        print_error("mcp", error)
        return 2
    return 0


def _fill_closed_descriptors() -> None:
    """Let nothing be where stdin, stdout and stderr are closed: the next file opened would take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)

"""`parley mcp`: serve an MCP client on stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from parley.cli.logs import set_up_logging
from parley.errors import ConfigError

__all__ = ["run_mcp"]

USAGE = """\
usage: parley mcp [-c KEY=VALUE]...

Serve an MCP client on stdin and stdout: newline-delimited JSON-RPC. Ends when stdin is closed, on
SIGTERM, or on Ctrl-C while no turn runs. Logs go to stderr; PARLEY_LOG sets how much (debug, info,
warning, error).

options:
  -c, --config KEY=VALUE   a setting that wins over config.toml: a dotted key and a TOML value,
                           such as -c model=o3 or -c 'model_providers.x.base_url="http://localhost:8000/v1"';
                           a value that is no TOML is taken as text
  -h, --help               this text
"""


def run_mcp(arguments: Sequence[str]) -> int:
    """Serve, and return the exit code: 0 after an orderly end, 2 when it could not begin."""
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        match rest:
            case ["-h" | "--help", *_]:
                print(USAGE, end="")
                return 0
            case ["-c" | "--config", setting, *rest]:
                overrides.append(setting)
            case [option, *rest] if option.startswith("--config="):
                overrides.append(option.removeprefix("--config="))
            case _:
                print(f"parley mcp: cannot use {rest[0]!r} here; try `parley mcp --help`", file=sys.stderr)
                return 2
    from parley.app import serve_stdio

    try:
        set_up_logging(os.environ)
        asyncio.run(serve_stdio(overrides))
    except ConfigError as error:
        print(f"parley mcp: {error}", file=sys.stderr)
        return 2
    return 0

"""`parley schema`: prints JSON Schemas of the messages that clients receive and send."""

from __future__ import annotations

import argparse
import json
import signal
from typing import Final

from parley.cli.runner import UsageError

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Print JSON Schemas (draft 2020-12): of all events, of the parameters of all
notifications and requests of the server, and of the arguments and results of all
tools, for clients at MCP version 2025-11-25.

NAME selects a group (events, notifications, requests or tools) or one entry:
the type of an event, a method, or the name of a tool.

exit code: 0 on success, 2 for a usage error."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a group or an entry; everything by default")


def run(args: argparse.Namespace) -> int:
    from parley.app.schemas import GROUPS, schema_document, schema_named

    schemas = schema_document() if args.name is None else schema_named(args.name)
    if schemas is None:
        raise UsageError(
            f"unknown name {args.name!r} (choose from {', '.join(GROUPS)}, the type of an event, a method, "
            "or the name of a tool)"
        )
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `parley schema | head` must end without an error
    print(json.dumps(schemas, indent=2))
    return 0

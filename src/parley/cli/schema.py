"""`parley schema`: JSON Schemas of what clients receive and send."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import Final

from parley.cli.options import options_in
from parley.cli.overrides import BadLine
from parley.cli.printing import print_error

__all__ = ["run_schema"]

USAGE: Final = """\
usage: parley schema [NAME]

Print JSON Schemas (draft 2020-12) as JSON: of all events, of the parameters of
all notifications and requests of the server, and of the arguments and results
of all tools, for clients at MCP version 2025-11-25.

NAME selects a group (events, notifications, requests or tools) or one entry:
the type of an event, a method, or the name of a tool.

options:
  -h, --help   this text

exit code: 0 when it was printed, 2 for a wrong command line.
"""


def run_schema(arguments: Sequence[str]) -> int:
    """Print the schemas, and return the exit code that the usage describes."""
    from parley.app.schemas import GROUPS, schema_document, schema_named

    try:
        given = options_in(arguments, command="schema")
        if given is None:
            print(USAGE, end="")
            return 0
        if len(given.operands) > 1:
            raise BadLine("expected at most one name; see `parley schema --help`")
        schemas = schema_named(given.operands[0]) if given.operands else schema_document()
        if schemas is None:
            raise BadLine(
                f"unknown name {given.operands[0]!r} (choose from {', '.join(GROUPS)}, "
                "the type of an event, a method, or the name of a tool)"
            )
    except BadLine as error:
        print_error("schema", error)
        return 2
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `parley schema | head` ends quietly
    print(json.dumps(schemas, indent=2))
    return 0

"""`parley diff`: prints the changes that the patches of a conversation have made."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Final, NamedTuple

from parley.cli.connecting import connected
from parley.cli.history import all_events
from parley.cli.ids import find_conversation
from parley.cli.printing import for_terminal, print_json, print_note, uses_colour
from parley.cli.server_address import add_server_options, server_address
from parley.client import Conversation, events
from parley.client.turn_result import ends_turn
from parley.wire.ids import Seq

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Print the changes that the patches of a conversation have made, as diffs in the format
of Git: one for each turn, in order. With --last, print only the last one. Paths below
the working directory are relative to it. Changes that commands have made are not
included; `git diff` shows them. On a terminal, the diff has colours, and control
characters are escaped.

With --json, each line is a JSON object `{"type": "diff"}` with `conversation_id`,
`seq` and `diff`.

exit code: 0 on success, even without changes; 2 for wrong arguments or settings;
otherwise 1."""

_BOLD, _RED, _GREEN, _CYAN, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[0m"


class TurnDiff(NamedTuple):
    seq: Seq
    """The position of the event that contains the diff."""
    diff: str


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument("--last", action="store_true", help="print only the diff of the last turn with changes")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    async with connected("diff", server_address(args)) as (client, _):
        conversation = await find_conversation(client, args.id)
        diffs = [one async for one in _diffs(conversation, (await conversation.status()).cwd)]
    for seq, diff in diffs[-1:] if args.last else diffs:
        if args.json:
            print_json({"type": "diff", "conversation_id": conversation.id, "seq": seq, "diff": diff})
        else:
            _print(diff)
    if not diffs and not args.json:
        print_note("diff", "no patch of this conversation has changed a file; changes by commands are not shown")
    elif sys.stdout.isatty() and not args.json:
        print_note("diff", "changes by commands are not shown")
    return 0


async def _diffs(conversation: Conversation, cwd: str) -> AsyncIterator[TurnDiff]:
    """Yield the last diff of each turn, which contains all changes of the turn.

    Paths below `cwd` are made relative to `cwd`.
    """
    last: TurnDiff | None = None
    async for event in all_events(conversation):
        if isinstance(event.msg, events.TurnDiff):
            last = TurnDiff(event.seq, _relative(event.msg.unified_diff, cwd))
        elif last is not None and ends_turn(event.msg):
            yield last
            last = None
    if last is not None:  # the last turn is still running
        yield last


def _lines(diff: str) -> Iterator[tuple[str, bool]]:
    """Yield each line of a diff, and whether the line belongs to a hunk."""
    is_in_hunk = False
    for line in diff.removesuffix("\n").split("\n"):
        is_in_hunk = not line.startswith("diff --git ") and (is_in_hunk or line.startswith("@@"))
        yield f"{line}\n", is_in_hunk


def _relative(diff: str, cwd: str) -> str:
    prefix = os.path.join(cwd, "")

    def shortened(line: str) -> str:
        for before in ("a/", "b/", "rename from ", "rename to "):
            line = line.replace(f"{before}{prefix}", before)
        return line

    return "".join(line if is_in_hunk else shortened(line) for line, is_in_hunk in _lines(diff))


def _print(diff: str) -> None:
    out = sys.stdout
    has_colour, is_terminal = uses_colour(out), out.isatty()
    for line, is_in_hunk in _lines(diff):
        text = line.removesuffix("\n")
        style = _style(text, is_in_hunk=is_in_hunk) if has_colour else ""
        out.write(f"{style}{for_terminal(text) if is_terminal else text}{_PLAIN if style else ''}\n")
    out.flush()


def _style(line: str, *, is_in_hunk: bool) -> str:
    if not is_in_hunk:
        return _BOLD
    return {"@": _CYAN, "+": _GREEN, "-": _RED}.get(line[:1], "")

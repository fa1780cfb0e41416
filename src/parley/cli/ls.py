"""`parley ls`: lists the conversations of the home."""

from __future__ import annotations

import argparse
from typing import Final

from msgspec import UnsetType

from parley.cli.connecting import connected
from parley.cli.event_output import plain_json
from parley.cli.ids import SHORT
from parley.cli.printing import print_json, print_nothing_found, print_text
from parley.cli.server_address import add_server_options, server_address

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
List the conversations of the home, latest activity first: the beginning of the id,
the state (idle, running, asking, or failed for an idle conversation whose last turn
failed), `*` if a turn has ended since the conversation was last read, the time of the
last activity, and the title.

With --json, each line is a JSON object `{"type": "conversation"}` with
`conversation_id`, `title`, `updated_at`, `cwd`, `state`, `unread` and `failed`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""

LIMIT: Final = 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", metavar="N", type=_number, default=LIMIT, help=f"at most N (default {LIMIT})")
    parser.add_argument("--archived", action="store_true", help="list archived conversations instead of the others")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    async with connected("ls", server_address(args)) as (client, _):
        listed = await client.list(limit=args.limit, archived=args.archived)
    for one in listed.conversations:
        if args.json:
            print_json({"type": "conversation", **plain_json(one)})
            continue
        state, updated = ("" if isinstance(value, UnsetType) else value for value in (one.state, one.updated_at))
        state = "failed" if one.failed is True else state
        mark = "*" if one.unread is True else " "
        when = updated[:16].replace("T", " ")
        print_text(f"{one.conversation_id[:SHORT]}  {state:<7} {mark} {when}  {' '.join(one.title.split())}")
    if not listed.conversations:
        what = "archived conversations" if args.archived else "conversations yet; `parley chat` begins one"
        print_nothing_found("ls", f"there are no {what}")
    return 0


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"invalid number {text!r} (choose from 1 to 10000)")
    return int(text)

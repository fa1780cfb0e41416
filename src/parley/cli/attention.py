"""`parley attention`: lists the conversations that need a person."""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

from msgspec import UnsetType

from parley.cli.approval_output import message_lines
from parley.cli.connecting import connected
from parley.cli.event_output import plain_json
from parley.cli.ids import SHORT
from parley.cli.printing import print_json, print_nothing_found, print_text
from parley.cli.server_address import add_server_options, server_address
from parley.client import Client
from parley.wire.text import visible
from parley.wire.tools import AttentionItem

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
List the conversations that need a person: first those that wait for an approval, then
those whose last turn failed, then those whose last turn is finished. Conversations
that failed or finished are listed until they have been read, for example with `parley
show`. With --watch, continue until Ctrl-C, and print each conversation when it begins
to need a person.

With --json, each line is a JSON object `{"type": "attention"}` with
`conversation_id`, `title`, `cwd`, `state` (waiting, failed or finished), `since`, and
`approval`, or `reason`, `message`, `code` and `seq`.

exit code: 0 on success, 130 after Ctrl-C, 2 for wrong arguments or settings, otherwise
1."""

POLL_SECONDS: Final = 1.0
PAGE: Final = 200
MESSAGE_LENGTH: Final = 100
"""The maximum number of characters that are shown from a message."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="continue until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    async with connected("attention", server_address(args)) as (client, _):
        known: set[object] = set()
        while True:
            items = await _all_items(client)
            for item in items:
                if _key(item) not in known:
                    _show(item, as_json=args.json)
            if not args.watch:
                if not items:
                    print_nothing_found("attention", "no conversation needs a person")
                return 0
            known = set(map(_key, items))
            await asyncio.sleep(POLL_SECONDS)


async def _all_items(client: Client) -> list[AttentionItem]:
    items: list[AttentionItem] = []
    cursor: str | None = None
    while True:
        page = await client.attention(limit=PAGE, cursor=cursor)
        items += page.conversations
        if isinstance(page.next_cursor, UnsetType) or page.next_cursor == cursor:
            return items
        cursor = page.next_cursor


def _key(item: AttentionItem) -> tuple[object, ...]:
    """Return a tuple that identifies the conversation and the reason why it needs a person. `--watch` prints an
    item only if its tuple is new.
    """
    approval = None if isinstance(item.approval, UnsetType) else item.approval.approval_id
    return item.conversation_id, item.state, approval, item.since


def _show(item: AttentionItem, *, as_json: bool) -> None:
    if as_json:
        print_json({"type": "attention", **plain_json(item)})
        return
    since = item.since[:16].replace("T", " ")
    print_text(f"{item.conversation_id[:SHORT]}  {item.state:<8}  {since}  {visible(item.title)}")
    if not isinstance(item.approval, UnsetType):
        for line in message_lines(item.approval.message):
            print_text(f"    {line}")
        print_text(f"    parley answer {item.approval.approval_id[:SHORT]} approve")
    elif not isinstance(item.message, UnsetType) and item.message.strip():
        text = " ".join(item.message.split())
        print_text(f"    {text if len(text) <= MESSAGE_LENGTH else text[:MESSAGE_LENGTH] + '…'}")

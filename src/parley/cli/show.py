"""`parley show`: prints the stored events of a conversation."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from parley.cli.connecting import connected
from parley.cli.event_output import EventOutput, mark_read, plain_json
from parley.cli.history import all_pages
from parley.cli.ids import find_conversation
from parley.cli.printing import print_json, print_text
from parley.cli.server_address import add_server_options, server_address
from parley.client import Conversation
from parley.wire.text import visible
from parley.wire.tools import ConversationStatusResult

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Show a conversation of the home: its state, and its events from the beginning. Then
mark the conversation as read. `parley watch` follows new events. Control characters
are escaped on a terminal.

With --json, each line is a JSON object: `{"type": "conversation"}` with
`conversation_id` and the members of `conversationStatus`, for each event
`{"type": "event"}` with `seq` and `msg`, and for each text that is being written
`{"type": "open"}` with `item`, `event` and `text`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    async with connected("show", server_address(args)) as (client, _):
        conversation = await find_conversation(client, args.id)
        status = await conversation.status()
        _show_status(conversation, status, as_json=args.json)
        out = None if args.json else sys.stdout
        output = EventOutput(client, conversation, out, command="show", cwd=status.cwd)
        async for page in all_pages(conversation):
            for event in page.events:
                output.show_stored(event.msg, seq=event.seq, offset=event.offset)
        for text in page.open:
            output.show_open(text)
        output.end_line()
        await mark_read(conversation, page.seq)
    return 0


def _show_status(conversation: Conversation, status: ConversationStatusResult, *, as_json: bool) -> None:
    if as_json:
        print_json({"type": "conversation", "conversation_id": conversation.id, **plain_json(status)})
        return
    print_text(f"{conversation.id}  {status.state}  {visible(status.title)}")
    print_text(f"{visible(status.model)} in {visible(status.cwd)}")

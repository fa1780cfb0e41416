"""`parley fork`: creates a conversation with a copy of the history of another conversation."""

from __future__ import annotations

import argparse
from typing import Final

from parley.cli.connecting import connected
from parley.cli.history import all_events
from parley.cli.ids import find_conversation, match_message
from parley.cli.printing import print_json, print_text
from parley.cli.server_address import add_server_options, server_address
from parley.client import Conversation, events
from parley.wire.text import visible

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Create a conversation with a copy of the history of another one, and print its id. The
copy ends with the turn of the message that --at names, by default the last message.
`parley show ID --json` shows the ids of the messages. The files in the working
directory are not copied: both conversations use the same directory.

With --json, the output is a JSON object `{"type": "fork"}` with `conversation_id` and
`forked_from`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument(
        "--at", metavar="MESSAGE_ID", help="the last message to copy, with its turn; a unique prefix is enough"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    async with connected("fork", server_address(args)) as (client, _):
        source = await find_conversation(client, args.id)
        at = None if args.at is None else match_message(args.at, await _message_ids(source))
        copy = await source.fork(at_message_id=at)
    if args.json:
        print_json({"type": "fork", "conversation_id": copy.id, "forked_from": source.id})
    else:
        print_text(visible(copy.id))
    return 0


async def _message_ids(conversation: Conversation) -> list[str]:
    return [
        event.msg.message_id
        async for event in all_events(conversation)
        if isinstance(event.msg, events.UserMessage)
    ]

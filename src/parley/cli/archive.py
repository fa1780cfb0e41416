"""`parley archive`: archives a conversation, or restores an archived one."""

from __future__ import annotations

import argparse
from typing import Final

from parley.cli.connecting import connected
from parley.cli.ids import find_conversation
from parley.cli.printing import print_json
from parley.cli.server_address import add_server_options, server_address

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Archive a conversation of the home. `parley ls` lists it only with --archived, and
`parley gc` deletes it when it is old. With --undo, restore an archived conversation.

With --json, the output is a JSON object `{"type": "archive"}` with `conversation_id`
and `archived`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument("--undo", action="store_true", help="restore an archived conversation")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    archived = not args.undo
    async with connected("archive", server_address(args)) as (client, _):
        conversation = await find_conversation(client, args.id)
        await conversation.archive(archived=archived)
    if args.json:
        print_json({"type": "archive", "conversation_id": conversation.id, "archived": archived})
    return 0

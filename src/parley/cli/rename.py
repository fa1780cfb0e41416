"""`parley rename`: changes the title of a conversation."""

from __future__ import annotations

import argparse
from typing import Final

from parley.cli.connecting import connected
from parley.cli.ids import find_conversation
from parley.cli.printing import print_json
from parley.cli.server_address import add_server_options, server_address

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Change the title of a conversation of the home.

With --json, the output is a JSON object `{"type": "rename"}` with `conversation_id`
and `title`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument("title", metavar="TITLE", help="the new title")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    async with connected("rename", server_address(args)) as (client, _):
        conversation = await find_conversation(client, args.id)
        await conversation.rename(args.title)
    if args.json:
        print_json({"type": "rename", "conversation_id": conversation.id, "title": args.title})
    return 0

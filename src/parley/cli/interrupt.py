"""`parley interrupt`: interrupts the turn of a conversation."""

from __future__ import annotations

import argparse
from typing import Final

from parley.cli.connecting import connected
from parley.cli.ids import find_conversation
from parley.cli.printing import print_json, print_note
from parley.cli.server_address import add_server_options, server_address

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Interrupt the running turn of a conversation of the home, even if another process
runs the turn. The commands of the turn are killed. `parley continue` can continue
the conversation.

With --json, the output is a JSON object `{"type": "interrupt"}` with
`conversation_id` and `was_running`.

exit code: 0 on success, even if no turn runs; 2 for wrong arguments or settings;
otherwise 1."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    async with connected("interrupt", server_address(args)) as (client, _):
        conversation = await find_conversation(client, args.id)
        was_running = (await conversation.status()).state != "idle"
        await conversation.interrupt()
    if args.json:
        print_json({"type": "interrupt", "conversation_id": conversation.id, "was_running": was_running})
    elif not was_running:
        print_note("interrupt", "no turn is running")
    return 0

"""`parley continue`: continues a turn that was interrupted or failed."""

from __future__ import annotations

import argparse
from typing import Final

from parley.cli.connecting import add_resident_option, connected
from parley.cli.ids import find_conversation
from parley.cli.printing import print_json, print_note
from parley.cli.runner import add_config_option
from parley.cli.server_address import add_server_options, server_address
from parley.cli.turn_follower import TurnFollower

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Continue the last turn of a conversation, without a new message, if the turn was
interrupted, failed, reached a limit or ended with its server. Calls that had begun
are not repeated. With a resident server, the command ends when the turn has begun;
with --follow, the command shows the turn as `parley exec` does. Without a resident
server, the turn runs in a child process, so the command always follows it.

With --json, the first line is a JSON object `{"type": "continue"}` with
`conversation_id`; the other lines are those of `parley exec --json`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1; if the turn
is followed, the exit code of `parley exec`."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument("--follow", action="store_true", help="show the turn until it ends; Ctrl-C interrupts it")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_server_options(parser)
    add_resident_option(parser)
    add_config_option(parser)


async def run(args: argparse.Namespace) -> int:
    address = server_address(args)
    async with connected("continue", address, config=args.config, resident=args.resident) as server:
        conversation = await find_conversation(server.client, args.id)
        if not args.follow and server.is_resident:
            await conversation.continue_turn()
            _print_begin(conversation.id, as_json=args.json)
            return 0
        after = (await conversation.status()).seq
        follower = TurnFollower(server.client, conversation, command="continue", as_json=args.json)
        async with conversation.stream(after=after) as stream:
            await conversation.continue_turn()
            _print_begin(conversation.id, as_json=args.json)
            if server.child is not None and not args.follow:
                print_note("continue", "no resident server runs, so the turn runs in this command until it ends")
            return await follower.follow(stream.detailed())


def _print_begin(conversation_id: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"type": "continue", "conversation_id": conversation_id})

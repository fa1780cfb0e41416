"""`parley send`: sends a message to a conversation."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine
from typing import Any, Final

from parley.cli.connecting import add_resident_option, connected
from parley.cli.ids import find_conversation
from parley.cli.messages import read_message
from parley.cli.printing import print_json, print_note
from parley.cli.runner import add_config_option
from parley.cli.server_address import ServerAddress, add_server_options, server_address
from parley.cli.turn_follower import TurnFollower

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Send a message to a conversation of the home. The message joins the running turn, or
begins a new one. With a resident server, the command ends when the message was
accepted, and the turn continues; with --follow, the command shows the turn as
`parley exec` does. Without a resident server, the turn runs in a child process, so
the command always follows it.

With --json, the first line is a JSON object `{"type": "message"}` with
`conversation_id` and `message_id`; the other lines are those of `parley exec --json`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1; if the turn
is followed, the exit code of `parley exec`."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument("text", metavar="TEXT", help="the message; `-` reads it from stdin")
    parser.add_argument("--follow", action="store_true", help="show the turn until it ends; Ctrl-C interrupts it")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_server_options(parser)
    add_resident_option(parser)
    add_config_option(parser)


def run(args: argparse.Namespace) -> Coroutine[Any, Any, int]:
    address = server_address(args)
    return _run(args, address, read_message(args.text))


async def _run(args: argparse.Namespace, address: ServerAddress | None, text: str) -> int:
    async with connected("send", address, config=args.config, resident=args.resident) as server:
        client = server.client
        conversation = await find_conversation(client, args.id)
        follower = None
        if args.follow or not server.is_resident:
            follower = TurnFollower(client, conversation, command="send", as_json=args.json)
        turn = await conversation.send(text)
        if args.json:
            print_json({"type": "message", "conversation_id": conversation.id, "message_id": turn.message_id})
        if follower is None:
            return 0
        if not args.follow:
            owner = (await conversation.status()).owner
            if server.child is not None and owner is not None and owner.pid == server.child.pid:
                print_note("send", "no resident server runs, so the turn runs in this command until it ends")
            elif owner is not None:
                print_note("send", f"process {owner.pid} runs the turn, which this command shows until it ends")
        return await follower.follow(turn.detailed())

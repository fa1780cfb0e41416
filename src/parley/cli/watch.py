"""`parley watch`: follow a conversation."""

from __future__ import annotations

import argparse
from typing import Final

from parley.cli.connecting import connected
from parley.cli.event_output import FAILED, EventOutput
from parley.cli.ids import find_conversation
from parley.cli.page import Page
from parley.cli.printing import print_note
from parley.client import Conversation, Stream, events

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Follow a conversation of the home until Ctrl-C. If a turn runs, its events so far
come first. Any number of clients can follow a conversation, and leaving changes
nothing. Control characters are escaped on a terminal.

With --json, each line is a JSON object `{"type": "event"}` with `conversation_id`,
`msg`, and the position: `seq` for a stored event, `item` and `offset` for a piece of
a text that is being written.

exit code: 130 after Ctrl-C, 1 if the conversation was deleted or the server is gone,
2 for a usage error."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a beginning that only one has")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")


async def run(args: argparse.Namespace) -> int:
    async with connected("watch") as (client, _):
        conversation = await find_conversation(client, args.id)
        page = None if args.json else Page()
        output = EventOutput(client, conversation, page, command="watch")
        try:
            async with await _from_the_running_turn(conversation) as stream:
                skipped = _before_the_running_turn(stream)
                async for event in stream.detailed():
                    if skipped:
                        skipped -= 1
                    else:
                        await output.show(event)
        finally:
            if page is not None:
                page.end_line()
        print_note("watch", f"the stream has ended: {stream.disconnected}")
        return FAILED


async def _from_the_running_turn(conversation: Conversation) -> Stream:
    """Return a stream of live events. While a turn runs, return a stream of all events, because the beginning of
    the turn has to be found.
    """
    status = await conversation.status()
    return conversation.stream(after=status.seq if status.state == "idle" else None)


def _before_the_running_turn(stream: Stream) -> int:
    """Return how many events of the snapshot come before the last beginning of a turn."""
    for number in range(len(stream.snapshot) - 1, -1, -1):
        if isinstance(stream.snapshot[number], events.TaskStarted):
            return number
    return 0

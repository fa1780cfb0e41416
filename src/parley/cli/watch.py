"""`parley watch`: prints the events of a conversation as they happen."""

from __future__ import annotations

import argparse
import sys
from typing import Final, TextIO

from msgspec import UnsetType

from parley.cli.connecting import connected
from parley.cli.event_output import EventOutput, mark_read
from parley.cli.ids import find_conversation
from parley.cli.printing import print_note, uses_colour
from parley.cli.runner import FAILED
from parley.cli.server_address import add_server_options, server_address
from parley.client import Stream, events
from parley.client.turn_result import ends_turn

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Follow a conversation of the home until Ctrl-C. If a turn is running, its events so
far come first. Any number of clients can follow a conversation. Following a
conversation marks it as read when a turn ends, and changes nothing else. Control
characters are escaped on a terminal.

With --json, each line is a JSON object: for each event `{"type": "event"}` with
`conversation_id`, `msg`, and the position (`seq` for a stored event, `item` and
`offset` for a part of a text that is being written), and for each approval request
`{"type": "approval"}` as in `parley answer --json`.

exit code: 130 after Ctrl-C, 1 if the conversation was deleted or the server has
ended, 2 for wrong arguments or settings."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_server_options(parser)


async def run(args: argparse.Namespace) -> int:
    async with connected("watch", server_address(args)) as (client, _):
        conversation = await find_conversation(client, args.id)
        out = None if args.json else sys.stdout
        output = EventOutput(client, conversation, out, command="watch")
        try:
            status = await conversation.status()
            is_idle = status.state == "idle"
            # If a turn is running, the stream contains all events of the conversation, because the position of the
            # turn's first event is unknown.
            async with conversation.stream(after=status.seq if is_idle else None) as stream:
                if is_idle and out is not None:
                    _say_idle(out)
                skipped = _before_the_running_turn(stream)
                async for event in stream.detailed():
                    if skipped:
                        skipped -= 1
                    else:
                        await output.show(event)
                        if ends_turn(event.msg) and not isinstance(event.meta.seq, UnsetType):
                            await mark_read(conversation, event.meta.seq)
        finally:
            output.end_line()
        print_note("watch", f"the stream has ended: {stream.disconnected}")
        return FAILED


def _say_idle(out: TextIO) -> None:
    """If `out` is a terminal, print a note that the conversation is idle. Otherwise print nothing, because a script
    that reads the events needs no note.
    """
    if out.isatty():
        dim, plain = ("\x1b[2m", "\x1b[0m") if uses_colour(sys.stderr) else ("", "")
        note = "parley watch: the conversation is idle; waiting for events (Ctrl-C ends)"
        print(f"{dim}{note}{plain}", file=sys.stderr, flush=True)


def _before_the_running_turn(stream: Stream) -> int:
    """Return the number of events in the stream's snapshot that precede its last turn, which is the running turn; 0
    if the snapshot contains no beginning of a turn.
    """
    for number in range(len(stream.snapshot) - 1, -1, -1):
        if isinstance(stream.snapshot[number], events.TaskStarted):
            return number
    return 0

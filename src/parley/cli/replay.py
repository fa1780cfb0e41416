"""`parley replay`: plays the stored events of a conversation at their original pace, or converts the conversation
to a test.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Final

from parley.cli.connecting import connected
from parley.cli.event_output import EventOutput
from parley.cli.history import all_events
from parley.cli.ids import find_conversation
from parley.cli.runner import UsageError
from parley.cli.server_address import add_server_options, server_address
from parley.client import Client, Conversation, Event, events

__all__ = ["DESCRIPTION", "Pace", "configure", "run"]

DESCRIPTION: Final = """\
Play the stored events of a conversation from the beginning, with the original pauses
between them. Each text appears at once, because the server does not store when the
parts of a text were written. Pauses between turns are shortened to 3 seconds. Nothing
is sent to the model, and no command runs. Control characters are escaped on a
terminal.

With --as-test, write the conversation as a pytest test instead, to a new file or to
stdout. ID can then also be the path of a recording (`parley exec --record`). In the
test, the model gives the recorded replies, and commands run in a read-only sandbox.

With --json, each line is a JSON object `{"type": "event"}` with `conversation_id`,
`seq`, `at` (the time of the event) and `msg`.

exit code: 0 on success, 130 after Ctrl-C, 2 for wrong arguments or settings, otherwise
1."""

MAX_IDLE_SECONDS: Final = 3.0
"""The maximum pause before the first event of a turn, in seconds, if the speed is 1. At any other speed, this
maximum is divided by the speed.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument(
        "--as-test", action="store_true", help="write a pytest test; ID can also be the path of a recording"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the file for --as-test; stdout by default")
    parser.add_argument("--until", metavar="SEQ", type=_position, help="end with the event at this position")
    parser.add_argument(
        "--speed",
        metavar="N",
        type=_speed,
        default=1.0,
        help="play N times as fast, such as 10 or 0.5; 0 plays without pauses (default 1)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_server_options(parser)


def run(args: argparse.Namespace) -> int | Coroutine[Any, Any, int]:
    if not args.as_test:
        if args.output is not None:
            raise UsageError("-o can only be used with --as-test")
        return _replay(args)
    if server_address(args) is not None:
        raise UsageError("--as-test cannot be used with --url, because it reads the conversations of the home")
    if args.until is not None or args.speed != 1.0 or args.json:
        raise UsageError("--as-test cannot be used with --until, --speed and --json")
    from parley.cli.recorded_test import write_test  # imported here, because it reads settings and the store

    return write_test(args.id, args.output)


async def _replay(args: argparse.Namespace) -> int:
    async with connected("replay", server_address(args)) as (client, _):
        conversation = await find_conversation(client, args.id)
        await _play(client, conversation, until=args.until, speed=args.speed, as_json=args.json)
    return 0


async def _play(
    client: Client, conversation: Conversation, *, until: int | None, speed: float, as_json: bool
) -> None:
    out = None if as_json else sys.stdout
    cwd = (await conversation.status()).cwd
    output, pace = EventOutput(client, conversation, out, command="replay", cwd=cwd), Pace(speed)
    try:
        async for event in all_events(conversation, times=True):
            if until is not None and event.seq > until:
                break
            if event.at is not None:
                await asyncio.sleep(pace.pause_before(event.msg, event.at))
            output.show_stored(event.msg, seq=event.seq, offset=event.offset, at=event.at)
    finally:
        output.end_line()


class Pace:
    """Computes the pauses between events from the times at which the events were stored."""

    def __init__(self, speed: float) -> None:
        """Create a pace. The pauses are divided by `speed`: 1 means the original pace. If `speed` is 0, there are
        no pauses.
        """
        self._speed = speed
        self._last: datetime | None = None

    def pause_before(self, event: Event, at: str) -> float:
        """Return the pause before `event`, in seconds.

        `at` is the time at which the event was stored, in ISO 8601 format.
        """
        try:
            moment = datetime.fromisoformat(at).astimezone(UTC)
        except (ValueError, OverflowError):  # the server at a URL may send any text
            return 0.0
        pause = 0.0 if self._last is None else (moment - self._last).total_seconds()
        self._last = moment
        if self._speed == 0:
            return 0.0
        if isinstance(event, events.TaskStarted):
            pause = min(pause, MAX_IDLE_SECONDS)
        return max(0.0, pause) / self._speed  # the pause is negative if the clock was set back


def _position(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"invalid position {text!r} (give a number from 1)")
    return int(text)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed <= 1_000_000:
        raise argparse.ArgumentTypeError(f"invalid speed {text!r} (give a number such as 10, 0.5 or 0)")
    return speed

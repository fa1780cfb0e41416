"""Follows a turn to its end for a command, and prints its result."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from msgspec import UnsetType

from parley.cli.event_output import EventOutput, mark_read, plain_json
from parley.cli.exit_codes import TIMED_OUT
from parley.cli.ids import SHORT
from parley.cli.printing import print_json, print_note, print_text
from parley.cli.runner import CommandFailed
from parley.cli.turn_outcome import CheckAnswer, EndedTurn, TurnOutcome
from parley.client import Client, ClientError, Conversation, StreamEvent

__all__ = ["TurnFollower"]

PROVIDER_CODES: Final = (
    "cannot_connect",
    "connection_lost",
    "high_demand",
    "no_response",
    "retry_limit_exceeded",
    "stream_broken",
    "unexpected_status",
)
"""The error codes of failed turns whose cause `parley doctor --online` can find."""
GRACE_SECONDS: Final = 30.0
"""The maximum time, in seconds, that a command waits for a turn to end after the turn exceeds its time limit and is
interrupted.
"""


class TurnFollower:
    """Follows one turn of a conversation.

    The first Ctrl-C interrupts the turn, and the second one ends the command. The turn is also interrupted when it
    exceeds its time limit.
    """

    def __init__(
        self,
        client: Client,
        conversation: Conversation,
        *,
        command: str,
        as_json: bool,
        is_quiet: bool = False,
        timeout_seconds: float | None = None,
        check_answer: CheckAnswer | None = None,
    ) -> None:
        """Create a follower, which handles SIGINT from now on. `command` is the name of the command, for the
        messages on stderr. If `as_json` is True, JSON objects are printed instead of text. If `is_quiet` is True,
        only open approvals and the result are printed. `timeout_seconds` is the time limit of the turn; None for no
        limit. `check_answer` checks the last message of the agent; None if the message is not checked.
        """
        self._client, self._conversation, self._command = client, conversation, command
        self._as_json, self._is_quiet, self._check_answer = as_json, is_quiet, check_answer
        self._timeout_seconds = timeout_seconds
        self._outcome = TurnOutcome()
        self._late: str | None = None
        """The message for the user that the turn has exceeded its time limit; None if the turn has not exceeded the
        limit.
        """
        self._began = asyncio.Event()
        self._interrupting: asyncio.Task[None] | None = None
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._loop.add_signal_handler(signal.SIGINT, self._receive_sigint)

    async def follow(self, turn: AsyncGenerator[StreamEvent, None]) -> int:
        """Print the events of the turn to stderr and the last message of the agent to stdout, and return the exit
        code.

        With JSON output, the events and the message are printed to stdout. Call this method after the server has
        begun the turn or accepted its message.

        Raises:
            CommandFailed: the stream ended before the turn did, or the turn did not end within `GRACE_SECONDS`
                after it had exceeded its time limit.
        """
        self._began.set()
        limiting = self._loop.create_task(self._limit_time())
        try:
            await self._show(turn)
        except asyncio.CancelledError:
            if self._late is None:
                raise
            why = f"{self._late}, and did not end within {GRACE_SECONDS:g} s after the interrupt"
            raise CommandFailed(why, code=TIMED_OUT) from None
        finally:
            limiting.cancel()
        return self._print_result(self._outcome.end(self._check_answer))

    # --- interrupting ----------------------------------------------------------------------------

    def _receive_sigint(self) -> None:
        if self._interrupting is None:
            self._interrupting = self._loop.create_task(self._interrupt())
        elif self._task is not None:
            self._task.cancel()

    async def _interrupt(self) -> None:
        await self._began.wait()  # before the message was accepted, there is no turn to interrupt
        try:
            await self._conversation.interrupt()
        except ClientError as error:
            print_note(self._command, f"cannot interrupt the turn: {error}")

    async def _limit_time(self) -> None:
        if self._timeout_seconds is None:
            return
        await asyncio.sleep(self._timeout_seconds)
        if self._interrupting is None:
            self._late = self._outcome.exceed(self._timeout_seconds)
            self._interrupting = self._loop.create_task(self._interrupt())
            await asyncio.sleep(GRACE_SECONDS)
            if self._task is not None:
                self._task.cancel()

    # --- printing --------------------------------------------------------------------------------

    async def _show(self, turn: AsyncGenerator[StreamEvent, None]) -> None:
        output = EventOutput(
            self._client,
            self._conversation,
            None if self._as_json else sys.stderr,
            command=self._command,
            shows_failures=False,
            only_approvals=self._is_quiet,
        )
        async with aclosing(turn):
            async for event in turn:
                await output.show(event)
                if self._outcome.add(event.msg):
                    if not isinstance(event.meta.seq, UnsetType):
                        await mark_read(self._conversation, event.meta.seq)
                    break
            else:
                raise CommandFailed("the server ended the stream before the end of the turn")
        output.end_line()

    def _print_result(self, ended: EndedTurn) -> int:
        if self._is_quiet and ended.cut_off is not None:
            print_note(self._command, ended.cut_off)  # without --quiet, the progress contains this note
        if self._as_json:
            failure = {"error": ended.error, "code": ended.error_code}
            members = {
                **plain_json(ended.result),
                "text": ended.text,
                **{name: value for name, value in failure.items() if value is not None},
            }
            print_json({"type": "result", "conversation_id": self._conversation.id, **members})
            return ended.exit_code
        if ended.error is not None:
            print_note(self._command, ended.error)
            if ended.error_code in PROVIDER_CODES:
                print_note(self._command, "check the provider with `parley doctor --online`")
            short = self._conversation.id[:SHORT]
            ways = f"`parley exec --resume {short} PROMPT` or `parley chat --resume {short}`"
            print_note(self._command, f"continue with {ways}")
        elif self._is_quiet or not (sys.stdout.isatty() and sys.stderr.isatty()):
            print_text(ended.text)  # if stdout is also the terminal, the terminal already shows the answer
        return ended.exit_code

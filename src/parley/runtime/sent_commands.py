"""Sends the commands of one conversation to the owner, and handles the responses of the owner.

`mailbox.py` decides which commands are sent. If the owner has not responded to a command, `mailbox.py` queues the
command again.
"""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import Raw

from parley.errors import NotOwned, OwnerUnresponsive, ParleyError
from parley.runtime.commands import Command, LocalConversation, SubmitMessage
from parley.runtime.ownership import Ownership

__all__ = ["SentCommands"]


class SentCommands:
    """The commands that were sent to the owner and to which the owner has not responded yet."""

    __slots__ = ("_changed", "_closing", "_local", "_ownership", "_timers")

    def __init__(
        self,
        ownership: Ownership,
        local: LocalConversation,
        *,
        closing: asyncio.Event,
    ) -> None:
        """Create the object without any sent commands. `closing` is set when the server begins to shut down."""
        self._ownership, self._local, self._closing = ownership, local, closing
        self._timers: dict[Command, asyncio.TimerHandle] = {}
        """Maps each command to the timer of its deadline. The commands are in the order in which they were sent."""
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._timers)

    def send(self, command: Command) -> None:
        """Send a command to the owner without waiting for the response.

        Raises:
            OwnerUnresponsive: the deadline of the command has passed.
        """
        remote = self._ownership.remote
        assert remote is not None
        if command.deadline.is_past:
            raise OwnerUnresponsive(remote.process)
        messages = [one.message.message_id for one in self._timers if isinstance(one, SubmitMessage)]
        if (request := command.request(self._local, messages)) is None:
            command.succeed()
            return
        loop = asyncio.get_running_loop()
        expire = partial(self._expire, command, OwnerUnresponsive(remote.process))
        self._timers[command] = loop.call_at(command.deadline.at, expire)
        command.was_refused = False
        command.done.add_done_callback(partial(self._withdraw, command))
        try:
            remote.send(request.METHOD, request, answered=partial(self._answered, command))
        except NotOwned:
            self._ownership.stop_following()

    def _answered(self, command: Command, answer: Raw | ParleyError) -> None:
        if (timer := self._timers.get(command)) is None:
            return  # the deadline has passed, or the caller was cancelled
        if isinstance(answer, NotOwned):
            command.was_refused = True
            return  # following ends now, which returns the command to the queue
        timer.cancel()
        del self._timers[command]
        if isinstance(answer, ParleyError):
            command.fail(answer, is_closing=self._closing.is_set())
        else:
            try:
                command.answered(answer, self._ownership.remote_turn)
            except Exception as error:
                command.fail(error, is_closing=self._closing.is_set())
            command.succeed()
            if self._closing.is_set():
                self._ownership.leave_remote_turn()
        self._changed.set()

    def _withdraw(self, command: Command, done: asyncio.Future[None]) -> None:
        if (timer := self._timers.pop(command, None)) is not None:
            timer.cancel()
            self._changed.set()

    def _expire(self, command: Command, error: OwnerUnresponsive) -> None:
        if self._timers.pop(command, None) is not None:
            command.unanswered = error
            self._changed.set()
            command.fail(error, is_closing=self._closing.is_set())

    def take_unanswered(self, process: str | None) -> list[Command]:
        """Remove and return all commands, because following the owner has ended.

        `process` is the description of the owner for error messages; None if the owner is unknown.
        """
        timers, self._timers = self._timers, {}
        for command, timer in timers.items():
            timer.cancel()
            if process is not None and not command.was_refused:
                command.unanswered = OwnerUnresponsive(process)
        self._changed.set()
        return list(timers)

    async def all_answered(self) -> None:
        """Wait until each command has received its response, has passed its deadline or was withdrawn."""
        while self._timers:
            self._changed.clear()
            await self._changed.wait()

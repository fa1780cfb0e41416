"""Taking a message: it begins a turn or joins the one that runs; one that was sent before does neither."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from msgspec import UNSET, convert

from parley.agent.attachments import read_content
from parley.common.shield import run_to_completion
from parley.config.types import ResolvedSettings, Settings, SettingsOverrides
from parley.conversation.log import LogPayload
from parley.conversation.log_queries import place_of
from parley.conversation.records import InputRead, TurnStarted
from parley.errors import ShuttingDown, TurnIsRunning, UnsupportedContent
from parley.runtime.book import Book
from parley.runtime.choices import Choices
from parley.runtime.deadline import Deadline
from parley.runtime.errors import MessageIdTaken
from parley.runtime.turns import Turn, Turns
from parley.wire.events import TaskStarted, UserMessage
from parley.wire.ids import MessageId, Seq
from parley.wire.items import InputItem, is_text
from parley.wire.peers import Submit

__all__ = ["Accepted", "Messages"]


class Accepted(NamedTuple):
    """A message that was taken."""

    message_id: MessageId
    turn: Turn | None
    """The turn that took it; None: it was sent before, and its turn is over."""
    first: Seq
    """The position of the first entry that it caused."""


class Messages:
    """Those of one conversation. Whoever has one taken has the right to write."""

    def __init__(self, book: Book, choices: Choices, turns: Turns, *, closing: asyncio.Event) -> None:
        self._book, self._choices, self._turns = book, choices, turns
        self._closing = closing
        self._entering = asyncio.Lock()
        """Held while a message waits for the write lock of the home, to join the turn that runs."""

    @property
    def are_entering(self) -> bool:
        """Whether a message waits to join the turn: what came after it must not take effect before it."""
        return self._entering.locked()

    async def entered(self) -> None:
        """Return when the messages that came before have joined the turn, or cannot."""
        async with self._entering:
            pass

    async def take(self, message: Submit, deadline: Deadline, *, accepted: Callable[[Accepted], None]) -> None:
        """`accepted` is called when the message is written down and before any reader sees it.

        Raises:
            MessageIdTaken, ParentUnknown, TurnIsRunning, UnsupportedContent: it cannot be.
            ConfigError, ShuttingDown, StoreFailed: it cannot be now.
        In every case nothing was changed.
        """
        if (before := self._taken_before(message)) is not None:
            accepted(before)
            return
        if self._turns.running is not None and message.parent_id is not None:
            raise TurnIsRunning
        wanted = None if message.wanted is None else convert(message.wanted, SettingsOverrides)
        chosen = self._chosen(message, wanted)
        read = await read_content(message.content, chosen.settings)
        async with self._entering:
            if self._turns.running is not None:
                await self._book.writable(until=deadline.at)
            written = self._enter(message, wanted, chosen, read, deadline, accepted)
        await run_to_completion(written)

    def _enter(
        self,
        message: Submit,
        wanted: SettingsOverrides | None,
        chosen: ResolvedSettings,
        read: tuple[InputItem, ...],
        deadline: Deadline,
        accepted: Callable[[Accepted], None],
    ) -> asyncio.Future[None]:
        """Write the message to the log; the result is there when it is on disk."""
        turn = self._turns.running  # it may be over by now
        # As it was sent, so that the places are the sender's; what was read from disk can be carried by all.
        used = chosen.settings if turn is None else turn.settings or chosen.settings
        self._refuse_what_cannot_be_carried(message.content, used)
        if self._closing.is_set():
            raise ShuttingDown
        first = Seq(self._book.log.last + 1)

        def taken() -> None:
            begun = turn or self._turns.begin(chosen.settings)
            self._choices.know(self._book.folds.wishes.behind(message.message_id, self._book.id), chosen)
            accepted(Accepted(message.message_id, begun, first))

        entries = self._said(message, read)
        if chosen.settings is not self._choices.of(self._book.folds.wishes.now).settings:
            entries.append(self._choices.record(wanted or SettingsOverrides(), chosen))
        if turn is None:
            entries[:0] = self._started(message)
        return self._book.write(*entries, shown=taken, until=deadline.at)

    def _taken_before(self, message: Submit) -> Accepted | None:
        """What came of a message that is sent again: it is answered like the first time."""
        state, message_id = self._book.folds.state, message.message_id
        if message_id not in state.messages:
            return None
        if state.messages[message_id] != message.content:
            raise MessageIdTaken(message_id)
        turn = self._turns.running if message_id in state.inputs else None
        return Accepted(message_id, turn, first=place_of(self._book.log.entries, message_id))

    def _chosen(self, message: Submit, wanted: SettingsOverrides | None) -> ResolvedSettings:
        before = self._choices.of(self._book.folds.wishes.behind(message.parent_id, self._book.id))
        return before if wanted is None else self._choices.choose(wanted, before)

    def _refuse_what_cannot_be_carried(self, content: tuple[InputItem, ...], settings: Settings) -> None:
        if is_text(content):
            return
        model = self._turns.model_for(settings)
        for place, item in enumerate(content):
            if why := model.cannot_carry(item):
                raise UnsupportedContent(place, why)

    def _started(self, message: Submit) -> list[LogPayload]:
        return [TurnStarted(event_id=self._book.folds.state.next_event_id(message.event_id)), TaskStarted()]

    def _said(self, message: Submit, read: tuple[InputItem, ...]) -> list[LogPayload]:
        parent = UNSET if message.parent_id is None else message.parent_id
        said = UserMessage(message_id=message.message_id, parent_message_id=parent, content=message.content)
        if read is message.content:
            return [said]
        return [said, InputRead(content=read, message_id=message.message_id)]

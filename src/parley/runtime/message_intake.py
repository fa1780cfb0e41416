"""Begins turns: for a message, or to continue after a turn that was interrupted or failed.

A message starts a turn or joins the one that runs; a message that is sent again does neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Struct, convert

from parley.agent.attachments import check_content, names_files, read_content
from parley.config.types import ResolvedSettings, Settings, SettingsOverrides
from parley.conversation.errors import EarlierEntriesNeeded, ParentUnknown
from parley.conversation.log import Entry, LogPayload
from parley.conversation.records import InputRead, TurnStarted
from parley.conversation.state import Phase
from parley.errors import ShuttingDown, TurnIsRunning, UnsupportedContent
from parley.runtime.durable_log import DurableLog
from parley.runtime.errors import MessageIdTaken, NothingToContinue
from parley.runtime.settings import ResolveSettings, SettingsResolver
from parley.runtime.turn_runner import LocalTurn, Turn, TurnRunner
from parley.wire.events import TaskStarted, UserMessage
from parley.wire.ids import MessageId, Seq
from parley.wire.items import InputItem, TextItem, is_text
from parley.wire.peers import Submit

__all__ = ["Accepted", "MessageIntake"]

CONTINUE: Final = "Continue."
"""The input for the model if the history ends with the model's own text: many APIs require input at the end."""

_messages: Final = msgspec.json.Decoder(UserMessage)


class Accepted(Struct, frozen=True):
    """A message that was accepted."""

    message_id: MessageId
    turn: Turn | None
    """The turn that took it; None: it was sent before, and its turn is over."""
    first: Seq
    """The position of the first entry that it caused."""
    began: bool = False
    """True if the message began the turn, and the turn runs in this process."""


class MessageIntake:
    """Accepts the messages of one conversation. Its caller holds the lease, and no turn is about to end."""

    def __init__(
        self, durable_log: DurableLog, resolver: SettingsResolver, runner: TurnRunner, *, closing: asyncio.Event
    ) -> None:
        self._log, self._resolver, self._runner = durable_log, resolver, runner
        self._closing = closing

    def needs_files(self, message: Submit) -> bool:
        """Return whether files must be read before the message can be accepted."""
        return names_files(message.content)

    def is_known(self, message: Submit) -> bool:
        """Return whether a message with this id is in memory. A repeated message is answered when the first one is
        durable."""
        return message.message_id in self._log.projections.state.messages

    async def read_files(
        self, message: Submit, *, stored: Entry | None = None, resolve: ResolveSettings | None = None
    ) -> tuple[InputItem, ...]:
        """Return the content of a message with the images that it names. `stored` is as for `accept`.

        Raises:
            InvalidRequest, ConfigError: the message cannot be accepted.
        """
        if self._accepted_before(message, stored) is not None:
            return message.content
        if self._log.projections.state.phase is Phase.IDLE:
            self._resolver.resolve_for(resolve)
        return await read_content(message.content, self._resolve(message).settings)

    def accept(
        self,
        message: Submit,
        *,
        read: tuple[InputItem, ...] | None,
        stored: Entry | None = None,
        until: float,
        accepted: Callable[[Accepted], None],
        resolve: ResolveSettings | None = None,
    ) -> asyncio.Future[None] | None:
        """Append a message and return a future that is done when it is durable; return None if it was accepted
        before.

        `read` is the content with images that were read from disk. `stored` is the message of this id that the
        store has found, if it is not in memory. `accepted` is called when the message is durable, before any reader
        sees it. `resolve` resolves the settings of a turn that the message begins.

        Raises:
            MessageIdTaken, UnknownMessage, TurnIsRunning, UnsupportedContent: it cannot be accepted.
            ConfigError, ShuttingDown, StoreFailed: it cannot be accepted now.
        In every case nothing was changed.
        """
        if (before := self._accepted_before(message, stored)) is not None:
            accepted(before)
            return None
        state = self._log.projections.state
        joins = state.phase is not Phase.IDLE
        if joins and message.parent_id is not None:
            raise TurnIsRunning
        if not joins:
            self._resolver.resolve_for(resolve)
        chosen = self._resolve(message)
        turn = self._runner.turn if joins else None
        # The content as it was sent, so that errors name the sender's positions.
        used = chosen.settings if turn is None else turn.settings or chosen.settings
        self._refuse_unsupported(message.content, used)
        if read is None:
            check_content(message.content)
        if self._closing.is_set():
            raise ShuttingDown
        entries = self._said(message, message.content if read is None else read)
        if chosen.settings is not self._resolver.resolved(self._log.projections.settings_history.now).settings:
            entries.append(self._resolver.record(_overrides(message) or SettingsOverrides(), chosen))
        if turn is not None:
            return self._append(message, entries, chosen, turn, until, accepted)
        event_id = state.next_event_id(message.event_id)
        started = self._runner.prepare(event_id, chosen.settings)
        entries[:0] = [TurnStarted(event_id=event_id), TaskStarted()]
        try:
            return self._append(message, entries, chosen, started, until, accepted)
        except BaseException:
            self._runner.discard(started)
            raise

    def continue_turn(
        self, *, until: float, began: Callable[[LocalTurn], None], resolve: ResolveSettings | None
    ) -> asyncio.Future[None]:
        """Begin a turn without a message, after one that was interrupted or failed; the future is done when the
        start is durable. `began` is called then, before any reader sees the start.

        Raises:
            TurnIsRunning, NothingToContinue: there is nothing to continue.
            ConfigError, ShuttingDown: it cannot begin now.
        """
        state = self._log.projections.state
        if state.phase is not Phase.IDLE:
            raise TurnIsRunning
        if state.ended in (None, "done"):
            raise NothingToContinue
        self._resolver.resolve_for(resolve)
        settings = self._resolver.resolved(self._log.projections.settings_history.now).settings
        if self._closing.is_set():
            raise ShuttingDown
        event_id = state.next_event_id()
        entries: list[LogPayload] = [TurnStarted(event_id=event_id), TaskStarted()]
        if self._log.projections.history.ends_with_model:
            entries.append(InputRead(content=(TextItem(text=CONTINUE),)))
        turn = self._runner.prepare(event_id, settings)

        def on_durable() -> None:
            self._runner.start(turn)
            began(turn)

        try:
            return self._write(turn, entries, on_durable, until)
        except BaseException:
            self._runner.discard(turn)
            raise

    def _append(
        self,
        message: Submit,
        entries: list[LogPayload],
        chosen: ResolvedSettings,
        turn: LocalTurn,
        until: float,
        accepted: Callable[[Accepted], None],
    ) -> asyncio.Future[None]:
        first = Seq(self._log.log.last + 1)

        def on_durable() -> None:
            change = self._log.projections.settings_history.after(message.message_id, self._log.id)
            self._resolver.remember(change, _overrides(message), chosen)
            begins = turn.task is None
            if begins:
                self._runner.start(turn)
            accepted(Accepted(message.message_id, turn, first, began=begins))

        return self._write(turn, entries, on_durable, until)

    def _write(
        self, turn: LocalTurn, entries: list[LogPayload], on_durable: Callable[[], None], until: float
    ) -> asyncio.Future[None]:
        """Append entries, and forget a prepared turn if they cannot be stored."""

        def stored(written: asyncio.Future[None]) -> None:
            if written.exception() is not None and turn.task is None:
                self._runner.discard(turn)

        written = self._log.write(*entries, on_durable=on_durable, until=until)
        written.add_done_callback(stored)
        return written

    def _accepted_before(self, message: Submit, stored: Entry | None) -> Accepted | None:
        """Return the turn of a message that was accepted before, so that a repeated message gets the same
        answer.
        """
        state, message_id = self._log.projections.state, message.message_id
        if (position := state.messages.get(message_id)) is not None:
            stored = self._log.log.between(Seq(position - 1), position)[0]
        if stored is None:
            return None
        if _messages.decode(stored.encoded).content != message.content:
            raise MessageIdTaken(message_id)
        turn = self._runner.running if message_id in state.inputs else None
        return Accepted(message_id, turn, first=stored.seq)

    def _resolve(self, message: Submit) -> ResolvedSettings:
        try:
            change = self._log.projections.settings_history.after(message.parent_id, self._log.id)
        except EarlierEntriesNeeded as error:
            raise ParentUnknown(error.message_id) from None  # the store does not have it either
        before = self._resolver.resolved(change)
        overrides = _overrides(message)
        return before if overrides is None else self._resolver.resolve(overrides, before)

    def _refuse_unsupported(self, content: tuple[InputItem, ...], settings: Settings) -> None:
        if is_text(content):
            return
        model = self._runner.model_for(settings)
        for place, item in enumerate(content):
            if why := model.cannot_carry(item):
                raise UnsupportedContent(place, why)

    def _said(self, message: Submit, read: tuple[InputItem, ...]) -> list[LogPayload]:
        parent = UNSET if message.parent_id is None else message.parent_id
        said = UserMessage(message_id=message.message_id, parent_message_id=parent, content=message.content)
        if read is message.content:
            return [said]
        return [said, InputRead(content=read, message_id=message.message_id)]


def _overrides(message: Submit) -> SettingsOverrides | None:
    return None if message.wanted is None else convert(message.wanted, SettingsOverrides)

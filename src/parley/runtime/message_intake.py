"""Accepts messages and begins turns.

A turn without a message continues after a turn that was interrupted or failed, or compacts the history. A new
message begins a turn or joins the running turn. A repeated message does neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType, convert, to_builtins
from msgspec.structs import replace

from parley.agent.attachments import check_content, names_files, read_content
from parley.config.strictness import values_within
from parley.config.types import ResolvedSettings, Settings, SettingsOverrides
from parley.conversation.errors import EarlierEntriesNeeded, ParentUnknown
from parley.conversation.log import Entry, LogPayload
from parley.conversation.records import InputRead, MessageJoined, MessageQueued, TurnStarted
from parley.conversation.state import Phase
from parley.errors import ShuttingDown, UnsupportedContent
from parley.runtime.durable_log import DurableLog
from parley.runtime.errors import MessageIdTaken, NothingToCompact, NothingToContinue, TurnIsRunning
from parley.runtime.settings import ResolveSettings, SettingsResolver, refuse_looser
from parley.runtime.turn_runner import LocalTurn, Turn, TurnRunner
from parley.wire.events import TaskStarted, UserMessage
from parley.wire.ids import MessageId, Seq
from parley.wire.items import InputItem, TextItem, is_text
from parley.wire.peers import Submit
from parley.wire.principals import PrincipalRef, name_of

__all__ = ["Accepted", "MessageIntake"]

CONTINUE: Final = "Continue."
"""The input for the model if the history ends with the model's own text. This input is needed because many APIs
require input at the end of the history.
"""

MIN_ITEMS_TO_COMPACT: Final = 2
"""The minimum number of items in a history that can be compacted. A single item may be an earlier summary."""

_messages: Final = msgspec.json.Decoder(UserMessage)
_queued: Final = msgspec.json.Decoder(MessageQueued)


class Accepted(Struct, frozen=True):
    """The result of accepting a message."""

    message_id: MessageId
    turn: Turn | None
    """The turn that handles the message; None if the message is in the queue, or if a repeated message was already
    handled by an earlier turn.
    """
    first: Seq
    """The position of the first entry of the message."""
    began: bool = False
    """True if the message began the turn and the turn is running in this process."""
    is_queued: bool = False
    """True if the message is in the queue."""


class MessageIntake:
    """Accepts the messages of one conversation. The caller must hold the lease, and must wait while a turn is about
    to end.
    """

    def __init__(
        self, durable_log: DurableLog, resolver: SettingsResolver, runner: TurnRunner, *, closing: asyncio.Event
    ) -> None:
        self._log, self._resolver, self._runner = durable_log, resolver, runner
        self._closing = closing

    def needs_files(self, message: Submit) -> bool:
        """Return whether the message names files that must be read before it can be accepted."""
        return names_files(message.content)

    def is_known(self, message: Submit) -> bool:
        """Return whether the projections in memory contain a message with the same id. That message may not be
        durable yet. Return False if the message is only in the store.
        """
        known = self._log.projections
        return message.message_id in known.state.messages or message.message_id in known.queue.known

    async def read_files(
        self,
        message: Submit,
        *,
        stored: Entry | None = None,
        queued: Entry | None = None,
        resolve: ResolveSettings | None = None,
    ) -> tuple[InputItem, ...]:
        """Return the content of a message including the images that it names. If the message has already been
        accepted, return its content unchanged, and read no images.

        `stored`, `queued` and `resolve` have the same meaning as for `accept`.

        Raises:
            InvalidRequest: an image cannot be read or used, or the id belongs to another message.
            ConfigError: the settings cannot be used.
        """
        if self.accepted_before(message, stored, queued) is not None:
            return message.content
        if self._log.projections.state.phase is Phase.IDLE:
            self._resolver.resolve_for(resolve)
        return await self.read_named(message)

    async def read_named(self, message: Submit) -> tuple[InputItem, ...]:
        """Return the content of a message, including the images that it names.

        Raises:
            InvalidRequest: an image cannot be read or used.
            ConfigError: the settings cannot be used.
        """
        return await read_content(message.content, self.resolve(message).settings)

    def accept(
        self,
        message: Submit,
        *,
        read: tuple[InputItem, ...] | None,
        stored: Entry | None = None,
        queued: Entry | None = None,
        until: float,
        accepted: Callable[[Accepted], None],
        resolve: ResolveSettings | None = None,
    ) -> asyncio.Future[None] | None:
        """Append a message, and return a future that is done when the message is durable. Return None if the
        message has already been accepted.

        `read` is the content with the images that the message names; None if it names no images. `stored` is the
        entry in the store of an earlier message with the same id, and `queued` is the record that queued an earlier
        message with the same id. Each is None if there is no such entry. `accepted` is called when the message
        becomes durable, before any reader sees it. `resolve` resolves the settings of a turn that the message
        begins.

        If another process still holds the write lock at the time `until`, the future fails with `WriteLockHeld`.
        Nothing is changed if an error is raised.

        Raises:
            MessageIdTaken: the id belongs to another message.
            ParentUnknown: no message has the id of the parent.
            TurnIsRunning: a branch, or a turn with an output schema, can begin only between turns.
            SettingNotAllowed: the message of a limited principal would loosen the settings.
            UnsupportedContent: an item of the message cannot be given to the model.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
            StoreFailed: the message cannot be stored.
        """
        if (before := self.accepted_before(message, stored, queued)) is not None:
            accepted(before)
            return None
        return self._accept(message, read, until, accepted, resolve)

    def begin_queued(
        self, message: Submit, *, read: tuple[InputItem, ...] | None, until: float
    ) -> asyncio.Future[None]:
        """Begin a turn with a queued message. Return a future that is done when the start of the turn is durable.

        The settings are resolved with the configuration of this process. The settings of the conversation may have
        become stricter since the message was queued. For a limited principal, the stricter values apply. `read` and
        `until` have the same meaning as for `accept`, and the same errors are raised.
        """
        changed = self._log.queue.changed(removed=message.message_id)
        resolve = self._resolver.of_process
        self._resolver.resolve_for(resolve)
        message = self._without_looser(message)
        return self._accept(message, read, until, lambda _: None, resolve, (changed,))

    def _without_looser(self, message: Submit) -> Submit:
        """Return the message of a limited principal without settings that are looser than the current settings."""
        if not message.is_limited or (overrides := _overrides(message)) is None:
            return message
        now = self._resolver.resolved(self._log.projections.settings_history.now).settings
        if overrides.sandbox not in values_within("sandbox_mode", now):
            overrides = replace(overrides, sandbox=None)
        if overrides.approval_policy not in values_within("approval_policy", now):
            overrides = replace(overrides, approval_policy=None)
        return replace(message, wanted=to_builtins(overrides))

    def _accept(
        self,
        message: Submit,
        read: tuple[InputItem, ...] | None,
        until: float,
        accepted: Callable[[Accepted], None],
        resolve: ResolveSettings | None,
        last: tuple[LogPayload, ...] = (),
    ) -> asyncio.Future[None]:
        state = self._log.projections.state
        joins = state.phase is not Phase.IDLE
        if joins and (message.parent_id is not None or _gives_schema(message)):
            raise TurnIsRunning
        if not joins:
            self._resolver.resolve_for(resolve)
            message = self._without_earlier_schema(message)
        chosen = self.resolve(message)
        turn = self._runner.turn if joins else None
        # Check the content as it was sent, so that errors name the positions in the client's message.
        used = chosen.settings if turn is None else turn.settings or chosen.settings
        self.refuse_unusable(message.content, read, used)
        if self._closing.is_set():
            raise ShuttingDown
        entries = self._said(message, message.content if read is None else read, joins=joins)
        if chosen.settings is not self._resolver.resolved(self._log.projections.settings_history.now).settings:
            entries.append(self._resolver.record(_overrides(message) or SettingsOverrides(), chosen))
        entries += last
        if not joins and not last:
            entries += self._log.queue.resumed_by_turn(message.principal)
        if turn is not None:
            return self._append(message, entries, chosen, turn, until, accepted)
        event_id = state.next_event_id(message.event_id)
        started = self._runner.prepare(event_id, chosen.settings)
        entries[:0] = [TurnStarted(event_id=event_id, principal=message.principal), TaskStarted()]
        try:
            return self._append(message, entries, chosen, started, until, accepted)
        except BaseException:
            self._runner.discard(started)
            raise

    def _without_earlier_schema(self, message: Submit) -> Submit:
        """Return `message`, which begins a turn. If it contains no output schema, add settings that remove the
        schema of the previous turn.

        Raises:
            ParentUnknown: no message has the id of the parent.
        """
        before = self._before(message)
        if _gives_schema(message) or before.settings.output_schema is None:
            return message
        return replace(message, wanted={**(message.wanted or {}), "output_schema": {}})

    def continue_turn(
        self,
        principal: PrincipalRef,
        *,
        until: float,
        began: Callable[[LocalTurn], None],
        resolve: ResolveSettings | None,
    ) -> asyncio.Future[None]:
        """Begin a turn without a message, at the request of `principal`, after a turn that was interrupted or
        failed.

        Return a future that is done when the start of the turn is durable. At that time, `began` is called, before
        any reader sees the start. If another process still holds the write lock at the time `until`, the future
        fails with `WriteLockHeld`.

        Raises:
            TurnIsRunning: a turn is unfinished.
            NothingToContinue: the last turn completed, or there was no turn.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
        """
        state = self._log.projections.state
        if state.phase is not Phase.IDLE:
            raise TurnIsRunning
        if state.ended in (None, "done"):
            raise NothingToContinue
        ends_with_model = self._log.projections.history.ends_with_model
        entries: list[LogPayload] = [InputRead(content=(TextItem(text=CONTINUE),))] if ends_with_model else []
        entries += self._log.queue.resumed_by_turn(principal)
        return self._begin(principal, entries, until=until, began=began, resolve=resolve)

    def compact(
        self,
        principal: PrincipalRef,
        *,
        until: float,
        began: Callable[[LocalTurn], None],
        resolve: ResolveSettings | None,
    ) -> asyncio.Future[None]:
        """Begin a turn that replaces the history with a summary, at the request of `principal`.

        The arguments and the result have the same meaning as for `continue_turn`.

        Raises:
            TurnIsRunning: a turn is unfinished.
            NothingToCompact: the history has fewer than two items.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
        """
        if self._log.projections.state.phase is not Phase.IDLE:
            raise TurnIsRunning
        if self._log.projections.history.size < MIN_ITEMS_TO_COMPACT:
            raise NothingToCompact
        entries: list[LogPayload] = [*self._log.queue.resumed_by_turn(principal)]
        return self._begin(principal, entries, until=until, began=began, resolve=resolve, compacts=True)

    def _begin(
        self,
        principal: PrincipalRef,
        entries: list[LogPayload],
        *,
        until: float,
        began: Callable[[LocalTurn], None],
        resolve: ResolveSettings | None,
        compacts: bool | UnsetType = UNSET,
    ) -> asyncio.Future[None]:
        """Begin a turn without a message. `entries` are appended directly after the start of the turn.

        `compacts` is True if the turn replaces the history with a summary; otherwise UNSET. The other arguments and
        the result have the same meaning as for `continue_turn`.
        """
        self._resolver.resolve_for(resolve)
        settings = self._resolver.resolved(self._log.projections.settings_history.now).settings
        if self._closing.is_set():
            raise ShuttingDown
        event_id = self._log.projections.state.next_event_id()
        started = TurnStarted(event_id=event_id, principal=principal, compacts=compacts)
        turn = self._runner.prepare(event_id, settings)

        def on_durable() -> None:
            self._runner.start(turn)
            began(turn)

        try:
            return self._write(turn, [started, TaskStarted(), *entries], on_durable, until)
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
        """Append entries of a turn, and return a future that is done when they are durable. If the entries cannot
        be stored and the turn has not started, discard the turn.

        `on_durable` is called when the entries become durable. If another process still holds the write lock at the
        time `until`, the future fails with `WriteLockHeld`.
        """

        def stored(written: asyncio.Future[None]) -> None:
            if written.exception() is not None and turn.task is None:
                self._runner.discard(turn)

        written = self._log.write(*entries, on_durable=on_durable, until=until)
        written.add_done_callback(stored)
        return written

    def accepted_before(
        self, message: Submit, stored: Entry | None = None, queued: Entry | None = None
    ) -> Accepted | None:
        """Return the result for a message that has already been accepted; None if the message is new.

        A client therefore gets the same result for a repeated message as for the first one. `stored` and `queued`
        have the same meaning as for `accept`.

        Raises:
            MessageIdTaken: the earlier message has different content.
        """
        state, queue, message_id = self._log.projections.state, self._log.queue, message.message_id
        if (position := queue.known.get(message_id)) is not None:
            queued = self._log.log.between(Seq(position - 1), position)[0]
        if queued is not None and _queued.decode(queued.encoded).content == message.content:
            turn = self._runner.running if message_id in state.inputs else None
            return Accepted(message_id, turn, first=queued.seq, is_queued=message_id in queue.waiting)
        if (position := state.messages.get(message_id)) is not None:
            stored = self._log.log.between(Seq(position - 1), position)[0]
        if stored is None and queued is not None:
            raise MessageIdTaken(message_id)
        if stored is None:
            return None
        if _messages.decode(stored.encoded).content != message.content:
            raise MessageIdTaken(message_id)
        turn = self._runner.running if message_id in state.inputs else None
        return Accepted(message_id, turn, first=stored.seq)

    def resolve(self, message: Submit) -> ResolvedSettings:
        """Return the settings of a turn that the message begins.

        Raises:
            ConfigError: the settings cannot be used.
            ParentUnknown: no message has the id of the parent.
            SettingNotAllowed: the message of a limited principal would loosen the settings.
        """
        before = self._before(message)
        overrides = _overrides(message)
        chosen = before if overrides is None else self._resolver.resolve(overrides, before)
        if message.is_limited:
            now = self._resolver.resolved(self._log.projections.settings_history.now)
            refuse_looser(chosen, now, names_directory=overrides is not None and overrides.cwd is not None)
        return chosen

    def _before(self, message: Submit) -> ResolvedSettings:
        """Return the settings that a turn of the message would have if the message contained no settings.

        Raises:
            ConfigError: the settings cannot be used.
            ParentUnknown: no message has the id of the parent.
        """
        try:
            change = self._log.projections.settings_history.after(message.parent_id, self._log.id)
        except EarlierEntriesNeeded as error:
            raise ParentUnknown(error.message_id) from None  # the parent is not in the store either
        return self._resolver.resolved(change)

    def refuse_unusable(
        self, content: tuple[InputItem, ...], read: tuple[InputItem, ...] | None, settings: Settings
    ) -> None:
        """Check that the content of a message can be given to the model in `settings`. `read` has the same meaning
        as for `accept`.

        Raises:
            UnsupportedContent: an item of the content cannot be given to the model, or the items are too large.
        """
        self._refuse_unsupported(content, settings)
        if read is None:
            check_content(content)

    def _refuse_unsupported(self, content: tuple[InputItem, ...], settings: Settings) -> None:
        if is_text(content):
            return
        model = self._runner.model_for(settings)
        for place, item in enumerate(content):
            if why := model.why_unsupported(item):
                raise UnsupportedContent(place, why)

    def _said(self, message: Submit, read: tuple[InputItem, ...], *, joins: bool) -> list[LogPayload]:
        event = UserMessage(
            message_id=message.message_id,
            parent_message_id=UNSET if message.parent_id is None else message.parent_id,
            content=message.content,
            principal=name_of(message.principal),
        )
        entries: list[LogPayload] = [event]
        if joins:
            entries.insert(0, MessageJoined(message_id=message.message_id, principal=message.principal))
        if read is not message.content:
            entries.append(InputRead(content=read, message_id=message.message_id))
        return entries


def _gives_schema(message: Submit) -> bool:
    return message.wanted is not None and message.wanted.get("output_schema") is not None


def _overrides(message: Submit) -> SettingsOverrides | None:
    return None if message.wanted is None else convert(message.wanted, SettingsOverrides)

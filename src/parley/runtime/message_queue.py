"""The message queue of one conversation, in the process that owns the conversation.

Queued messages are stored in the log. When a turn is complete, the next message in the queue begins a turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct, convert
from msgspec.structs import replace

from parley.config.redaction import stored_arguments
from parley.config.types import SettingsOverrides
from parley.conversation.log import LogPayload
from parley.conversation.queue import QueuedMessage
from parley.conversation.records import (
    MessageQueued,
    QueuedMessageEdited,
    QueuedMessageRemoved,
    QueuePaused,
    QueueResumed,
)
from parley.conversation.state import Phase
from parley.errors import SettingNotAllowed, ShuttingDown, VisibleError
from parley.runtime.durable_log import DurableLog
from parley.runtime.errors import NotQueued, QueueFull
from parley.runtime.message_intake import Accepted, MessageIntake
from parley.wire.events import ErrorEvent
from parley.wire.ids import MessageId, Seq
from parley.wire.items import InputItem
from parley.wire.peers import Submit
from parley.wire.principals import PrincipalRef
from parley.wire.text import replace_surrogates

__all__ = ["MAX_QUEUED", "MessageQueue", "Waiting"]

MAX_QUEUED: Final = 100
"""The maximum number of queued messages in one conversation."""

_queued: Final = msgspec.json.Decoder(MessageQueued)
_edited: Final = msgspec.json.Decoder(QueuedMessageEdited)


class Waiting(Struct, frozen=True, kw_only=True):
    """A message that waits in the queue, with its settings, as read from the log."""

    message_id: MessageId
    content: tuple[InputItem, ...]
    read: tuple[InputItem, ...] | None
    """The content including the files that the message names; None if the message names no files."""
    asked: dict[str, Any] | None
    """The settings that the message contains, with secrets removed; None if it contains no settings."""
    principal: PrincipalRef | None
    """The principal that queued the message or last edited it. The turn of the message belongs to this principal.
    None in logs of older versions.
    """
    is_limited: bool
    """True if the role of `principal` is below admin. The message then cannot loosen settings."""
    at: float
    """The time when the message was queued, in seconds since the epoch."""


class MessageQueue:
    """Changes the queue of one conversation. The caller must hold the lease, except for `read`."""

    def __init__(self, durable_log: DurableLog, intake: MessageIntake, *, closing: asyncio.Event) -> None:
        self._log, self._intake, self._closing = durable_log, intake, closing

    @property
    def is_pending(self) -> bool:
        """True if the next queued message can begin a turn now."""
        return self._log.projections.is_queue_pending and not self._closing.is_set()

    @property
    def next(self) -> tuple[MessageId, QueuedMessage] | None:
        """The id of the message that begins the next turn, and the positions of its entries; None if the queue is
        empty.
        """
        return next(iter(self._log.queue.waiting.items()), None)

    def must_queue(self) -> bool:
        """Return whether a message that arrives now must wait in the queue instead of beginning a turn."""
        return self._log.projections.state.phase is not Phase.IDLE or bool(self._log.queue.waiting)

    async def read(self, message_id: MessageId, place: QueuedMessage) -> Waiting:
        """Read a queued message from the log. `place` contains the positions of its entries.

        Raises:
            StoreError: the log cannot be read.
        """
        queued = await self._log.entry_at(place.queued)
        record = _queued.decode(queued.encoded)
        content = queued if place.content == place.queued else await self._log.entry_at(place.content)
        now = record if content is queued else _edited.decode(content.encoded)
        return Waiting(
            message_id=message_id,
            content=now.content,
            read=now.read,
            asked=record.asked,
            principal=now.principal,
            is_limited=now.is_limited,
            at=queued.at,
        )

    # --- changing ----------------------------------------------------------------------

    def add(
        self,
        message: Submit,
        *,
        read: tuple[InputItem, ...] | None,
        until: float,
        accepted: Callable[[Accepted], None],
    ) -> asyncio.Future[None]:
        """Add a message to the queue. Return a future that is done when the message is durable. At that time,
        `accepted` is called, before any reader sees the message.

        `read` is the content including the files that the message names. If another process still holds the write
        lock at the time `until`, the future fails with `WriteLockHeld`.

        Raises:
            SettingNotAllowed: the message of a limited principal would loosen the settings.
            QueueFull: the queue is full.
            UnsupportedContent: an item of the message cannot be given to the model.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
        """
        queue, message_id = self._log.queue, message.message_id
        if len(queue.waiting) >= MAX_QUEUED:
            raise QueueFull(MAX_QUEUED)
        chosen = self._intake.resolve(message)
        self._intake.refuse_unusable(message.content, read, chosen.settings)
        asked = None
        if message.wanted is not None:
            wanted = convert(message.wanted, SettingsOverrides)
            # A relative path is relative to the client's directory, not to the directory of the owner.
            asked = stored_arguments(wanted if wanted.cwd is None else replace(wanted, cwd=chosen.settings.cwd))
        principal = message.principal
        record = MessageQueued(
            message_id=message_id,
            content=message.content,
            read=read,
            asked=asked,
            principal=principal,
            is_limited=message.is_limited,
        )
        first = Seq(self._log.log.last + 1)

        def on_durable() -> None:
            accepted(Accepted(message_id, None, first, is_queued=True))

        changed = queue.changed(added=message_id, principal=principal)
        return self._write(record, changed, until=until, on_durable=on_durable)

    def edit(self, message: Submit, *, read: tuple[InputItem, ...] | None, until: float) -> asyncio.Future[None]:
        """Replace the content of a queued message. The message then belongs to the principal of `message`. Return a
        future that is done when the change is durable.

        The settings of a queued message were checked only for the principal that supplied them. A limited principal
        therefore cannot edit a message that contains settings of another principal. `read` is the content including
        the files that the message names. If another process still holds the write lock at the time `until`, the
        future fails with `WriteLockHeld`.

        Raises:
            NotQueued: the message is not in the queue.
            SettingNotAllowed: the principal is limited, and the message contains settings of another principal.
            UnsupportedContent: an item of the content cannot be given to the model.
            ConfigError: the settings cannot be used.
            ShuttingDown: the server is shutting down.
        """
        self._refuse_unless_queued(message.message_id)
        place = self._log.queue.waiting[message.message_id]
        if message.is_limited and place.has_settings and place.principal != message.principal:
            raise SettingNotAllowed(
                "settings", "of this message belong to another principal; only an admin may edit it"
            )
        self._intake.refuse_unusable(message.content, read, self._intake.resolve(message).settings)
        principal = message.principal
        record = QueuedMessageEdited(
            message_id=message.message_id,
            content=message.content,
            read=read,
            principal=principal,
            is_limited=message.is_limited,
        )
        return self._write(record, self._log.queue.changed(principal=principal), until=until)

    def remove(
        self, message_id: MessageId, *, principal: PrincipalRef | None, until: float
    ) -> asyncio.Future[None]:
        """Remove a queued message. Return a future that is done when the change is durable. If another process
        still holds the write lock at the time `until`, the future fails with `WriteLockHeld`.

        Raises:
            NotQueued: the message is not in the queue.
            ShuttingDown: the server is shutting down.
        """
        self._refuse_unless_queued(message_id)
        changed = self._log.queue.changed(removed=message_id, principal=principal)
        record = QueuedMessageRemoved(message_id=message_id, principal=principal)
        return self._write(record, changed, until=until)

    def pause(
        self, *reason: LogPayload, principal: PrincipalRef | None = None, until: float
    ) -> asyncio.Future[None]:
        """Pause the queue, and append the entries `reason`, which show clients why the queue is paused. Return a
        future that is done when the change is durable.

        `principal` is the principal that pauses the queue; None if the server pauses the queue. If another process
        still holds the write lock at the time `until`, the future fails with `WriteLockHeld`.
        """
        queue = self._log.queue
        changed = replace(queue.changed(principal=principal), paused=bool(queue.waiting))
        return self._write(*reason, QueuePaused(principal=principal), changed, until=until)

    def resume(self, *, principal: PrincipalRef | None, until: float) -> asyncio.Future[None] | None:
        """Resume the queue, and return a future that is done when the change is durable.

        Return None if the queue is not paused or is empty, or if a turn is unfinished. If another process still
        holds the write lock at the time `until`, the future fails with `WriteLockHeld`.
        """
        queue = self._log.queue
        if not queue.is_paused or not queue.waiting or self._log.projections.state.phase is not Phase.IDLE:
            return None
        changed = replace(queue.changed(principal=principal), paused=False)
        return self._write(QueueResumed(principal=principal), changed, until=until)

    def begin(self, message: Waiting, *, until: float) -> asyncio.Future[None]:
        """Begin a turn with the queued message `message`. Return a future that is done when the start of the turn
        is durable.

        If the turn cannot begin, pause the queue and append an event with the reason. If another process still
        holds the write lock at the time `until`, the future fails with `WriteLockHeld`.
        """
        submit = Submit(
            conversation_id=self._log.id,
            content=message.content,
            message_id=message.message_id,
            wanted=message.asked,
            principal=message.principal,
            is_limited=message.is_limited,
        )
        try:
            return self._intake.begin_queued(submit, read=message.read, until=until)
        except ShuttingDown:
            raise
        except VisibleError as error:
            text = replace_surrogates(f"A queued message could not begin its turn: {error}")
            return self.pause(ErrorEvent(message=text, code=error.code), until=until)

    def _refuse_unless_queued(self, message_id: MessageId) -> None:
        if message_id not in self._log.queue.waiting:
            raise NotQueued(message_id)

    def _write(
        self, *payloads: LogPayload, until: float, on_durable: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        if self._closing.is_set():
            raise ShuttingDown
        return self._log.write(*payloads, until=until, on_durable=on_durable)

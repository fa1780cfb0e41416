"""The queue of one conversation. Each queued message begins a turn when all earlier turns have ended.

The queue is a projection: each appended entry updates the queue. The queue contains the positions of messages, not
their content.
"""

from __future__ import annotations

from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from parley.conversation.log import LogPayload
from parley.conversation.records import (
    MessageQueued,
    QueuedMessageEdited,
    QueuedMessageRemoved,
    QueuePaused,
    QueueResumed,
    TurnEnded,
    TurnStarted,
)
from parley.wire.events import QueueChanged, UserMessage
from parley.wire.ids import MessageId, Seq
from parley.wire.principals import PrincipalRef, name_of

__all__ = ["Queue", "QueuedMessage", "SavedQueue"]


class QueuedMessage(Struct, frozen=True, array_like=True):
    """The positions of the records that contain a queued message, and the principal that owns the message."""

    queued: Seq
    """The position of the record that queued the message. This record contains the settings of the message."""
    content: Seq
    """The position of the record that contains the current content. This is the record that queued the message, or
    the record of the last edit.
    """
    principal: PrincipalRef | None = None
    """The principal that queued the message or edited it last; None in logs of older versions of Parley."""
    has_settings: bool = False
    """True if the message contains settings."""


class SavedQueue(Struct, frozen=True, array_like=True):
    """The queue as stored in a checkpoint."""

    waiting: dict[MessageId, QueuedMessage]
    is_paused: bool


class Queue:
    """The projection of the queue of one log."""

    __slots__ = ("is_paused", "known", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[MessageId, QueuedMessage] = {}
        """The queued messages, by id; the next message is first."""
        self.is_paused = False
        """True if no queued message may begin a turn until the pause ends.

        A turn that was not completed, or the record `QueuePaused`, begins the pause. The next turn, the next
        message that is added to the queue, or the record `QueueResumed` ends the pause.
        """
        self.known: dict[MessageId, Seq] = {}
        """The positions of the records that queued messages, by message id, including messages that have left the
        queue. If a position is missing here, the store finds it by message id (`conversation/keys.py`).
        """

    def saved(self) -> SavedQueue:
        """Return the queue as a checkpoint stores it."""
        return SavedQueue(self.waiting, self.is_paused)

    @classmethod
    def restored(cls, saved: SavedQueue) -> Queue:
        """Create the queue from `saved`, its form in a checkpoint."""
        queue = cls()
        queue.waiting, queue.is_paused = saved.waiting, saved.is_paused
        return queue

    def copy(self) -> Queue:
        """Return an independent copy."""
        queue = Queue()
        queue.waiting, queue.is_paused, queue.known = dict(self.waiting), self.is_paused, dict(self.known)
        return queue

    def forget(self, last: Seq) -> None:
        """Remove from memory the positions, up to `last`, of the records that queued messages. The store still
        finds these positions by message id.
        """
        for message_id in [one for one, _ in takewhile(lambda item: item[1] <= last, self.known.items())]:
            del self.known[message_id]

    def changed(
        self,
        *,
        added: MessageId | None = None,
        removed: MessageId | None = None,
        principal: PrincipalRef | None = None,
    ) -> QueueChanged:
        """Return the event that reports a change of the queue to clients. The queue itself is not changed. The
        event contains the ids of the queued messages, without `removed` and with `added` at the end. `principal` is
        the principal that changes the queue.
        """
        ids = [one for one in self.waiting if one != removed] + ([] if added is None else [added])
        paused = self.is_paused and added is None and bool(ids)
        return QueueChanged(messages=tuple(ids), paused=paused, principal=name_of(principal))

    def resumed_by_turn(self, principal: PrincipalRef | None) -> tuple[QueueChanged, ...]:
        """Return a tuple with the event that tells clients that a new turn, begun by `principal`, ends the pause.
        Return an empty tuple if the queue is not paused or has no messages.
        """
        if not self.is_paused or not self.waiting:
            return ()
        return (replace(self.changed(principal=principal), paused=False),)

    def apply(self, payload: LogPayload, seq: Seq) -> None:
        """Update the queue with one entry of the log: `payload` at the position `seq`."""
        match payload:
            case MessageQueued(message_id=message_id, principal=principal, asked=asked):
                if message_id:  # the id is empty in a copy of a conversation, which has no queue
                    self.waiting[message_id] = QueuedMessage(seq, seq, principal, asked is not None)
                    self.known[message_id] = seq
                    self.is_paused = False
            case QueuedMessageEdited(message_id=message_id, principal=principal):
                if message_id in self.waiting:
                    place = self.waiting[message_id]
                    self.waiting[message_id] = replace(place, content=seq, principal=principal)
            case QueuedMessageRemoved(message_id=message_id) | UserMessage(message_id=message_id):
                self.waiting.pop(message_id, None)
            case QueuePaused():
                self.is_paused = True
            case QueueResumed() | TurnStarted():
                self.is_paused = False
            case TurnEnded(why=why):
                self.is_paused = why != "done"
            case _:
                pass

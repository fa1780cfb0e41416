"""All projections of one log, updated with each entry, or restored from a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from parley.conversation.approvals import ApprovalState
from parley.conversation.history import History, HistoryPositions
from parley.conversation.log import Entry, LogPayload
from parley.conversation.records import RECORD_TYPES, CommandOutput, InputRead, record_type
from parley.conversation.settings_history import SavedSettingsHistory, SettingsHistory
from parley.conversation.state import Phase, SavedState, State
from parley.conversation.usage import SavedUsage, UsageTotals
from parley.wire.events import (
    ApplyPatchApprovalRequest,
    ExecApprovalRequest,
    LimitReached,
    TokenCount,
    UserMessage,
    event_type,
)
from parley.wire.ids import START, MessageId, Seq
from parley.wire.items import compact

__all__ = ["Projections"]

Decoders = dict[str, msgspec.json.Decoder[Any]]

_json: Final = msgspec.json.Decoder(msgspec.Raw)


FORMAT: Final = 3
"""The version of checkpoints. One of another version is ignored, and the log is folded from its first entry."""


class _Saved(Struct, frozen=True, array_like=True):
    """A checkpoint before compression."""

    format: int
    position: Seq
    state: SavedState
    history: HistoryPositions
    settings_history: SavedSettingsHistory
    usage: SavedUsage
    granted: dict[str, float]


@cache
def _decoders() -> tuple[Decoders, Decoders]:
    """Return the decoders of the events and records that a projection depends on, by type. They are made at the
    first call, because that takes long and a server starts without them.
    """
    events = (UserMessage, TokenCount, ExecApprovalRequest, ApplyPatchApprovalRequest, LimitReached)
    return (
        {event_type(cls): msgspec.json.Decoder(cls) for cls in events},
        {
            kind: msgspec.json.Decoder(cls)
            for kind, cls in RECORD_TYPES.items()
            if kind != record_type(CommandOutput)
        },
    )


class Projections:
    """All projections of one log."""

    __slots__ = ("_root", "approvals", "history", "position", "settings_history", "state", "usage")

    def __init__(self, root: MessageId | None = None) -> None:
        """Create projections of an empty log. `root`, the id of the conversation, is the parent of a branch that
        begins before the first message.
        """
        self._root = root
        self.state, self.approvals, self.usage = State(), ApprovalState(), UsageTotals()
        self.history, self.settings_history = History(root), SettingsHistory(root)
        self.position = START
        """The position of the last entry that was applied."""

    @property
    def is_settled(self) -> bool:
        """True if a checkpoint can be made: no approval is open, no input waits, and every call has its output."""
        is_asking = self.state.phase is not Phase.IDLE and not self.approvals.is_settled
        return not is_asking and self.history.is_settled

    def copy(self) -> Projections:
        """Return an independent copy without the texts of the history. The conversation must be idle."""
        copied = Projections(self._root)
        copied.position = self.position
        copied.state, copied.history, copied.approvals = (
            self.state.copy(),
            self.history.copy(),
            self.approvals.copy(),
        )
        copied.settings_history, copied.usage = self.settings_history.copy(), self.usage.copy()
        return copied

    @property
    def size(self) -> int:
        """The approximate number of items in a checkpoint."""
        return self.history.size + self.state.turns

    def knows(self, message_id: MessageId) -> bool:
        """Return whether a branch can begin at a message. If False and the message exists, the caller must fold
        the log from its first entry.
        """
        return self.history.knows(message_id) and self.settings_history.knows(message_id)

    def forget(self, last: Seq) -> None:
        """Forget the messages up to a position: a store finds them by their keys."""
        forgotten = self.state.forget(last)
        self.history.forget(forgotten)
        self.settings_history.forget(forgotten)

    def checkpoint(self) -> bytes | None:
        """Encode the projections: positions, not texts. None if they are not settled."""
        if not self.is_settled:
            return None
        saved = _Saved(
            FORMAT,
            self.position,
            self.state.saved(),
            self.history.positions(),
            self.settings_history.saved(),
            self.usage.saved(),
            self.approvals.granted,
        )
        return zlib.compress(msgspec.msgpack.encode(saved))

    @classmethod
    def restored(cls, data: bytes, root: MessageId | None = None) -> Projections:
        """Decode a checkpoint.

        Texts of the history are missing (`History.missing`), as are messages and settlements of approvals, which a
        store finds by their keys. An entry that refers to an earlier message raises `EarlierEntriesNeeded`.

        Raises:
            ValueError: the data is not a checkpoint, or one of another version.
        """
        projections = cls(root)
        try:
            saved = msgspec.msgpack.decode(zlib.decompress(data), type=_Saved)
            if saved.format != FORMAT:
                raise ValueError(f"a checkpoint of format {saved.format}")
            projections.position = saved.position
            projections.state = State.restored(saved.state, saved.position)
            projections.history = History.restored(saved.history, saved.position, root)
            projections.settings_history = SettingsHistory.restored(saved.settings_history, root)
            projections.usage = UsageTotals.restored(saved.usage)
        except (zlib.error, IndexError, OverflowError) as error:
            raise ValueError(f"not a checkpoint: {error}") from error
        projections.approvals = ApprovalState.restored(projections.state.event_id, saved.granted)
        return projections

    def supply(self, entry: Entry) -> None:
        """Add the text of an entry that the history misses. Raises ValueError."""
        events, records = _decoders()
        decoder = (events if entry.is_event else records).get(entry.type)
        if decoder is not None:
            self.history.supply(entry.seq, _compacted(decoder.decode(entry.encoded)))

    def apply(self, payload: LogPayload, *, at: float) -> None:
        """Apply one entry.

        Raises:
            ValueError: the log would contradict itself.
        """
        self.position = Seq(self.position + 1)
        self.state.apply(payload, self.position, at=at)
        self.history.apply(payload, self.position)
        self.approvals.apply(payload, at=at)
        self.settings_history.apply(payload)
        self.usage.apply(payload, at=at)

    def replay(self, entries: Iterable[Entry]) -> None:
        """Apply stored entries. Entries of types that only a newer version knows are ignored.

        Raises:
            ValueError: the log contradicts itself, or an entry cannot be read.
        """
        events, records = _decoders()
        for entry in entries:
            decoder = (events if entry.is_event else records).get(entry.type)
            if decoder is not None:
                self.position = Seq(entry.seq - 1)
                self.apply(_compacted(decoder.decode(entry.encoded)), at=entry.at)
                continue
            self.position = entry.seq
            if entry.is_event:
                _refuse_no_json(entry.encoded)  # clients are sent it unchanged
            self.state.skip(entry.seq, at=entry.at)


def _refuse_no_json(data: bytes) -> None:
    """Check that a body is JSON. Raises ValueError."""
    _json.decode(data)
    if not data.isascii():
        data.decode()


def _compacted(payload: LogPayload) -> LogPayload:
    """Return a payload as it is kept in memory: long texts of the user as JSON."""
    if (
        isinstance(payload, UserMessage | InputRead)
        and (content := compact(payload.content)) is not payload.content
    ):
        return replace(payload, content=content)
    return payload

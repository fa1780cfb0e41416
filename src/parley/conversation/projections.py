"""All projections of one log. They are updated with each entry, or restored from a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from parley.conversation.approvals import ApprovalState, Grant
from parley.conversation.history import History, HistoryPositions
from parley.conversation.log import Entry, LogPayload
from parley.conversation.queue import Queue, SavedQueue
from parley.conversation.records import RECORD_TYPES, CommandOutput, InputRead, record_type
from parley.conversation.settings_history import SavedSettingsHistory, SettingsHistory
from parley.conversation.state import Phase, SavedState, State
from parley.conversation.usage import SavedUsage, UsageTotals
from parley.wire.events import (
    ApplyPatchApprovalRequest,
    ExecApprovalRequest,
    LimitReached,
    TaskComplete,
    TokenCount,
    UserMessage,
    WorkspaceUpdated,
    event_type,
)
from parley.wire.ids import START, MessageId, Seq
from parley.wire.items import compact
from parley.wire.principals import PrincipalRef

__all__ = ["Projections", "prepare_decoder"]

Decoders = dict[str, msgspec.json.Decoder[Any]]

_json: Final = msgspec.json.Decoder(msgspec.Raw)


FORMAT: Final = 9
"""The version of the checkpoint format. A checkpoint with another version is ignored, and the log is then applied
from its first entry.
"""


class _Saved(Struct, frozen=True, array_like=True):
    """The content of a checkpoint before compression."""

    format: int
    position: Seq
    state: SavedState
    history: HistoryPositions
    settings_history: SavedSettingsHistory
    usage: SavedUsage
    began_by: PrincipalRef | None
    joined_by: tuple[PrincipalRef | None, ...]
    granted: dict[str, Grant]
    queue: SavedQueue
    workspace: WorkspaceUpdated | None


@cache
def _decoders() -> tuple[Decoders, Decoders]:
    """Return two mappings from entry types to decoders: one for the events that a projection uses, and one for the
    records that a projection uses.

    The decoders are created at the first call, because creating them is slow and a server can start without them.
    """
    events = (
        UserMessage,
        TaskComplete,
        TokenCount,
        ExecApprovalRequest,
        ApplyPatchApprovalRequest,
        LimitReached,
        WorkspaceUpdated,
    )
    return (
        {event_type(cls): msgspec.json.Decoder(cls) for cls in events},
        {
            kind: msgspec.json.Decoder(cls)
            for kind, cls in RECORD_TYPES.items()
            if kind != record_type(CommandOutput)
        },
    )


@cache
def prepare_decoder() -> msgspec.msgpack.Decoder[_Saved]:
    """Return the decoder of checkpoints.

    Call this function in the event loop before a thread decodes a checkpoint. The first call examines the type of a
    checkpoint, which msgspec does not support in two threads at the same time: the process can crash.
    """
    return msgspec.msgpack.Decoder(_Saved)


class Projections:
    """The projections of one log, which are updated together and stored together in a checkpoint."""

    __slots__ = (
        "_root",
        "approvals",
        "history",
        "position",
        "queue",
        "settings_history",
        "state",
        "usage",
        "workspace",
    )

    def __init__(self, root: MessageId | None = None) -> None:
        """Create the projections of an empty log.

        `root` is the id of the conversation. It is the parent of a branch that begins before the first message.
        """
        self._root = root
        self.state, self.approvals, self.usage = State(), ApprovalState(), UsageTotals()
        self.history, self.settings_history = History(root), SettingsHistory(root)
        self.queue = Queue()
        self.workspace: WorkspaceUpdated | None = None
        """The last event `workspace_updated`, which describes the newest commit in the conversation's worktree;
        None if there was no such event.
        """
        self.position = START
        """The position of the last applied entry."""

    @property
    def is_settled(self) -> bool:
        """True if a checkpoint can be made: no approval is open, all input was sent to the model, and each tool
        call has its output.
        """
        is_asking = self.state.phase is not Phase.IDLE and not self.approvals.is_settled
        return not is_asking and self.history.is_settled

    def copy(self) -> Projections:
        """Return an independent copy without the content of the history items. No approval may be open, all input
        must have been sent to the model, and each tool call must have its output (`is_settled`).
        """
        copied = Projections(self._root)
        copied.position = self.position
        copied.state, copied.history, copied.approvals = (
            self.state.copy(),
            self.history.copy(),
            self.approvals.copy(),
        )
        copied.settings_history, copied.usage = self.settings_history.copy(), self.usage.copy()
        copied.queue, copied.workspace = self.queue.copy(), self.workspace
        return copied

    @property
    def is_queue_pending(self) -> bool:
        """True if no turn is running and a queued message may begin the next turn."""
        return self.state.phase is Phase.IDLE and bool(self.queue.waiting) and not self.queue.is_paused

    @property
    def size(self) -> int:
        """The approximate number of items in a checkpoint, which determines how long it takes to make a
        checkpoint.
        """
        return self.history.size + self.state.turns

    def knows(self, message_id: MessageId) -> bool:
        """Return whether a branch can begin at the message `message_id` without reading earlier entries. If the
        projections contain every message of the log, the result is True for every id, even for an id that no
        message has.

        If the result is False, the caller must create new projections and apply the log from its first entry.
        """
        return self.history.knows(message_id) and self.settings_history.knows(message_id)

    def forget(self, last: Seq) -> None:
        """Remove the messages up to the position `last` from the projections, to free memory. The store still finds
        the positions of these messages by message id (`conversation/keys.py`).
        """
        forgotten = self.state.forget(last)
        self.history.forget(forgotten)
        self.settings_history.forget(forgotten)
        self.queue.forget(last)

    def checkpoint(self) -> bytes | None:
        """Encode the projections as a checkpoint, without the content of the history items. Return None if no
        checkpoint can be made now (`is_settled`).
        """
        if not self.is_settled:
            return None
        saved = _Saved(
            FORMAT,
            self.position,
            self.state.saved(),
            self.history.positions(),
            self.settings_history.saved(),
            self.usage.saved(),
            self.approvals.began_by,
            self.approvals.joined_by,
            self.approvals.granted,
            self.queue.saved(),
            self.workspace,
        )
        return zlib.compress(msgspec.msgpack.encode(saved))

    @classmethod
    def restored(cls, data: bytes, root: MessageId | None = None) -> Projections:
        """Create the projections from `data`, an encoded checkpoint. `root` is the same as in `__init__`.

        The projections lack the content of the history items (`History.missing`). They also lack the messages and
        approval settlements before the checkpoint. The store finds these entries by message id or approval id
        (`conversation/keys.py`). If an entry begins a branch at one of these messages, `apply` raises
        `EarlierEntriesNeeded`.

        Raises:
            ValueError: the data is not a checkpoint, or has another version.
        """
        projections = cls(root)
        try:
            saved = prepare_decoder().decode(zlib.decompress(data))
            if saved.format != FORMAT:
                raise ValueError(f"a checkpoint of format {saved.format}")
            projections.position = saved.position
            projections.state = State.restored(saved.state, saved.position)
            projections.history = History.restored(saved.history, saved.position, root)
            projections.settings_history = SettingsHistory.restored(saved.settings_history, root)
            projections.usage = UsageTotals.restored(saved.usage)
            projections.queue, projections.workspace = Queue.restored(saved.queue), saved.workspace
        except (zlib.error, IndexError, OverflowError) as error:
            raise ValueError(f"not a checkpoint: {error}") from error
        event_id = projections.state.event_id
        projections.approvals = ApprovalState.restored(event_id, saved.began_by, saved.joined_by, saved.granted)
        return projections

    def supply(self, entry: Entry) -> None:
        """Store the content of a history item in memory again. `entry` is the entry from the store that contains
        the item.
        """
        events, records = _decoders()
        decoder = (events if entry.is_event else records).get(entry.type)
        if decoder is not None:
            self.history.supply(entry.seq, _compacted(decoder.decode(entry.encoded)))

    def apply(self, payload: LogPayload, *, at: float) -> None:
        """Update all projections with one entry of the log. `at` is the time of the entry, in seconds since the
        epoch.
        """
        self.position = Seq(self.position + 1)
        self.state.apply(payload, self.position, at=at)
        self.history.apply(payload, self.position)
        self.approvals.apply(payload, at=at)
        self.settings_history.apply(payload)
        self.usage.apply(payload, at=at)
        self.queue.apply(payload, self.position)
        if isinstance(payload, WorkspaceUpdated):
            self.workspace = payload

    def replay(self, entries: Iterable[Entry]) -> None:
        """Apply stored entries to all projections. An entry of a type that no projection uses changes only the
        position and the time of the last activity.
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
                _refuse_no_json(entry.encoded)  # the entry is sent to clients unchanged
            self.state.skip(entry.seq, at=entry.at)


def _refuse_no_json(data: bytes) -> None:
    """Check that `data` is valid JSON in UTF-8.

    Raises:
        ValueError: `data` is not valid JSON in UTF-8.
    """
    _json.decode(data)
    if not data.isascii():
        data.decode()


def _compacted(payload: LogPayload) -> LogPayload:
    """Return `payload` as it is held in memory. To save memory, long text from the user stays encoded as JSON."""
    if (
        isinstance(payload, UserMessage | InputRead)
        and (content := compact(payload.content)) is not payload.content
    ):
        return replace(payload, content=content)
    return payload

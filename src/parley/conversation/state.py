"""The state of a conversation, which is a projection of its log, and the table of transitions between its phases.

Each appended entry updates the projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import accumulate, takewhile
from typing import Final, Literal

from msgspec import Struct, UnsetType

from parley.conversation.log import LogPayload
from parley.conversation.records import (
    ApprovalRequest,
    ApprovalSettlement,
    HistoryCompacted,
    Record,
    Renamed,
    SettingsChosen,
    TurnEnded,
    TurnStarted,
)
from parley.wire.events import EventBase, TaskComplete, TokenCount, TurnEndReason, UserMessage
from parley.wire.ids import START, EventId, MessageId, Seq
from parley.wire.items import beginning_of
from parley.wire.tools import NO_TOKENS, Tokens

__all__ = ["FAILURES", "NEXT", "Compaction", "Phase", "SavedState", "State", "TurnOutcome"]

Compaction = Literal["pending", "done"]
"""The progress of a turn that was begun to compact the history: `pending` before the turn has compacted the
history, and `done` after that.
"""

TITLE_LENGTH: Final = 80
OUTCOME_LENGTH: Final = 300
"""The maximum number of characters in `TurnOutcome.text`."""
FAILURES: Final[tuple[TurnEndReason, ...]] = ("failed", "restarted", "stopped")
"""The reasons for the end of a turn that count as failures: the turn failed, its server was stopped, or the turn
was orphaned.
"""

_CONTROLS: Final = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029), " ")
"""A table for `str.translate` that replaces line breaks and control characters with spaces, so that a title fits on
one line and cannot control a terminal.
"""


class Phase(Enum):
    IDLE = "idle"
    RUNNING = "running"
    ASKING = "asking"


NEXT: Final[Mapping[tuple[Phase, type[Record]], Phase]] = {
    (Phase.IDLE, TurnStarted): Phase.RUNNING,
    (Phase.RUNNING, ApprovalRequest): Phase.ASKING,
    (Phase.ASKING, ApprovalSettlement): Phase.RUNNING,
    (Phase.RUNNING, TurnEnded): Phase.IDLE,
}
"""The transitions between phases: maps a phase and the type of a record to the next phase. A type of record that
does not occur here does not change the phase.
"""

_MOVES: Final = frozenset(record for _, record in NEXT)


class TurnOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a turn that has ended, as lists of conversations show it."""

    seq: Seq
    """The position of the last event of the turn."""
    at: float
    """The time when the turn ended, in seconds since the epoch."""
    reason: TurnEndReason
    text: str = ""
    """The beginning of the agent's last message or, if the turn was not completed, of the error message."""
    code: str | None = None
    """The error code of a failed turn; None for any other turn."""

    @property
    def has_failed(self) -> bool:
        """True if the turn ended before the agent had finished, unless a person interrupted it."""
        return self.reason in FAILURES


class SavedState(Struct, frozen=True, array_like=True):
    """The state of a conversation (the projection `State`) in the form that a checkpoint stores."""

    phase: Phase
    inputs: dict[MessageId, Seq]
    model: str
    cwd: str
    title: str
    updated_at: float
    tokens: Tokens | None
    event_id: EventId | None
    since: float
    counter: int
    numbers: tuple[int, ...]
    """The turn ids that are numbers, in ascending order. Each number is stored as the difference from the previous
    number.
    """
    names: tuple[EventId, ...]
    """The turn ids that are not numbers."""
    ended: TurnEndReason | None
    outcome: TurnOutcome | None
    last_message: str
    compaction: Compaction | None = None


class State:
    """The projection of the current state of one conversation: its phase, its title, its last turn, and the
    positions of its messages.
    """

    __slots__ = (
        "_counter",
        "_last_message",
        "_names",
        "_numbers",
        "_seq",
        "compaction",
        "cwd",
        "ended",
        "event_id",
        "inputs",
        "messages",
        "model",
        "outcome",
        "phase",
        "since",
        "title",
        "tokens",
        "updated_at",
    )

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.model = ""
        self.cwd = ""
        self.title = ""
        self.updated_at = 0.0
        self.tokens: Tokens | None = None
        self.event_id: EventId | None = None
        """The id of the running turn or, if none is running, of the last turn; None before the first turn."""
        self.since = 0.0
        """The start time of the turn `event_id`, in seconds since the epoch."""
        self.ended: TurnEndReason | None = None
        """The reason why the last turn ended; None before the end of the first turn. Turns that only compacted the
        history are ignored.
        """
        self.compaction: Compaction | None = None
        """The progress of the compaction by the turn `event_id`; None if the turn was not begun to compact the
        history.
        """
        self.outcome: TurnOutcome | None = None
        """The outcome of the last turn that has ended; None before the end of the first turn."""
        self.inputs: dict[MessageId, Seq] = {}
        """The messages that began or joined the turn `event_id`, with their positions."""
        self.messages: dict[MessageId, Seq] = {}
        """The positions of messages, in the order of the log. Messages before a checkpoint and messages that
        `forget` has removed are missing; the store finds their positions by message id (`conversation/keys.py`).
        """
        self._seq = START
        """The position of the last applied entry."""
        self._last_message = ""
        """The beginning of the agent's last message in the turn, from the event `task_complete`; empty before this
        event.
        """
        self._numbers = {0}  # 0 is the id of `session_configured`
        """The turn ids in use that are numbers."""
        self._names: set[EventId] = set()
        """The turn ids in use that are not numbers."""
        self._counter = 0

    def copy(self) -> State:
        """Return an independent copy."""
        state = State()
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(state, name, value.copy() if isinstance(value, dict | set) else value)
        return state

    def saved(self) -> SavedState:
        """Return the state as a checkpoint stores it."""
        numbers = sorted(self._numbers)
        return SavedState(
            self.phase,
            self.inputs,
            self.model,
            self.cwd,
            self.title,
            self.updated_at,
            self.tokens,
            self.event_id,
            self.since,
            self._counter,
            tuple(number - before for before, number in zip((0, *numbers), numbers, strict=False)),
            tuple(sorted(self._names)),
            self.ended,
            self.outcome,
            self._last_message,
            self.compaction,
        )

    @classmethod
    def restored(cls, saved: SavedState, last: Seq) -> State:
        """Create the state from `saved`, its form in a checkpoint. `last` is the position of the last applied
        entry. The positions of messages before the checkpoint are missing; the store finds them by message id
        (`conversation/keys.py`).
        """
        state = cls()
        state._seq, state.phase, state.inputs = last, saved.phase, saved.inputs
        state.model, state.cwd, state.title = saved.model, saved.cwd, saved.title
        state.updated_at, state.tokens = saved.updated_at, saved.tokens
        state.event_id, state.since, state._counter = saved.event_id, saved.since, saved.counter
        state.ended, state.outcome, state._last_message = saved.ended, saved.outcome, saved.last_message
        state.compaction = saved.compaction
        state._numbers, state._names = set(accumulate(saved.numbers)), set(saved.names)
        return state

    @property
    def turns(self) -> int:
        """The number of turn ids in use, including the id 0, which belongs to the event `session_configured`."""
        return len(self._numbers) + len(self._names)

    @property
    def only_compacts(self) -> bool:
        """True if the running turn or, if none is running, the last turn was begun to compact the history, and no
        message has joined that turn.
        """
        return self.compaction is not None and not self.inputs

    def forget(self, last: Seq) -> list[MessageId]:
        """Remove the messages up to the position `last` from `messages`, to free memory. Return the ids of these
        messages.
        """
        forgotten = [one for one, _ in takewhile(lambda item: item[1] <= last, self.messages.items())]
        for message_id in forgotten:
            del self.messages[message_id]
        return forgotten

    def apply(self, payload: LogPayload, seq: Seq | None = None, *, at: float) -> None:
        """Update the projection with one entry: `payload` at the position `seq`; the default is the next position.
        `at` is the time of the entry, in seconds since the epoch.

        Raises:
            ValueError: the entry is a record that cannot occur in the current phase, so the log is invalid.
        """
        self._seq = Seq(self._seq + 1) if seq is None else seq
        self.updated_at = at
        if isinstance(payload, EventBase):
            self._apply_event(payload)
            return
        if type(payload) in _MOVES:
            if (move := (self.phase, type(payload))) not in NEXT:
                raise ValueError(f"{type(payload).__name__} while {self.phase.value}")
            self.phase = NEXT[move]
        match payload:
            case SettingsChosen(model=model, cwd=cwd):
                self.model, self.cwd = model, cwd
            case Renamed(title=title):
                self.title = _on_one_line(title)
            case TurnStarted(event_id=event_id, compacts=compacts):
                self.event_id, self.since = event_id, at
                self.compaction = "pending" if compacts is True else None
                self.inputs, self._last_message = {}, ""
                if _is_number(event_id):
                    self._numbers.add(int(event_id))
                else:
                    self._names.add(event_id)
            case HistoryCompacted() if self.compaction is not None:
                self.compaction = "done"
            case TurnEnded(why=why, message=message, code=code):
                if not self.only_compacts:
                    self.ended = why
                self.outcome = TurnOutcome(
                    seq=Seq(self._seq - 1),  # `turn_ended` comes directly after the last event
                    at=at,
                    reason=why,
                    text=self._last_message if message is None else message[:OUTCOME_LENGTH],
                    code=None if isinstance(code, UnsetType) else code,
                )
            case _:
                pass

    def skip(self, seq: Seq, *, at: float) -> None:
        """Update only the position and the time of the last activity. Call this method for an entry that changes
        nothing else in the state.
        """
        self._seq, self.updated_at = seq, at

    def _apply_event(self, event: EventBase) -> None:
        match event:
            case UserMessage(message_id=message_id, content=content):
                self.messages[message_id] = self.inputs[message_id] = self._seq
                if not self.title:
                    self.title = _on_one_line(beginning_of(content).strip().partition("\n")[0])[:TITLE_LENGTH]
            case TokenCount():
                self.tokens = (self.tokens or NO_TOKENS).plus(event)
            case TaskComplete(last_agent_message=text):
                self._last_message = (text or "")[:OUTCOME_LENGTH]
            case _:
                pass

    def next_event_id(self, preferred: EventId | None = None) -> EventId:
        """Return an unused id for the next turn: `preferred` if it is unused, otherwise the next number."""
        if preferred is not None:
            is_used = int(preferred) in self._numbers if _is_number(preferred) else preferred in self._names
            if not is_used:
                return preferred
        counter = self._counter + 1
        while counter in self._numbers:
            counter += 1
        self._counter = counter
        return EventId(str(counter))


def _is_number(event_id: EventId) -> bool:
    """Return whether a turn id is a decimal number of at most 15 digits without leading zeros."""
    return len(event_id) < 16 and event_id.isascii() and event_id.isdigit() and str(int(event_id)) == event_id


def _on_one_line(text: str) -> str:
    return text.translate(_CONTROLS).strip()

"""The state of a conversation, as its log describes it: the table of phases, and a projection.

The projection is given every entry as it is appended.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import accumulate
from typing import Final

from msgspec import Struct

from parley.conversation.log import LogPayload
from parley.conversation.records import (
    QuestionAsked,
    QuestionSettled,
    Record,
    Renamed,
    SettingsChosen,
    TurnEnded,
    TurnStarted,
)
from parley.wire.events import EventBase, TokenCount, UserMessage
from parley.wire.ids import EventId, MessageId
from parley.wire.items import InputItem, beginning_of
from parley.wire.tools import Tokens

__all__ = ["NEXT", "Phase", "SavedState", "State"]

TITLE_LENGTH: Final = 80

_CONTROLS: Final = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029), " ")
"""Characters that would end a line of a list or control a terminal."""


class Phase(Enum):
    IDLE = "idle"
    RUNNING = "running"
    ASKING = "asking"


NEXT: Final[Mapping[tuple[Phase, type[Record]], Phase]] = {
    (Phase.IDLE, TurnStarted): Phase.RUNNING,
    (Phase.RUNNING, QuestionAsked): Phase.ASKING,
    (Phase.ASKING, QuestionSettled): Phase.RUNNING,
    (Phase.RUNNING, TurnEnded): Phase.IDLE,
}
"""The transitions between phases. A record that is not listed does not change the phase."""

_MOVES: Final = frozenset(record for _, record in NEXT)


class SavedState(Struct, frozen=True, array_like=True):
    """The state of an idle conversation, as a checkpoint stores it."""

    model: str
    cwd: str
    title: str
    updated_at: float
    tokens: Tokens | None
    event_id: EventId | None
    since: float
    counter: int
    numbers: tuple[int, ...]
    """The ids of turns that are numbers, in order, each as the difference from the one before."""
    names: tuple[EventId, ...]
    """All other ids of turns."""


class State:
    """The projection of the state of one conversation."""

    __slots__ = (
        "_counter",
        "_event_ids",
        "cwd",
        "event_id",
        "inputs",
        "messages",
        "model",
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
        """The running turn, or the last one."""
        self.since = 0.0
        """The start of that turn, in seconds since the epoch."""
        self.inputs: dict[MessageId, tuple[InputItem, ...]] = {}
        """The messages of the user in that turn."""
        self.messages: dict[MessageId, tuple[InputItem, ...]] = {}
        """The messages by id."""
        self._event_ids: set[EventId] = {EventId("0")}  # that of `session_configured`
        self._counter = 0

    def saved(self) -> SavedState:
        """Return the state for a checkpoint. The conversation must be idle."""
        numbers = sorted(int(one) for one in self._event_ids if _is_number(one))
        return SavedState(
            self.model,
            self.cwd,
            self.title,
            self.updated_at,
            self.tokens,
            self.event_id,
            self.since,
            self._counter,
            tuple(number - before for before, number in zip((0, *numbers), numbers, strict=False)),
            tuple(sorted(one for one in self._event_ids if not _is_number(one))),
        )

    @classmethod
    def restored(cls, saved: SavedState) -> State:
        """Return the state without its messages: a store finds them by their keys."""
        state = cls()
        state.model, state.cwd, state.title = saved.model, saved.cwd, saved.title
        state.updated_at, state.tokens = saved.updated_at, saved.tokens
        state.event_id, state.since, state._counter = saved.event_id, saved.since, saved.counter
        state._event_ids = {EventId(str(number)) for number in accumulate(saved.numbers)}
        state._event_ids.update(saved.names)
        return state

    def apply(self, payload: LogPayload, *, at: float) -> None:
        """Apply one entry.

        Raises:
            ValueError: a turn cannot start or end here; the log would contradict itself.
        """
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
            case TurnStarted(event_id=event_id):
                self.event_id, self.since = event_id, at
                self.inputs = {}
                self._event_ids.add(event_id)
            case _:
                pass

    def _apply_event(self, event: EventBase) -> None:
        match event:
            case UserMessage(message_id=message_id, content=content):
                self.messages[message_id] = self.inputs[message_id] = content
                if not self.title:
                    self.title = _on_one_line(beginning_of(content).strip().partition("\n")[0])[:TITLE_LENGTH]
            case TokenCount():
                self.tokens = _sum(self.tokens, event)
            case _:
                pass

    def next_event_id(self, wanted: EventId | None = None) -> EventId:
        """Return an unused id for a turn: the wanted one if it is unused, else the next number."""
        if wanted is not None and wanted not in self._event_ids:
            return wanted
        counter = self._counter + 1
        while EventId(str(counter)) in self._event_ids:
            counter += 1
        self._counter = counter
        return EventId(str(counter))


def _is_number(event_id: EventId) -> bool:
    """Return whether an id is a number as `str` writes it, of a size that a checkpoint can hold."""
    return len(event_id) < 16 and event_id.isascii() and event_id.isdigit() and str(int(event_id)) == event_id


def _on_one_line(text: str) -> str:
    return text.translate(_CONTROLS).strip()


def _sum(so_far: Tokens | None, more: TokenCount) -> Tokens:
    before = so_far or Tokens(
        input_tokens=0, cached_input_tokens=0, output_tokens=0, reasoning_output_tokens=0, total_tokens=0
    )
    return Tokens(
        input_tokens=before.input_tokens + more.input_tokens,
        cached_input_tokens=before.cached_input_tokens + (more.cached_input_tokens or 0),
        output_tokens=before.output_tokens + more.output_tokens,
        reasoning_output_tokens=before.reasoning_output_tokens + (more.reasoning_output_tokens or 0),
        total_tokens=before.total_tokens + more.total_tokens,
    )

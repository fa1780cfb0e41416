"""The log as messages for a model: a fold, in a form that every model API can be given.

The rules (docs/protocol.md, history): input first; then the items of each response in the order
they came, each call directly followed by its one output; input that came while the model was
answering stands behind the outputs of that response, once. Whatever becomes of a turn, no input
is taken back.

A message that names an earlier one as its parent begins a branch: the model sees what it saw at
the end of that message's turn, and nothing that came after. A summary stands in place of what it
sums up, from the turn on in which it was made.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import Final

from msgspec import UNSET, Struct

from parley.conversation.log import LogPayload
from parley.conversation.records import (
    CallItem,
    CallOutput,
    HistoryCompacted,
    InputRead,
    InputRefused,
    MessageFields,
    MessageItem,
    ModelAsked,
    ModelItem,
    ModelSaid,
    OpaqueItem,
    TurnEnded,
    TurnStarted,
)
from parley.wire.events import UserMessage
from parley.wire.ids import CallId, MessageId
from parley.wire.items import InputItem, TextItem

__all__ = ["ABORTED", "REFUSED", "History", "HistoryItem", "OutputItem", "UserItem"]

ABORTED: Final = "aborted"
"""What the model is told of a call that an interrupt cut short."""


REFUSED: Final = "\n[Left out: an image or file that the provider refused]"
"""What stands in its place."""


class UserItem(Struct, frozen=True):
    """Something the user said."""

    content: tuple[InputItem, ...]


class OutputItem(Struct, frozen=True):
    """What came of a call."""

    call_id: CallId
    output: str


HistoryItem = UserItem | ModelItem | OutputItem


class _Turn:
    """One turn's part of the history, and the turn it follows: branches share what is behind them."""

    __slots__ = ("before", "cuts", "places")

    def __init__(self, before: _Turn | None) -> None:
        self.before = before
        self.places: list[HistoryItem | None] = []
        """Every call keeps the place behind it free for its output."""
        self.cuts: list[int] = []
        """Places where everything before is complete: no call stands there without its output."""


class History:
    """The fold."""

    __slots__ = ("_turn", "_turns", "_unanswered", "waiting")

    def __init__(self) -> None:
        self.waiting: list[UserItem] = []
        """Input the model has not been sent."""
        self._turn = _Turn(None)
        self._turns: dict[MessageId, _Turn] = {}
        """The turn that took each message."""
        self._unanswered: dict[CallId, deque[int]] = {}
        """Where in the turn the outputs that are still missing belong. A model may use an id twice."""

    @property
    def items(self) -> list[HistoryItem]:
        """What the next request sends, without what is waiting."""
        return [item for turn in self._branch() for item in turn.places if item is not None]

    @property
    def cuts(self) -> list[int]:
        """Indices in `items` before which a response of the model, and the outputs of its calls, have ended. What
        stands before may be replaced by a summary."""
        found: list[int] = []
        begin = 0
        for turn in self._branch():
            found += (begin + cut for cut in turn.cuts)
            begin += len(turn.places)
        return found

    def apply(self, happened: LogPayload) -> None:
        """Take in one entry; most do not concern the model."""
        match happened:
            case TurnStarted():
                self._turn = _Turn(self._turn)
            case UserMessage(message_id=message_id, content=content, parent_message_id=parent):
                if parent is not UNSET:  # one that is no message is the conversation itself: nothing is before it
                    self._turn.before = self._turns.get(parent)
                self._turns[message_id] = self._turn
                self.waiting.append(UserItem(content))
            case InputRead(content=content, message_id=None):
                self.waiting.append(UserItem(content))
            case InputRead(content=content):
                self.waiting[-1] = UserItem(content)
            case ModelSaid(item=item):
                self._turn.places.append(item)
                if isinstance(item, CallItem):
                    self._unanswered.setdefault(item.call_id, deque()).append(len(self._turn.places))
                    self._turn.places.append(None)
            case CallOutput(call_id=call_id, output=output):
                self._answer(call_id, output)
            case InputRefused():
                self._leave_out_what_is_new()
            case HistoryCompacted(summary=summary, replaced=replaced):
                self._compact(summary, replaced)
            case ModelAsked(inputs=inputs):
                self._send_waiting(len(self.waiting) if inputs is None else inputs)
            case TurnEnded():
                self._send_waiting(len(self.waiting))
            case _:
                pass

    def _send_waiting(self, number: int) -> None:
        self._turn.cuts.append(len(self._turn.places))
        self._turn.places += self.waiting[:number]
        del self.waiting[:number]

    def for_request(self) -> tuple[list[HistoryItem], list[int]]:
        """Return the items of the next request, with the input that waits, and their cuts."""
        items = self.items
        return [*items, *self.waiting], [*self.cuts, len(items)]

    @property
    def open_calls(self) -> tuple[CallItem, ...]:
        """Calls without an output, in order; a turn may not end before each has one."""
        before = (self._turn.places[place - 1] for place in sorted(chain(*self._unanswered.values())))
        return tuple(item for item in before if isinstance(item, CallItem))

    @property
    def unanswered(self) -> tuple[CallId, ...]:
        """The ids of these."""
        return tuple(call.call_id for call in self.open_calls)

    def _branch(self) -> list[_Turn]:
        """The turns that the model sees, the first one first."""
        turns: list[_Turn] = []
        turn: _Turn | None = self._turn
        while turn is not None:
            turns.append(turn)
            turn = turn.before
        return turns[::-1]

    def _compact(self, summary: str, replaced: int) -> None:
        """What came before this turn stays as it is, for branches that begin there."""
        compacted = self._turn
        kept, cuts = self.items[replaced:], [cut - replaced + 1 for cut in self.cuts if cut >= replaced]
        compacted.places = [UserItem((TextItem(text=summary),)), *kept]
        compacted.cuts = cuts
        compacted.before = None

    @property
    def has_new_attachments(self) -> bool:
        """Whether there are images or files that the model was sent, if at all, without ever answering."""
        return bool(self._new_attachments())

    def _new_attachments(self) -> list[tuple[_Turn, int, UserItem]]:
        """In which turn they are, and where in it; turns before may have ended without an answer."""
        found: list[tuple[_Turn, int, UserItem]] = []
        for turn in reversed(self._branch()):
            for place in reversed(range(len(turn.places))):
                item = turn.places[place]
                if isinstance(item, MessageItem | CallItem | OpaqueItem | MessageFields):
                    return found  # the model answered what stands before
                if isinstance(item, UserItem) and not all(isinstance(part, TextItem) for part in item.content):
                    found.append((turn, place, item))
        return found

    def _leave_out_what_is_new(self) -> None:
        """Words stay, of everything else it is said that it was refused."""
        for turn, place, item in self._new_attachments():
            turn.places[place] = UserItem(
                tuple(part if isinstance(part, TextItem) else TextItem(text=REFUSED) for part in item.content)
            )

    def _answer(self, call_id: CallId, output: str) -> None:
        places = self._unanswered.get(call_id)
        if not places:
            raise ValueError(f"no open call {call_id!r}")
        self._turn.places[places.popleft()] = OutputItem(call_id, output)
        if not places:
            del self._unanswered[call_id]

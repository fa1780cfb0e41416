"""The log as messages for a model: a fold, in a form that every model API can be given.

The rules (docs/protocol.md, history): input first; then the items of each response in the order
they came, each call directly followed by its one output; input that came while the model was
answering stands behind the outputs of that response, once. Whatever becomes of a turn, no input
is taken back.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import Struct

from parley.conversation.log import Happened
from parley.conversation.records import CallItem, CallOutput, ModelAsked, ModelItem, ModelSaid, TurnEnded
from parley.wire.events import UserMessage
from parley.wire.ids import CallId
from parley.wire.items import InputItem

__all__ = ["ABORTED", "History", "HistoryItem", "OutputItem", "UserItem"]

ABORTED: Final = "aborted"
"""What the model is told of a call that an interrupt cut short."""


class UserItem(Struct, frozen=True):
    """Something the user said."""

    content: tuple[InputItem, ...]


class OutputItem(Struct, frozen=True):
    """What came of a call."""

    call_id: CallId
    output: str


HistoryItem = UserItem | ModelItem | OutputItem


class History:
    """The fold."""

    __slots__ = ("_places", "_unanswered", "waiting")

    def __init__(self) -> None:
        self.waiting: list[UserItem] = []
        """Input the model has not been sent."""
        self._places: list[HistoryItem | None] = []
        """Every call keeps the place behind it free for its output."""
        self._unanswered: dict[CallId, deque[int]] = {}
        """Where the outputs that are still missing belong. A model may use an id twice."""

    @property
    def items(self) -> list[HistoryItem]:
        """What the next request sends."""
        return [item for item in self._places if item is not None]

    def apply(self, happened: Happened) -> None:
        """Take in one entry; most do not concern the model."""
        match happened:
            case UserMessage(content=content):
                self.waiting.append(UserItem(content))
            case ModelSaid(item=item):
                self._places.append(item)
                if isinstance(item, CallItem):
                    self._unanswered.setdefault(item.call_id, deque()).append(len(self._places))
                    self._places.append(None)
            case CallOutput(call_id=call_id, output=output):
                self._answer(call_id, output)
            case ModelAsked() | TurnEnded():
                self._places += self.waiting
                self.waiting.clear()
            case _:
                pass

    @property
    def unanswered(self) -> tuple[CallId, ...]:
        """Calls without an output, in order; a turn may not end before each has one."""
        places = ((place, call_id) for call_id, places in self._unanswered.items() for place in places)
        return tuple(call_id for _, call_id in sorted(places))

    def _answer(self, call_id: CallId, output: str) -> None:
        places = self._unanswered.get(call_id)
        if not places:
            raise ValueError(f"no open call {call_id!r}")
        self._places[places.popleft()] = OutputItem(call_id, output)
        if not places:
            del self._unanswered[call_id]

"""The log as messages for a model: a fold, in a form that every model API can be given.

The rules (docs/protocol.md, history): input first; then the items of each response in the order
they came, each call directly followed by its one output; input that came while the model was
answering stands behind the outputs of that response, once. Whatever becomes of a turn, no input
is taken back.
"""

from __future__ import annotations

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
    """The fold. `items` is what the next request sends."""

    __slots__ = ("_unanswered", "items", "waiting")

    def __init__(self) -> None:
        self.items: list[HistoryItem] = []
        self.waiting: list[UserItem] = []
        """Input the model has not been sent."""
        self._unanswered: list[CallId] = []

    def apply(self, happened: Happened) -> None:
        """Take in one entry; most do not concern the model."""
        match happened:
            case UserMessage(content=content):
                self.waiting.append(UserItem(content))
            case ModelSaid(item=item):
                self.items.append(item)
                if isinstance(item, CallItem):
                    self._unanswered.append(item.call_id)
            case CallOutput(call_id=call_id, output=output):
                self._answer(call_id, output)
            case ModelAsked() | TurnEnded():
                self.items += self.waiting
                self.waiting.clear()
            case _:
                pass

    @property
    def unanswered(self) -> tuple[CallId, ...]:
        """Calls without an output, in order; a turn may not end before each has one."""
        return tuple(self._unanswered)

    def _answer(self, call_id: CallId, output: str) -> None:
        if call_id not in self._unanswered:
            raise ValueError(f"no open call {call_id!r}")
        self._unanswered.remove(call_id)
        # A model may repeat an id within a response: the first call of that id without an output
        # is meant. Calls without an output are at the very end of the list.
        unanswered_of_this_id = self._unanswered.count(call_id)
        for index in range(len(self.items) - 1, -1, -1):
            item = self.items[index]
            if isinstance(item, CallItem) and item.call_id == call_id:
                if unanswered_of_this_id == 0:
                    self.items.insert(index + 1, OutputItem(call_id, output))
                    return
                unanswered_of_this_id -= 1

"""Conversations with any branches and summaries: each branch has exactly the history of its own turns."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kit.builders.events import task_started, text, user_message
from kit.builders.logs import history_of
from kit.builders.records import (
    call,
    call_output,
    history_compacted,
    message,
    model_asked,
    model_said,
    turn_ended,
    turn_started,
)
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.log import LogPayload
from parley.conversation.records import CallItem
from parley.wire.events import TurnEndReason
from parley.wire.ids import CallId

CONVERSATION = "the conversation"


class Request(NamedTuple):
    """One model request of a turn and its results."""

    summed_up: int | None
    """The index of the cut at which a summary ends; None if no summary precedes the request."""
    joins: int
    calls: int
    says: bool


class Turn(NamedTuple):
    parent: int | None
    """The index of the parent among the earlier messages; None if the turn continues the history."""
    requests: list[Request]
    joins_at_end: int
    why: TurnEndReason


class Branch(NamedTuple):
    """A complete history, and the positions at which it may be cut."""

    items: list[HistoryItem]
    cuts: list[int]

    def copy(self) -> Branch:
        return Branch(list(self.items), list(self.cuts))


few = st.integers(0, 2)
whys: st.SearchStrategy[TurnEndReason] = st.sampled_from(["done", "done", "failed", "interrupted", "stopped"])
requests = st.builds(Request, st.none() | st.integers(0, 20), few, few, st.booleans())
turns = st.builds(Turn, st.none() | st.integers(0, 50), st.lists(requests, max_size=3), few, whys)


class Conversation:
    """Runs turns, and stores the complete history after every message in addition to the log."""

    def __init__(self) -> None:
        self.log: list[LogPayload] = []
        self.now = Branch([], [])
        self.after: dict[str, Branch] = {CONVERSATION: Branch([], [])}
        self._waiting: list[HistoryItem] = []
        self._in_turn: list[str] = []
        self._names = count(1)

    def live_through(self, turn: Turn) -> None:
        parent: str | None = None
        if turn.parent is not None:
            parent = sorted(self.after)[turn.parent % len(self.after)]
            self.now = self.after[parent].copy()
        self._in_turn = []
        self.log += [turn_started(), task_started()]
        self._speak(parent)
        for request in turn.requests:
            self._ask(request)
        for _ in range(turn.joins_at_end):
            self._speak()
        self.log.append(turn_ended(turn.why))
        self._waiting_is_sent()
        for name in self._in_turn:
            self.after[name] = self.now.copy()

    def _ask(self, request: Request) -> None:
        if request.summed_up is not None:
            self._sum_up(request.summed_up)
        self.log.append(model_asked())
        self._waiting_is_sent()
        for _ in range(request.joins):
            self._speak()
        calls = [f"c{next(self._names)}" for _ in range(request.calls)]
        if request.says:
            words = message(f"answer {next(self._names)}")
            self.log.append(model_said(words))
            self.now.items.append(words)
        self.log += [model_said(call(call_id)) for call_id in calls]
        self.log += [call_output(call_id, f"of {call_id}") for call_id in calls]
        for call_id in calls:
            self.now.items.extend((call(call_id), OutputItem(CallId(call_id), f"of {call_id}")))

    def _sum_up(self, place: int) -> None:
        places = sorted({*self.now.cuts, len(self.now.items)})
        replaced = places[place % len(places)]
        if replaced == 0:
            return
        summary = f"summary {next(self._names)}"
        self.log.append(history_compacted(summary, replaced=replaced))
        self.now = Branch(
            [UserItem((text(summary),)), *self.now.items[replaced:]],
            [cut - replaced + 1 for cut in self.now.cuts if cut >= replaced],
        )

    def _speak(self, parent: str | None = None) -> None:
        name = f"m{next(self._names):04}"
        self.log.append(user_message(f"says {name}", message_id=name, parent=parent))
        self._waiting.append(UserItem((text(f"says {name}"),)))
        self._in_turn.append(name)

    def _waiting_is_sent(self) -> None:
        self.now.cuts.append(len(self.now.items))
        self.now.items.extend(self._waiting)
        self._waiting.clear()


@given(turns=st.lists(turns, max_size=8))
def test_every_branch_is_what_a_whole_copy_of_it_would_be(turns: list[Turn]) -> None:
    conversation = Conversation()
    for turn in turns:
        conversation.live_through(turn)
        history = history_of(*conversation.log)

        assert history.items == conversation.now.items
        assert history.cuts == conversation.now.cuts
        assert (history.waiting, history.unanswered) == ([], ())


@given(turns=st.lists(turns, min_size=1, max_size=8))
def test_every_message_can_be_a_parent_at_the_end(turns: list[Turn]) -> None:
    conversation = Conversation()
    for turn in turns:
        conversation.live_through(turn)

    for parent, after in conversation.after.items():
        again = user_message("again", message_id="again", parent=parent)
        history = history_of(*conversation.log, turn_started(), task_started(), again)

        assert history.items == after.items
        assert history.waiting == [UserItem((text("again"),))]


@given(turns=st.lists(turns, max_size=6))
def test_calls_stay_with_their_outputs_on_every_branch(turns: list[Turn]) -> None:
    conversation = Conversation()
    for turn in turns:
        conversation.live_through(turn)
    history = history_of(*conversation.log)

    for cut in history.cuts:
        for part in (history.items[:cut], history.items[cut:]):
            calls = [item.call_id for item in part if isinstance(item, CallItem)]
            assert calls == [item.call_id for item in part if isinstance(item, OutputItem)]

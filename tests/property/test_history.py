"""Any calls of the model and any messages of the user give a valid history for the model."""

from __future__ import annotations

from itertools import count, pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from kit.builders.events import task_started, text, user_message
from kit.builders.logs import history_of
from kit.builders.records import (
    call,
    call_output,
    message,
    model_asked,
    model_said,
    opaque,
    turn_ended,
    turn_started,
)
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.log import LogPayload
from parley.conversation.records import CallItem, ModelItem
from parley.wire.events import TurnEndReason


class Response(NamedTuple):
    """A response of the model, and the number of messages before it and before each output."""

    items: list[ModelItem]
    joins_before: int
    joins_between: int


class Turn(NamedTuple):
    responses: list[Response]
    why: TurnEndReason
    joins_at_end: int


# Many calls use only two ids, because models repeat ids within a response and between responses.
calls = st.builds(call, st.sampled_from(["a", "b"]), st.integers(0, 99).map(str))
items = st.one_of(calls, calls, st.sampled_from(["Hm.", "Done"]).map(message), st.just(opaque()))
few = st.integers(min_value=0, max_value=2)
responses = st.builds(Response, st.lists(items, max_size=6), few, few)
whys: st.SearchStrategy[TurnEndReason] = st.sampled_from(["done", "failed", "interrupted", "restarted", "stopped"])
turns = st.builds(Turn, st.lists(responses, max_size=3), whys, few)


class Conversation:
    """Runs turns, and maintains the log and the expected history."""

    def __init__(self, turns: list[Turn]) -> None:
        self.log: list[LogPayload] = []
        self.expected: list[HistoryItem] = []
        self.inputs = 0
        self._waiting: list[HistoryItem] = []
        self._outputs = count(1)
        for turn in turns:
            self._live_through(turn)

    def _live_through(self, turn: Turn) -> None:
        self.log += [turn_started(), task_started()]
        self._speak_up(1)
        for response in turn.responses:
            self.log.append(model_asked())
            self._input_is_sent()
            self._answer(response)
        self._speak_up(turn.joins_at_end)
        self.log.append(turn_ended(turn.why))
        self._input_is_sent()

    def _answer(self, response: Response) -> None:
        self._speak_up(response.joins_before)
        self.log += [model_said(item) for item in response.items]
        for item in response.items:
            self.expected.append(item)
            if isinstance(item, CallItem):
                self._speak_up(response.joins_between)
                output = f"output {next(self._outputs)}"
                self.log.append(call_output(item.call_id, output))
                self.expected.append(OutputItem(item.call_id, output))

    def _speak_up(self, times: int) -> None:
        for _ in range(times):
            self.inputs += 1
            words = f"input {self.inputs}"
            self.log.append(user_message(words, message_id=words))
            self._waiting.append(UserItem((text(words),)))

    def _input_is_sent(self) -> None:
        self.expected += self._waiting
        self._waiting.clear()


@given(turns=st.lists(turns, max_size=4))
def test_the_history_is_what_one_would_write_down_by_hand(turns: list[Turn]) -> None:
    conversation = Conversation(turns)
    history = history_of(*conversation.log)

    assert history.items == conversation.expected
    assert (history.waiting, history.unanswered) == ([], ())


@given(turns=st.lists(turns, max_size=4), stop=st.integers(min_value=0, max_value=200))
def test_at_any_moment_outputs_follow_their_calls_and_no_input_is_lost(turns: list[Turn], stop: int) -> None:
    log = Conversation(turns).log[:stop]
    history = history_of(*log)

    for before, after in pairwise([None, *history.items]):
        if isinstance(after, OutputItem):
            assert isinstance(before, CallItem)
            assert before.call_id == after.call_id
    spoken = [item for item in (*history.items, *history.waiting) if isinstance(item, UserItem)]
    assert spoken == [UserItem((text(f"input {n}"),)) for n in range(1, len(spoken) + 1)]
    made = sum(isinstance(item, CallItem) for item in history.items)
    answered = sum(isinstance(item, OutputItem) for item in history.items)
    assert len(history.unanswered) == made - answered

"""The next process continues an orphaned turn that waited for an approval, and ends one that was running."""

from __future__ import annotations

import asyncio

import pytest

from kit.builders.events import text
from kit.servers.lives import Life
from kit.servers.orphaned_turns import last, leave_asking, leave_running, open_approval_id, pass_time, settle, types
from kit.servers.slow_store import SlowStore
from parley.conversation.history import OutputItem, UserItem
from parley.conversation.state import Phase
from parley.errors import ApprovalIsSettled, LeaseLost
from parley.ports.store import Query
from parley.runtime.conversation import Conversation
from parley.runtime.errors import UnknownApproval
from parley.wire.events import Settlement, TokenCount
from parley.wire.ids import ApprovalId, CallId
from parley.wire.principals import LOCAL

LOST = "The server stopped while this ran; it may have taken effect."


async def end(life: Life, conversation: Conversation, how: str) -> None:
    if how == "stopped":
        await life.stop()
    else:
        life.killed(conversation)


ends = pytest.mark.parametrize("how", ["stopped", "killed"])


@ends
@pytest.mark.parametrize(
    ("decision", "output", "ran"),
    [("approved", "a has run", ["a"]), ("denied", "denied: no", [])],
)
async def test_an_approval_from_before_is_answered_later_and_the_turn_continues(
    home: str, how: str, decision: Settlement, output: str, ran: list[str]
) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    async with first, second:
        left = await leave_asking(first)
        asked = open_approval_id(left)
        await end(first, left, how)

        found = await second.find(left.id)
        assert (found.state.phase, open_approval_id(found)) == (Phase.ASKING, asked)
        await settle(found, decision, reason="no")
        await second.until(found, Phase.IDLE)

        assert (first.ran, second.ran) == ([], ran)
        assert found._log.history.items[-2:-1] == [OutputItem(CallId("call a"), output)]
        assert types(found, "turn_started", "question_asked", "question_settled", "turn_ended") == [
            "turn_started",
            "question_asked",
            "question_settled",
            "turn_ended",
        ]
        assert last(found, "turn_ended")["why"] == "done"


async def test_any_process_accepts_an_answer_to_an_approval(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        asked = open_approval_id(await leave_asking(first))
    async with Life(home, store) as second:
        [waiting] = await second.conversations.awaiting_approval()
        assert open_approval_id(waiting) == asked
    async with Life(home, store) as third:
        found = await third.conversations.find_by_approval(asked)
        await settle(found, "approved")
        await third.until(found, Phase.IDLE)
        assert third.ran == ["a"]
    async with Life(home, store) as fourth:
        found = await fourth.conversations.find_by_approval(asked)
        with pytest.raises(ApprovalIsSettled):
            await found.approvals.answer(asked, "denied", by="tool", principal=LOCAL)
        with pytest.raises(UnknownApproval):
            await fourth.conversations.find_by_approval(ApprovalId("00000000-0000-4000-8000-000000000009"))


async def test_calls_that_did_not_run_yet_run_in_order_and_each_needs_an_approval(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await leave_asking(first, "run a,b,c")
        await settle(left, "approved")
        await first.until(left, Phase.ASKING)
    async with Life(home, store) as second:
        found = await second.find(left.id)
        for _ in range(2):
            await second.until(found, Phase.ASKING)
            await settle(found, "approved")
        await second.until(found, Phase.IDLE)

        assert (first.ran, second.ran) == (["a"], ["b", "c"])
        outputs = [item.output for item in found._log.history.items if isinstance(item, OutputItem)]
        assert outputs == ["a has run", "b has run", "c has run"]


@pytest.mark.parametrize("by", ["an answer", "an interrupt"])
async def test_a_turn_that_was_left_asking_can_be_ended(home: str, by: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await leave_asking(first)
    async with Life(home, store) as second:
        found = await second.find(left.id)
        if by == "an answer":
            await settle(found, "abort")
        else:
            found.interrupt(principal=LOCAL)
        await second.until(found, Phase.IDLE)

        assert (second.ran, second.requests) == ([], [])
        assert last(found, "turn_ended")["why"] == "interrupted"
        assert last(found, "call_output")["output"] == "aborted"
        assert types(found, "question_settled", "turn_ended") == ["question_settled", "turn_ended"]


async def test_a_message_joins_a_turn_that_was_left_asking(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await leave_asking(first)
    async with Life(home, store) as second:
        found = await second.find(left.id)
        joined = await second.send(found, "say joined")
        await settle(found, "approved")
        await second.until(found, Phase.IDLE)

        assert joined.turn is not None
        assert types(found, "turn_started") == ["turn_started"]
        assert second.ran == ["a"]
        assert UserItem((text("say joined"),)) in second.requests[0].history


@pytest.mark.parametrize(
    ("how", "why", "said"),
    [
        ("stopped", "stopped", "Turn interrupted: the server was stopped"),
        ("killed", "restarted", "Turn interrupted: the server was restarted"),
    ],
)
async def test_a_turn_that_ran_is_ended_once_and_its_call_has_an_output(
    home: str, how: str, why: str, said: str
) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    async with first, second:
        left = await leave_running(first)
        await end(first, left, how)

        found, again = await asyncio.gather(second.find(left.id), second.find(left.id))
        assert found is again
        assert (found.state.phase, second.ran) == (Phase.IDLE, [])
        assert types(found, "error", "turn_ended") == ["error", "turn_ended"]
        assert (last(found, "error")["message"], last(found, "turn_ended")["why"]) == (said, why)
        assert last(found, "call_output")["output"] == LOST

        await second.send(found, "say Hello")
        await second.until(found, Phase.IDLE)
        assert last(found, "turn_ended") == {
            "record": "turn_ended",
            "why": "done",
            "message": None,
            "principal": None,
        }


async def test_listing_recovers_orphaned_turns(home: str) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    async with first, second:
        left = await leave_running(first)
        first.killed(left)

        [listed] = (await second.conversations.page(Query())).items
        assert (listed.conversation_id, listed.summary.state) == (left.id, "idle")


async def test_a_process_that_lost_its_lease_writes_nothing_and_stops(
    home: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    async with first, second:
        left = await leave_running(first)
        first.killed(left)
        found = await second.find(left.id)
        assert left.turn is not None
        work = left.turn.work
        first.go_on.set()
        with pytest.raises((asyncio.CancelledError, LeaseLost)):
            await work

        assert (await store.head(left.id)).last == found.log.last
        assert left.log.entries == found.log.entries[: left.log.last]
        read_on = await first.find(left.id)
        assert read_on.log.entries == found.log.entries


async def test_the_end_of_a_turn_is_written_when_there_is_room_again(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        conversation = await leave_running(life)
        store.slow = True
        life.go_on.set()
        for _ in range(2):  # the output of the call, and then the end of the turn
            await store.until_waiting()
            await store.fail()
        store.slow = False
        await pass_time(life, 3)
        await life.until(conversation, Phase.IDLE)

        assert types(conversation, "error", "turn_ended") == ["error", "turn_ended"]
        assert last(conversation, "turn_ended")["why"] == "failed"
        assert "no space left on device" in last(conversation, "error")["message"]
        await life.send(conversation, "say Hello")
        await life.until(conversation, Phase.IDLE)
        assert last(conversation, "turn_ended")["why"] == "done"


# --- the usage of responses ----------------------------------------------------------------------

USAGE = TokenCount(
    input_tokens=100, cached_input_tokens=None, output_tokens=18, reasoning_output_tokens=None, total_tokens=118
)


@ends
async def test_the_process_that_resumes_the_calls_reports_the_usage_of_their_response(home: str, how: str) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    first.usage = second.usage = USAGE
    async with first, second:
        left = await leave_asking(first)
        await end(first, left, how)
        found = await second.find(left.id)
        await settle(found, "approved")
        await second.until(found, Phase.IDLE)

        assert types(found, "call_output", "token_count") == ["call_output", "token_count", "token_count"]
        assert found.state.tokens is not None
        assert found.state.tokens.total_tokens == 2 * 118


@pytest.mark.parametrize("how", ["interrupted", "killed"])
async def test_the_usage_of_a_response_is_reported_though_its_calls_do_not_end(home: str, how: str) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    first.usage = USAGE
    async with first, second:
        left = await leave_running(first)
        if how == "killed":
            first.killed(left)
            left = await second.find(left.id)
        else:
            left.interrupt(principal=LOCAL)
        await (second if how == "killed" else first).until(left, Phase.IDLE)

        assert types(left, "call_output", "token_count", "error") == ["call_output", "token_count", "error"]
        assert left._log.usage.conversation_tokens == 118


@ends
async def test_a_limit_refused_after_a_restart_reports_what_the_response_cost(home: str, how: str) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    first.usage = second.usage = USAGE
    async with first, second:
        left = await first.create(limits={"turn_calls": 1})
        await first.send(left, "run a,b")
        await first.until(left, Phase.ASKING)
        await settle(left, "approved")
        await first.until(left, Phase.ASKING)
        await end(first, left, how)
        found = await second.find(left.id)
        await settle(found, "denied")
        await second.until(found, Phase.IDLE)
        assert types(found, "token_count", "error", "turn_ended") == ["token_count", "error", "turn_ended"]

        await second.send(found, "say Hello")
        await second.until(found, Phase.IDLE)
        assert found._log.usage.turn_tokens == 118

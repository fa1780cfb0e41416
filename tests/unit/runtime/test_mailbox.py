"""Commands are executed in order, no matter which process owns the turn and how the ownership changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from kit.servers.lives import Life
from kit.servers.orphaned_turns import pass_time, settle
from kit.servers.remote_owner import FollowedTurn
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.state import Phase
from parley.errors import ApprovalIsSettled, OwnerUnresponsive, StoreFailed
from parley.ports.store import Head, Lease
from parley.runtime.conversation import Conversation
from parley.runtime.deadline import Deadline
from parley.runtime.mailbox import LAST_ANSWERS_SECONDS
from parley.wire.events import UserMessage
from parley.wire.ids import ConversationId, EventId, Seq
from parley.wire.items import text_of
from parley.wire.peers import NOT_OWNER, Submitted
from parley.wire.principals import LOCAL

NUMBERS = ("one", "two", "three", "four", "five", "six")


class LastFirst(SlowStore):
    """A store that answers queries for an owner in reverse order."""

    def __init__(self) -> None:
        super().__init__()
        self.looking: list[asyncio.Future[None]] = []
        self.is_held = False

    async def head(self, conversation_id: ConversationId) -> Head:
        if self.is_held:
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.looking.append(answered)
            await answered
        return await super().head(conversation_id)


class SlowToGive(SlowStore):
    """A store that grants no lease while `is_held` is True."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.is_closed = asyncio.Event()

    async def acquire(
        self,
        conversation_id: ConversationId,
        *,
        address: str,
        until: float | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Lease:
        if self.is_held:
            await self.is_closed.wait()
            raise StoreFailed("the store is closed")
        return await super().acquire(conversation_id, address=address, until=until, on_lost=on_lost)


def said(conversation: Conversation) -> list[str]:
    messages = [conversation.log.entries[seq - 1] for seq in conversation.state.messages.values()]
    return [text_of(msgspec.json.decode(entry.encoded, type=UserMessage).content) for entry in messages]


async def begun() -> None:
    """Run the event loop until all new tasks are waiting."""
    for _ in range(5):
        await asyncio.sleep(0)


async def all_of(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await asyncio.gather(*calls)


@pytest.mark.parametrize("first", ["message", "interrupt"])
async def test_a_command_keeps_its_position_when_the_owner_changes(home: str, first: str) -> None:
    store = LastFirst()

    async def send(words: str) -> None:
        await two.second.send(two.second.conversations.get(two.here.id), words)

    async def interrupt() -> None:
        await two.second.conversations.get(two.here.id).interrupt_unfinished(principal=LOCAL)

    async with FollowedTurn(home, store) as two:
        store.is_held = True
        calls = [interrupt() if first == "interrupt" else send("say one"), send("say two")]
        tasks = [asyncio.create_task(call) for call in calls]
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not all(task.done() for task in tasks):
                if store.looking:
                    store.looking.pop().set_result(None)
                elif two.owner.waiting:
                    two.owner.answers()
                await asyncio.sleep(0)

    assert two.owner.passed_on == ["interrupt" if first == "interrupt" else "say one", "say two"]


async def test_an_interrupt_does_not_overtake_earlier_messages(home: str) -> None:
    store = LastFirst()

    async def send(words: str) -> None:
        await two.second.send(two.second.conversations.get(two.here.id), words)

    async with FollowedTurn(home, store) as two:
        zero = asyncio.create_task(two.second.send(two.here, "say zero"))
        await two.owner.asked(1)
        event_id = two.here.state.event_id
        two.owner.answers(Submitted(event_id=event_id, first=Seq(two.here.log.durable + 1)))
        turn = (await zero).turn
        store.is_held = True
        one = asyncio.create_task(send("say one"))
        await begun()
        two.here.interrupt(turn, principal=LOCAL)
        await begun()
        await two.owner.asked(3)
        two.owner.answers()
        two.owner.answers()
        await one

    assert two.owner.passed_on == ["say zero", "say one", "interrupt"]


async def test_commands_that_the_owner_did_not_answer_are_executed_here_in_order(home: str) -> None:
    async with FollowedTurn(home) as two:
        calls = asyncio.gather(*(two.second.send(two.here, f"say {number}") for number in NUMBERS))
        await two.owner.asked(1)
        two.owner_is_killed()
        await calls
        await two.here.interrupt_unfinished(principal=LOCAL)

        assert said(two.here) == ["run slow", *(f"say {number}" for number in NUMBERS)]


async def test_a_command_for_a_former_owner_is_not_overtaken(home: str) -> None:
    async with FollowedTurn(home) as two:
        calls = asyncio.gather(*(two.second.send(two.here, f"say {number}") for number in NUMBERS[:2]))
        await two.owner.asked(2)
        two.owner.refuses(NOT_OWNER, "not mine")
        await two.owner.asked(4)
        two.owner.refuses(NOT_OWNER, "not mine")
        two.owner.answers()
        two.owner.answers()
        await calls

    assert two.owner.passed_on == ["say one", "say two"] * 2


async def test_an_interrupt_does_not_wait_for_a_message_that_takes_long_there(home: str) -> None:
    async with FollowedTurn(home) as two:
        calls = asyncio.gather(
            two.second.send(two.here, "say one"),
            two.here.interrupt_unfinished(principal=LOCAL),
            two.second.send(two.here, "say two"),
            two.here.rename("Foxes"),
        )
        for number in (2, 4):
            await two.owner.asked(number)
            two.owner.answers()
            two.owner.answers()
        await calls

    assert two.owner.passed_on == ["say one", "interrupt", "say two", "title"]


async def test_an_interrupt_that_is_done_again_does_not_hit_what_was_said_after_it(home: str) -> None:
    async with FollowedTurn(home) as two:
        calls = asyncio.gather(two.here.interrupt_unfinished(principal=LOCAL), two.second.send(two.here, "say one"))
        await two.owner.asked(1)
        await begun()
        two.here._ownership.stop_following()  # as if the owner had been stopped with the requests unread
        await two.owner.asked(4)
        del two.owner.waiting[:2]
        two.owner.answers()
        two.owner.answers()
        await calls

    assert two.owner.passed_on == ["interrupt", "say one"] * 2
    assert two.owner.interrupted == [two.here.state.event_id] * 2


async def test_interrupts_and_answers_do_not_wait_for_a_slow_message(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        conversation = await life.create()
        await life.send(conversation, "run a")
        await life.until(conversation, Phase.ASKING)
        approval = conversation.approvals.open
        assert approval is not None
        store.slow = True
        sending = asyncio.create_task(life.send(conversation, "say two"))
        await store.until_waiting()
        after = asyncio.create_task(life.send(conversation, "say three"))
        answering = conversation.approvals.answer(approval.approval_id, "approved", by="client", principal=LOCAL)
        await store.until_waiting(2)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await conversation.interrupt_unfinished(principal=LOCAL)
        assert conversation.turn is not None
        cut_short = conversation.turn.cut_short
        store.slow = False
        while store.waiting:
            await store.write()
        await all_of(_waited(sending), _waited(after), _waited(answering))

    assert cut_short == "interrupted"
    assert said(conversation) == ["run a", "say two", "say three"]


async def _waited(task: asyncio.Future[Any]) -> None:
    await task


# --- the results of commands ---------------------------------------------------------------------


async def test_an_ending_server_passes_on_what_came_of_a_message(home: str) -> None:
    async with FollowedTurn(home) as two:
        sending = asyncio.create_task(two.second.send(two.here, "say one"))
        await two.owner.asked(1)
        stopping = asyncio.create_task(two.second.conversations.stop())
        await begun()
        two.owner.answers()
        await all_of(_waited(sending), _waited(stopping))

    assert sending.result().first == 1


async def test_a_shutdown_does_not_wait_for_an_unresponsive_owner(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FollowedTurn(home) as two:
        sending = asyncio.create_task(two.second.send(two.here, "say one"))
        await two.owner.asked(1)
        stopping = asyncio.create_task(two.second.conversations.stop())
        await begun()
        loop = asyncio.get_running_loop()
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + LAST_ANSWERS_SECONDS)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await stopping
            with pytest.raises(OwnerUnresponsive):
                await sending


async def test_an_unanswered_command_is_not_reported_as_refused_at_shutdown(home: str) -> None:
    async with FollowedTurn(home) as two:
        sending = asyncio.create_task(two.second.send(two.here, "say one"))
        await two.owner.asked(1)
        two.owner.is_silent = True
        two.here._ownership.stop_following()  # as if the owner had been stopped with the requests unread
        await two.owner.asked(2)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await two.second.conversations.stop()
            with pytest.raises(OwnerUnresponsive):
                await sending


async def test_nor_is_what_waits_for_the_lease_when_the_store_is_closed(home: str) -> None:
    store = SlowToGive()
    async with FollowedTurn(home, store) as two:
        sending = asyncio.create_task(two.second.send(two.here, "say one"))
        await two.owner.asked(1)
        store.is_held = True
        two.here._ownership.stop_following()
        await begun()
        stopping = asyncio.create_task(two.second.conversations.stop())
        await begun()
        store.is_closed.set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await stopping
            with pytest.raises(OwnerUnresponsive):
                await sending


async def test_a_turn_there_is_over_when_another_has_taken_a_message(home: str) -> None:
    async with FollowedTurn(home) as two:
        turns: list[Any] = []
        for number in (1, 2):
            sending = asyncio.create_task(two.second.send(two.here, f"say {number}"))
            await two.owner.asked(number)
            first = Seq(two.here.log.durable + number)  # the owner has not sent these entries yet
            two.owner.answers(Submitted(event_id=EventId(str(number)), first=first))
            turns.append((await sending).turn)

        assert [turn.work.done() for turn in turns] == [True, False]


async def test_a_late_not_owner_answer_ends_following(home: str) -> None:
    async with FollowedTurn(home) as two:
        sending = asyncio.create_task(two.second.send(two.here, "say one"))
        await two.owner.asked(1)
        sending.cancel()
        await asyncio.wait({sending})
        two.owner.refuses(NOT_OWNER, "not mine")

        assert not two.here._ownership.remote is not None


@pytest.mark.parametrize("is_same", [True, False])
async def test_a_repeated_answer_is_recognised_by_its_id_after_the_owner_died(home: str, is_same: bool) -> None:
    async with FollowedTurn(home) as two:
        answering = two.here.approvals.answer(two.approval, "approved", by="tool", principal=LOCAL)
        await two.owner.asked(1)
        (sent,) = two.owner.answer_requests
        if is_same:
            await two.there.execute_for_peer(sent, Deadline(TIMEOUT_SECONDS), answered=lambda _: None)
        else:
            await two.there.approvals.answer(two.approval, "approved", by="tool", principal=LOCAL)
        await two.first.slow.wait()
        two.owner_is_killed()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await asyncio.wait({answering})
        outcome = answering.exception()
        two.first.go_on.set()

    assert isinstance(outcome, type(None) if is_same else ApprovalIsSettled)


async def test_an_answer_that_is_sent_twice_is_taken_once(home: str) -> None:
    async with FollowedTurn(home) as two:
        two.here.approvals.answer(two.approval, "approved", by="tool", principal=LOCAL)
        await two.owner.asked(1)
        (sent,) = two.owner.answer_requests
        await all_of(
            *(
                two.there.execute_for_peer(sent, Deadline(TIMEOUT_SECONDS), answered=lambda _: None)
                for _ in range(2)
            )
        )
        two.owner.answers()
        two.first.go_on.set()
        await two.first.until(two.there, Phase.IDLE)

        settled = [entry.type for entry in two.there.log.entries].count("question_settled")

    assert settled == 1


async def test_a_reader_sees_entries_of_others_after_a_slow_command(home: str) -> None:
    async with FollowedTurn(home, does="run a") as two:
        sending = asyncio.create_task(two.second.send(two.here, "say one"))
        await two.owner.asked(1)
        await pass_time(two.second, 3)
        two.owner.answers()
        await sending
        await settle(two.there, "approved")
        await two.first.until(two.there, Phase.IDLE)
        two.owner.on_lost()
        await two.second.until(two.here, Phase.IDLE)
        reading = asyncio.create_task(two.here.wait_beyond(two.here.log.durable))
        await begun()
        await two.first.send(two.there, "say two")
        await pass_time(two.second, 2)
        await all_of(_waited(reading))

    assert said(two.here) == ["run a", "say two"]

"""What one process leaves and the next one finds: conversations, turns, questions, and what was sent before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.events import text
from kit.lives import Life
from kit.stores import SlowStore
from parley.config.types import Wanted
from parley.conversation.history import OutputItem, UserItem
from parley.conversation.state import Phase
from parley.errors import (
    Fenced,
    MessageIdTaken,
    QuestionIsSettled,
    StoreFailed,
    TurnIsRunning,
    UnknownConversation,
    UnknownQuestion,
)
from parley.ports.store import Query
from parley.runtime.conversation import Conversation
from parley.wire.events import Settlement
from parley.wire.ids import START, ApprovalId, CallId, ConversationId

LOST = "The server stopped while this ran; it may have taken effect."


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path)


def write_config(home: str, words: str) -> None:
    Path(home, "config.toml").write_text(words, encoding="utf-8")


def types(conversation: Conversation, *wanted: str) -> list[str]:
    """Which of these entries the log has, in order."""
    return [entry.type for entry in conversation.log.entries if entry.type in wanted]


def last(conversation: Conversation, kind: str) -> dict[str, Any]:
    """The last entry of a type."""
    found = [entry.encoded for entry in conversation.log.entries if entry.type == kind]
    decoded: dict[str, Any] = msgspec.json.decode(found[-1])
    return decoded


def open_question(conversation: Conversation) -> ApprovalId:
    assert conversation.questions.open is not None
    return conversation.questions.open.approval_id


async def settle(conversation: Conversation, decision: Settlement, *, reason: str | None = None) -> None:
    await conversation.answer(open_question(conversation), decision, by="tool", reason=reason)


async def leave_asking(life: Life, what: str = "run a") -> Conversation:
    """A conversation whose turn waits for an answer."""
    conversation = await life.create()
    await life.send(conversation, what)
    await life.until(conversation, Phase.ASKING)
    return conversation


async def leave_running(life: Life) -> Conversation:
    """A conversation whose command runs."""
    conversation = await leave_asking(life, "run slow")
    await settle(conversation, "approved")
    await life.slow.wait()
    return conversation


async def end(life: Life, conversation: Conversation, how: str) -> None:
    if how == "stopped":
        await life.stop()
    else:
        life.killed(conversation)


ends = pytest.mark.parametrize("how", ["stopped", "killed"])


# --- what is found -------------------------------------------------------------------------------


async def test_a_conversation_is_found_as_it_was_left_and_goes_on(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await first.create()
        await first.send(left, "say Hello", message_id="a")
        await first.until(left, Phase.IDLE)
    async with Life(home, store) as second:
        found = await second.find(left.id)
        assert found.log.entries == left.log.entries
        assert await second.find(left.id) is found

        await second.send(found, "say And?")
        await second.until(found, Phase.IDLE)

        sent = [item.content for item in second.requests[0].history if isinstance(item, UserItem)]
        assert sent == [(text("say Hello"),), (text("say And?"),)]
        assert [entry.seq for entry in found.log.entries] == list(range(1, found.log.last + 1))
        assert types(found, "turn_started", "turn_ended") == ["turn_started", "turn_ended"] * 2


async def test_what_is_not_there_is_not_found_and_is_looked_for_once_at_a_time(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        left = await leave_asking(life)
    async with Life(home, store) as life:
        found = await asyncio.gather(*(life.find(left.id) for _ in range(5)))
        assert all(one is found[0] for one in found)
        with pytest.raises(UnknownConversation):
            await life.find(ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8"))


async def test_settings_are_those_that_were_asked_for_over_the_files_of_the_process_that_runs_the_turn(
    home: str,
) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await first.create(model_reasoning_effort="low")
        await first.send(left, "say Hello", wanted=Wanted(model="asked-for"))
        await first.until(left, Phase.IDLE)
    write_config(home, 'model = "by-file"\nmodel_reasoning_summary = "detailed"\n')
    async with Life(home, store) as second:
        found = await second.find(left.id)
        await second.send(found, "say Hello")
        await second.until(found, Phase.IDLE)

        settings = second.settings[-1]
        assert (settings.model, settings.model_reasoning_effort) == ("asked-for", "low")
        assert settings.model_reasoning_summary == "detailed"


async def test_secrets_stay_with_the_process_that_was_told_them_also_where_a_write_failed(home: str) -> None:
    store = SlowStore()
    provider = {"name": "P", "base_url": "http://localhost", "http_headers": {"Authorization": "Bearer hidden"}}
    async with Life(home, store) as first:
        left = await first.create(model_provider="p", model_providers={"p": provider})
        store.slow = True
        failing = asyncio.create_task(left.rename("Foxes"))
        await store.until_waiting()
        await store.fail()
        with pytest.raises(StoreFailed):
            await failing
        store.slow = False
        await first.send(left, "say Hello")
        await first.until(left, Phase.IDLE)

        assert first.settings[-1].provider.http_headers == {"Authorization": "Bearer hidden"}
    assert not any(b"hidden" in entry.body for entry in await store.read(left.id, after=START))
    async with Life(home, store) as second:
        found = await second.find(left.id)
        assert (found.settings.provider.id, found.settings.provider.http_headers) == ("p", {})


# --- a turn that asked -----------------------------------------------------------------------------


@ends
@pytest.mark.parametrize(
    ("decision", "told", "ran"),
    [("approved", "a has run", ["a"]), ("denied", "denied: no", [])],
)
async def test_what_was_asked_before_is_answered_later_and_the_turn_goes_on(
    home: str, how: str, decision: Settlement, told: str, ran: list[str]
) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    async with first, second:
        left = await leave_asking(first)
        asked = open_question(left)
        await end(first, left, how)

        found = await second.find(left.id)
        assert (found.state.phase, open_question(found)) == (Phase.ASKING, asked)
        await settle(found, decision, reason="no")
        await second.until(found, Phase.IDLE)

        assert (first.ran, second.ran) == ([], ran)
        assert found.book.history.items[-2:-1] == [OutputItem(CallId("call a"), told)]
        assert types(found, "turn_started", "question_asked", "question_settled", "turn_ended") == [
            "turn_started",
            "question_asked",
            "question_settled",
            "turn_ended",
        ]
        assert last(found, "turn_ended")["why"] == "done"


async def test_an_answer_is_taken_from_whoever_knows_the_question_wherever_it_was_asked(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        asked = open_question(await leave_asking(first))
    async with Life(home, store) as second:
        [waiting] = await second.conversations.asking()
        assert open_question(waiting) == asked
    async with Life(home, store) as third:
        found = await third.conversations.question(asked)
        await settle(found, "approved")
        await third.until(found, Phase.IDLE)
        assert third.ran == ["a"]
    async with Life(home, store) as fourth:
        found = await fourth.conversations.question(asked)
        with pytest.raises(QuestionIsSettled):
            await found.answer(asked, "denied", by="tool")
        with pytest.raises(UnknownQuestion):
            await fourth.conversations.question(ApprovalId("00000000-0000-4000-8000-000000000009"))


async def test_calls_that_were_not_run_yet_are_run_in_order_and_each_is_asked_about(home: str) -> None:
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
        outputs = [item.output for item in found.book.history.items if isinstance(item, OutputItem)]
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
            found.interrupt()
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


# --- a turn that ran -------------------------------------------------------------------------------


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
        assert last(found, "turn_ended") == {"record": "turn_ended", "why": "done", "message": "Hello"}


async def test_whoever_lists_conversations_finds_none_that_runs_nowhere(home: str) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    async with first, second:
        left = await leave_running(first)
        first.killed(left)

        [listed] = (await second.conversations.page(Query())).page
        assert (listed.conversation_id, listed.summary.state) == (left.id, "idle")


async def test_one_who_was_taken_for_dead_writes_nothing_and_gives_up(
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
        with pytest.raises((asyncio.CancelledError, Fenced)):
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


# --- messages that are sent again --------------------------------------------------------------------


async def test_a_message_that_is_sent_again_to_the_next_process_runs_nothing(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await first.create()
        await first.send(left, "say Hello", message_id="a")
        await first.until(left, Phase.IDLE)
    async with Life(home, store) as second:
        found = await second.find(left.id)
        before = found.log.last
        again = await second.send(found, "say Hello", message_id="a")

        assert (again.message_id, again.turn) == ("a", None)
        assert (found.log.last, second.requests) == (before, [])
        with pytest.raises(MessageIdTaken):
            await second.send(found, "say other words", message_id="a")


async def test_a_message_that_is_sent_again_has_its_own_place_also_where_others_speak_of_it(home: str) -> None:
    async with Life(home, SlowStore()) as life:
        conversation = await life.create()
        sent = {"a": "say Hello", "say Hello": "say And?"}
        for message_id, words in sent.items():
            await life.send(conversation, words, message_id=message_id)
            await life.until(conversation, Phase.IDLE)

        again = [await life.send(conversation, words, message_id=message_id) for message_id, words in sent.items()]

        assert [one.first for one in again] == [
            entry.seq for entry in conversation.log.entries if entry.type == "user_message"
        ]


async def test_a_message_that_could_not_be_written_was_not_sent(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        conversation = await life.create()
        store.slow = True
        failing = asyncio.create_task(life.send(conversation, "say Hello", message_id="a"))
        await store.until_waiting()
        await store.fail()
        with pytest.raises(StoreFailed):
            await failing
        assert (conversation.state.phase, life.requests) == (Phase.IDLE, [])

        store.slow = False
        taken = await life.send(conversation, "say Hello", message_id="a")
        await life.until(conversation, Phase.IDLE)
        assert taken.turn is not None
        assert types(conversation, "user_message", "turn_ended") == ["user_message", "turn_ended"]


# --- life cycle --------------------------------------------------------------------------------------


async def test_a_title_that_was_given_is_kept(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as first:
        left = await first.create()
        await left.rename("Foxes")
        await first.send(left, "say Hello")
        await first.until(left, Phase.IDLE)
    async with Life(home, store) as second:
        found = await second.find(left.id)
        assert found.state.title == "Foxes"
        await found.rename("Hares")
        [listed] = (await second.conversations.page(Query())).page
        assert (found.state.title, listed.summary.title) == ("Hares", "Hares")


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.ASKING])
async def test_what_runs_or_asks_cannot_be_deleted_and_is_left_as_it_is(home: str, phase: Phase) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        conversation = await (leave_running if phase is Phase.RUNNING else leave_asking)(life)
        before = list(conversation.log.entries)
        with pytest.raises(TurnIsRunning):
            await life.conversations.delete(conversation.id)
        assert (conversation.state.phase, conversation.log.entries) == (phase, before)

        conversation.interrupt()
        await life.until(conversation, Phase.IDLE)
        await life.conversations.delete(conversation.id)
        with pytest.raises(UnknownConversation):
            await life.find(conversation.id)
        assert (await life.conversations.page(Query())).page == ()


async def test_an_interrupt_that_cannot_be_written_ends_the_turn_when_there_is_room_again(home: str) -> None:
    store = SlowStore()
    async with Life(home, store) as life:
        conversation = await leave_asking(life)
        store.slow = True
        conversation.interrupt()
        for _ in range(3):  # the settlement, both again, the end
            await store.until_waiting()
            await store.fail()
        store.slow = False
        await pass_time(life, 3)
        await life.until(conversation, Phase.IDLE)

        assert last(conversation, "turn_ended")["why"] == "interrupted"
        assert types(conversation, "question_settled", "turn_ended") == ["question_settled", "turn_ended"]


# --- memory ------------------------------------------------------------------------------------------


async def test_what_nobody_has_to_do_with_leaves_memory_and_comes_back_unnoticed(home: str) -> None:
    store = SlowStore()
    async with Life(home, store, idle_seconds=60) as life:
        conversation = await life.create()
        await life.send(conversation, "say Hello")
        await life.until(conversation, Phase.IDLE)
        await life.until_at_rest(conversation)
        await pass_time(life, 59)
        assert list(life.conversations) == [conversation]

        await pass_time(life, 61)
        assert list(life.conversations) == []
        back = await life.find(conversation.id)
        assert back is not conversation
        assert back.log.entries == conversation.log.entries
        await life.send(back, "say And?")
        await life.until(back, Phase.IDLE)
        assert len(life.requests[-1].history) == 3


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.ASKING])
async def test_what_runs_or_asks_stays_in_memory(home: str, phase: Phase) -> None:
    async with Life(home, SlowStore(), idle_seconds=60) as life:
        conversation = await (leave_running if phase is Phase.RUNNING else leave_asking)(life)
        await pass_time(life, 1_000)

        assert list(life.conversations) == [conversation]


async def test_of_too_many_those_leave_first_that_were_used_least_lately(home: str) -> None:
    async with Life(home, SlowStore(), idle_conversations=2) as life:
        made = [await life.create() for _ in range(4)]
        await life.find(made[0].id)
        await pass_time(life, 31)

        assert [one.id for one in life.conversations] == [made[3].id, made[0].id]


async def test_what_was_allowed_for_the_session_holds_over_unloading_and_ends_with_the_process(home: str) -> None:
    store = SlowStore()
    async with Life(home, store, idle_seconds=60) as first:
        left = await leave_asking(first)
        await settle(left, "approved_for_session")
        await first.until(left, Phase.IDLE)
        await first.until_at_rest(left)
        await pass_time(first, 61)
        back = await first.find(left.id)
        assert back is not left
        await first.send(back, "run a")
        await first.until(back, Phase.IDLE)
        assert first.ran == ["a", "a"]
    async with Life(home, store) as second:
        found = await second.find(left.id)
        await second.send(found, "run a")
        await second.until(found, Phase.ASKING)
        assert second.ran == []


async def pass_time(life: Life, seconds: int) -> None:
    """Second by second, so that whoever looks now and then has looked."""
    for _ in range(seconds):
        life.clock.passes(1)
        for _ in range(3):
            await asyncio.sleep(0)

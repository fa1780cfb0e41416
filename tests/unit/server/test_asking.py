"""Several clients and one question: who is asked, whose answer counts, and what the others hear of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.questions import approval_id
from kit.room import Guest, Room
from kit.stores import SlowStore
from parley.runtime.questions import BETWEEN_TRIES_SECONDS
from parley.wire.framing import PREFIX_BYTES, Overlong
from parley.wire.jsonrpc import encode
from parley.wire.mcp import PLAIN_VERSION

NO = {"decision": "denied"}
YES = {"decision": "approved"}
SAY_ONE = {"type": "text", "text": "1"}

SETTLED = ["question_asked", "question_settled", "approval_settled"]


@pytest.fixture
def home(tmp_path: Path) -> str:
    return str(tmp_path)


def settlements(room: Room, conversation: Any) -> list[str]:
    """The entries of a log that tell of questions and of the end of turns."""
    told = (*SETTLED, "turn_ended")
    return [entry for entry in room.happened(conversation.id) if entry in told]


def taken_back(request_id: int, decision: str) -> dict[str, Any]:
    return {"requestId": request_id, "reason": f"Question is settled: {decision}"}


# --- one question, many clients ----------------------------------------------------------


@pytest.mark.promises("approvals.everybody")
async def test_everybody_who_streams_is_asked_and_the_first_answer_counts(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guests = [await room.guest() for _ in range(3)]
        for guest in guests:
            await guest.stream(conversation.id)
        await guests[0].say(conversation.id, 1)
        for guest in guests:
            await guest.question()

        guests[1].answer(1, {"decision": "denied", "reason": "not today"})
        guests[0].answer(0, YES)
        for guest in guests:
            await guest.hears("task_complete")

        assert room.told == [(1, "denied: not today")]
        assert [guest.taken_back for guest in guests] == [[taken_back(0, "denied")], [], [taken_back(2, "denied")]]
        assert [len(guest.asked) for guest in guests] == [1, 1, 1]
        assert settlements(room, conversation) == [*SETTLED, "turn_ended"]


async def test_the_question_stands_right_behind_its_event_and_the_settlement_before_the_withdrawal(
    home: str,
) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest, other = await room.guest(), await room.guest()
        await guest.stream(conversation.id)
        await other.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.question()

        other.answer(1, YES)
        await guest.hears("task_complete")

        told = ("exec_approval_request", "elicitation/create", "approval_settled", "notifications/cancelled")
        assert guest.heard(*told, "task_complete") == [*told, "task_complete"]


@pytest.mark.promises("approvals.event-first")
async def test_one_who_joins_is_asked_behind_the_snapshot_and_the_others_are_not_asked_again(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        first, second = await room.guest(), await room.guest()
        await first.stream(conversation.id)
        await first.say(conversation.id, 1)
        await first.question()

        await second.stream(conversation.id)
        await second.question()

        told = ("exec_approval_request", "notifications/initial_state", "elicitation/create")
        assert second.heard(*told) == ["notifications/initial_state", "elicitation/create"]
        assert len(first.asked) == 1
        second.answer(1, YES)
        await first.hears("task_complete")
        assert room.told == [(1, "approved")]


@pytest.mark.promises("approvals.held")
async def test_without_a_stream_the_question_is_held_and_the_answer_of_whoever_comes_counts(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.say(conversation.id, 1)
        await room.settle_down()
        room.clock.passes(1_000_000)
        await room.settle_down()
        assert (guest.asked, conversation.state.phase.value) == ([], "asking")

        await guest.stream(conversation.id)
        await guest.question()
        guest.answer(0, YES)
        await guest.hears("task_complete")

        assert room.told == [(1, "approved")]


async def test_a_stream_that_is_paused_and_opened_again_does_not_ask_again(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        stream = await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.question()
        guest.cancel(stream)
        await guest.stream(conversation.id)
        await guest.stream(conversation.id)

        assert len(guest.asked) == 1
        guest.answer(0, YES)
        await guest.hears("task_complete")
        assert room.told == [(1, "approved")]


async def test_a_client_that_paused_its_stream_may_still_answer(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        stream = await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.question()
        guest.cancel(stream)

        guest.answer(0, YES)
        await room.settle_down()

        assert room.told == [(1, "approved")]


@pytest.mark.promises("approvals.held")
async def test_where_everybody_who_was_asked_is_gone_the_next_who_streams_is_asked(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        first, second = await room.guest(), await room.guest()
        await first.stream(conversation.id)
        await first.say(conversation.id, 1)
        await first.question()
        first.leave()
        first.answer(0, YES)
        await room.settle_down()
        assert room.told == []

        await second.stream(conversation.id)
        await second.question()
        second.answer(1, NO)
        await second.hears("task_complete")

        assert room.told == [(1, "denied")]
        assert second.taken_back == []


@pytest.mark.promises("approvals.everybody")
async def test_a_call_is_asked_too_and_so_is_a_reply_that_joins_while_the_turn_waits(home: str) -> None:
    async with Room(home) as room:
        caller, joiner = await room.guest(), await room.guest()
        call = caller.call("codex", prompt="1", cwd="/project")
        await caller.question()
        session = next(one["params"]["msg"] for one in caller.messages if one.get("method") == "session_configured")
        reply = joiner.call("codex-reply", sessionId=session["session_id"], prompt="0")
        asked = await joiner.question()
        joiner.answer(1, YES)
        await caller.answer_to(call)
        await joiner.answer_to(reply)

        assert asked["params"]["codex_mcp_tool_call_id"] == str(reply)
        assert caller.asked[0]["params"]["codex_mcp_tool_call_id"] == str(call)
        assert caller.taken_back == [taken_back(0, "approved")]
        assert room.told == [(1, "approved")]


async def test_a_client_that_calls_and_streams_one_conversation_is_asked_once(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        stream = await guest.stream(conversation.id)
        reply = guest.call("codex-reply", sessionId=conversation.id, prompt="1")
        asked = await guest.question()
        await room.settle_down()

        assert len(guest.asked) == 1
        assert asked["params"]["codex_mcp_tool_call_id"] == str(stream)
        guest.answer(0, YES)
        await guest.answer_to(reply)


async def test_each_client_is_told_the_first_of_its_own_requests(home: str) -> None:
    async with Room(home) as room:
        creator, watcher = await room.guest(), await room.guest()
        create = creator.call("conversationCreate", prompt="", model="m", cwd="/project")
        conversation = (await creator.value_of(create))["conversation_id"]
        await watcher.stream((await room.create()).id)
        await creator.stream(conversation)
        stream = await watcher.stream(conversation)
        await creator.say(conversation, 1)

        asked = [await guest.question() for guest in (creator, watcher)]

        assert [one["params"]["codex_mcp_tool_call_id"] for one in asked] == [str(create), str(stream)]


# --- answers that do not count -------------------------------------------------------------


@pytest.mark.promises("approvals.once")
async def test_late_doubled_and_foreign_answers_settle_nothing_else(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest, other = await room.guest(), await room.guest()
        await guest.stream(conversation.id)
        await other.stream(conversation.id)
        await guest.say(conversation.id, 2)
        await guest.question()
        for foreign in (1, 7, "0", -1):
            guest.answer(foreign, YES)
        await room.settle_down()
        assert room.told == []

        guest.answer(0, NO)
        guest.answer(0, YES)
        await guest.question(2)
        guest.answer(0, YES)
        other.answer(1, YES)
        await room.settle_down()
        assert room.told == [(1, "denied")]
        other.answer(3, NO)
        await guest.hears("task_complete")

        assert room.told == [(1, "denied"), (2, "denied")]
        assert [one["id"] for one in guest.asked] == [0, 2]
        assert settlements(room, conversation) == [*SETTLED, *SETTLED, "turn_ended"]


@pytest.mark.promises("approvals.once")
async def test_a_client_that_comes_back_cannot_settle_another_question_by_a_late_answer(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest, other = await room.guest(), await room.guest(capabilities={})
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 2)
        first = await guest.question()
        guest.leave()
        await other.value_of(other.call("approvalAnswer", approval_id=approval_id(1), decision="denied"))
        back = await room.guest()
        await back.stream(conversation.id)
        second = await back.question()

        back.answer(first["id"], YES)
        back.answer(second["id"], NO)
        await back.hears("task_complete")

        assert (first["id"], second["id"]) == (0, 1)
        assert room.told == [(1, "denied"), (2, "denied")]


@pytest.mark.promises("framing.too-long", "approvals.answers")
@pytest.mark.parametrize(
    "answer",
    [
        Overlong(b'{"id":0,"result":{"decision":"approved","reason":"aaa'),
        Overlong(b'{"id":0,"error":{'),
        Overlong(b'{"id":0,"more":"aaa'),
        Overlong(b'{"result":{"decision":"approved","reason":"aaa', b'aaa"},"jsonrpc":"2.0","id":0}'),
    ],
)
async def test_an_answer_that_is_too_long_is_a_no_and_is_never_answered(home: str, answer: Overlong) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.question()

        guest.send_frame(Overlong(b'{"id":0,"method":"ping","params":{"more":"aaa'))
        guest.send_frame(Overlong(b'{"id":7,"result":{"more":"aaa'))
        guest.send_frame(answer)
        await guest.hears("task_complete")

        assert room.told == [(1, "denied")]
        refused = {"code": -32600, "message": "message is longer than 64 MB"}
        assert [one for one in guest.messages if "error" in one] == [{"jsonrpc": "2.0", "id": 0, "error": refused}]


@pytest.mark.promises("framing.bad-lines", "approvals.answers")
@pytest.mark.parametrize(
    "answer",
    [
        b'{"id":0,"result":{"decision":"approved","more":NaN}}',
        b'{"id":0,"result":{"decision":"approved"},"method":5}',
        b'{"id":0,"result":{"decision":"approved"}',
        b'{"result":{"decision":"approved","more":%b},"more":NaN,"id":0}' % encode("a" * PREFIX_BYTES),
    ],
    ids=["a number that is none", "a method that is none", "no end", "id last"],
)
async def test_an_answer_that_cannot_be_read_is_a_no_and_a_request_that_cannot_is_nothing(
    home: str, answer: bytes
) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.question()

        for line in (b'{"id":0,"method":"ping","params":{"more":NaN}}', b'{"id":0,"method":5}', b'{"id":0'):
            guest.send_frame(line)
        await room.settle_down()
        told_before = list(room.told)
        guest.send_frame(answer)
        await guest.hears("task_complete")

        assert (told_before, room.told) == ([], [(1, "denied")])
        assert [one for one in guest.messages if "error" in one] == []


async def test_an_answer_that_cannot_be_written_down_is_tried_again(
    home: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = SlowStore()
    async with Room(home, store=store) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.question()

        store.slow = True
        guest.answer(0, YES)
        await room.settle_down()
        await store.fail()
        await room.settle_down()
        store.slow = False
        room.clock.passes(BETWEEN_TRIES_SECONDS)
        await guest.hears("task_complete")

        assert room.told == [(1, "approved")]
        assert guest.taken_back == []
        assert settlements(room, conversation) == [*SETTLED, "turn_ended"]
        assert caplog.messages[-1].startswith("an answer is not written down yet: ")


@pytest.mark.promises("approvals.event-first")
async def test_nobody_is_asked_or_told_of_a_question_that_is_not_on_disk(home: str) -> None:
    store = SlowStore()
    async with Room(home, store=store) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.say(conversation.id, 0)
        await room.settle_down()
        store.slow = True
        said = guest.call("conversationSendMessage", conversation_id=conversation.id, content=[SAY_ONE])
        while ["exec_approval_request", "question_asked"] not in store.waiting:
            await room.settle_down()
            if store.waiting[0] != ["exec_approval_request", "question_asked"]:
                await store.write()
        await guest.answer_to(said)
        status = guest.call("conversationStatus", conversation_id=conversation.id)
        await guest.stream(conversation.id)
        await room.settle_down()
        assert (guest.asked, (await guest.value_of(status))["questions"]) == ([], [])

        store.slow = False
        await store.write()
        question = await guest.question()
        assert guest.heard("exec_approval_request", "elicitation/create") == [
            "exec_approval_request",
            "elicitation/create",
        ]
        guest.answer(question["id"], YES)
        await guest.hears("task_complete")


@pytest.mark.promises("approvals.everybody")
async def test_nobody_hears_of_an_answer_before_it_is_on_disk(home: str) -> None:
    store = SlowStore()
    async with Room(home, store=store) as room:
        conversation = await room.create()
        guest, other = await room.guest(), await room.guest()
        await guest.stream(conversation.id)
        await other.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await other.question()

        store.slow = True
        guest.answer(0, YES)
        await room.settle_down()
        other.answer(1, NO)
        await room.settle_down()
        assert (room.told, other.taken_back, other.number_of("approval_settled")) == ([], [], 0)

        store.slow = False
        await store.write()
        await other.hears("task_complete")
        assert room.told == [(1, "approved")]
        assert settlements(room, conversation) == [*SETTLED, "turn_ended"]


async def test_an_answer_behind_an_interrupt_in_the_same_read_is_ignored(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.stream(conversation.id)
        message = await guest.say(conversation.id, 1)
        await guest.question()

        guest.cancel(message)
        guest.answer(0, YES)
        await guest.hears("error")

        assert room.told == []
        assert guest.taken_back == [taken_back(0, "dropped")]
        assert settlements(room, conversation) == [*SETTLED, "turn_ended"]
        settled = next(one["params"]["msg"] for one in guest.messages if one.get("method") == "approval_settled")
        assert settled == {
            "type": "approval_settled",
            "approval_id": approval_id(1),
            "call_id": "call1",
            "decision": "dropped",
            "by": "interrupt",
        }


async def test_an_interrupt_behind_an_answer_in_the_same_read_leaves_the_answer_as_it_is(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.stream(conversation.id)
        message = await guest.say(conversation.id, 2)
        await guest.question()

        guest.answer(0, YES)
        guest.cancel(message)
        await guest.hears("error")

        assert guest.taken_back == []
        assert conversation.questions.open is None
        assert settlements(room, conversation) == [*SETTLED, "turn_ended"]
        settled = next(one["params"]["msg"] for one in guest.messages if one.get("method") == "approval_settled")
        assert (settled["decision"], settled["by"]) == ("approved", "client")


async def test_whoever_is_behind_is_asked_what_is_open_and_not_what_was(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        slow, quick = await room.guest(), await room.guest()
        await slow.stream(conversation.id)
        await quick.stream(conversation.id)
        slow.door.writable = False
        await quick.say(conversation.id, 2)
        await quick.question()
        quick.answer(0, YES)
        await quick.question(2)
        assert slow.asked == []

        slow.door.read_on()

        told = ("exec_approval_request", "approval_settled", "elicitation/create")
        assert slow.heard(*told) == [
            "exec_approval_request",
            "approval_settled",
            "exec_approval_request",
            "elicitation/create",
        ]
        assert slow.asked[0]["params"]["codex_call_id"] == "call2"
        slow.answer(2, YES)
        await quick.hears("task_complete")
        assert room.told == [(1, "approved"), (2, "approved")]


async def test_whoever_cannot_take_its_snapshot_yet_is_asked_behind_it(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest, slow, fickle = await room.guest(), await room.guest(), await room.guest()
        await guest.say(conversation.id, 1)
        for one in (slow, fickle):
            one.door.writable = False
            stream = one.call("conversationStream", conversation_id=conversation.id)
            await one.answer_to(stream)
            if one is fickle:
                one.cancel(stream)
            await room.settle_down()
            assert one.asked == []
            one.door.read_on()

        assert slow.heard("notifications/initial_state", "elicitation/create") == [
            "notifications/initial_state",
            "elicitation/create",
        ]
        assert fickle.heard("notifications/initial_state", "elicitation/create") == []


# --- other ways to settle it ---------------------------------------------------------------


async def test_a_tool_answers_for_anybody_and_whoever_was_asked_is_told(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest, other = await room.guest(), await room.guest(version=PLAIN_VERSION, capabilities={})
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.question()
        listed = (await other.value_of(other.call("approvalsList")))["approvals"]
        answer = {"approval_id": listed[0]["approval_id"], "decision": "denied", "reason": "no\x1b[2J"}

        assert await other.value_of(other.call("approvalAnswer", **answer)) == {"status": "ok"}
        again = await other.value_of(other.call("approvalAnswer", **answer))
        await guest.hears("task_complete")

        assert again == {"status": "error", "message": "Question is settled: denied"}
        assert guest.taken_back == [taken_back(0, "denied")]
        assert room.told == [(1, "denied: no\\x1b[2J")]
        assert (await other.value_of(other.call("approvalsList"))) == {"approvals": []}


async def test_an_abort_ends_the_turn_and_whoever_else_was_asked_is_told(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest, other = await room.guest(), await room.guest()
        await guest.stream(conversation.id)
        await other.stream(conversation.id)
        await guest.say(conversation.id, 2)
        await guest.question()

        guest.answer(0, {"action": "cancel"})
        await guest.hears("error")

        assert room.told == []
        assert (guest.taken_back, other.taken_back) == ([], [taken_back(1, "abort")])
        assert settlements(room, conversation) == [*SETTLED, "turn_ended"]


@pytest.mark.promises("approvals.everybody", "approvals.dropped")
async def test_an_older_client_is_told_that_another_was_faster_and_not_that_a_question_was_dropped(
    home: str,
) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest, older = await room.guest(), await room.guest(version=PLAIN_VERSION)
        await guest.stream(conversation.id)
        await older.stream(conversation.id)
        await guest.say(conversation.id, 2)
        await older.question()
        guest.answer(0, YES)
        await older.question(2)

        guest.call("conversationInterrupt", conversation_id=conversation.id)
        older.answer(3, YES)
        await older.hears("error")

        assert older.taken_back == [taken_back(1, "approved")]
        assert guest.taken_back == [taken_back(2, "dropped")]
        assert room.told == [(1, "approved")]


@pytest.mark.promises("approvals.outlives")
async def test_the_end_of_the_server_leaves_the_question_open_and_the_next_one_asks_it(home: str) -> None:
    store = SlowStore()
    asked: list[Any] = []
    async with Room(home, store=store) as room:
        created = (await room.create()).id
        guest = await room.guest()
        await guest.say(created, 1)
        await guest.stream(created)
        asked.append(await guest.question())
    for _ in range(2):
        async with Room(home, store=store) as room:
            guest = await room.guest()
            await guest.stream(created)
            asked.append(await guest.question())
            conversation = await room.conversations.find(created)

        assert guest.taken_back == []
        assert settlements(room, conversation) == ["question_asked"]

    assert [one["params"]["parley_approval_id"] for one in asked] == [approval_id(1)] * 3


async def test_an_error_for_an_answer_is_a_no(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest()
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 2)
        await guest.question()
        guest.send({"jsonrpc": "2.0", "id": 0, "error": {"code": -32601, "message": "what?"}})
        await guest.question(2)
        guest.send({"jsonrpc": "2.0", "id": 1})
        await guest.hears("task_complete")

        assert room.told == [(1, "denied"), (2, "denied")]


async def test_a_message_that_joins_while_the_turn_waits_is_read_when_it_goes_on(home: str) -> None:
    async with Room(home) as room:
        conversation, busy = await room.create(), await room.create()
        guest = await room.guest()
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.question()
        await guest.say(conversation.id, 1)
        await guest.say(busy.id, 0)
        status = await guest.value_of(guest.call("conversationStatus", conversation_id=busy.id))
        assert (status["state"], len(guest.asked)) == ("idle", 1)

        guest.answer(0, YES)
        await guest.question(2)
        guest.answer(1, NO)
        await guest.hears("task_complete")

        assert room.told == [(1, "approved"), (2, "denied")]
        assert guest.number_of("task_started") == 1


# --- where nobody can be asked -------------------------------------------------------------

PATIENT = {"approvals": {"timeout_seconds": 30}}


async def unheard(room: Room, **approvals: Any) -> tuple[Guest, Any]:
    """A client that cannot be asked, streaming a conversation that asks."""
    conversation = await room.create({"approvals": {**PATIENT["approvals"], **approvals}})
    guest = await room.guest(capabilities={})
    await guest.stream(conversation.id)
    await guest.say(conversation.id, 1)
    await guest.hears("exec_approval_request")
    await room.settle_down()
    return guest, conversation


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}, {"elicitation": None}])
@pytest.mark.promises("approvals.nobody")
async def test_whoever_did_not_say_that_it_takes_forms_is_not_asked(home: str, capabilities: Any) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest(capabilities=capabilities)
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)
        await guest.hears("exec_approval_request")
        await room.settle_down()

        assert guest.asked == []


@pytest.mark.parametrize("capability", [{}, {"form": {}}, {"form": {}, "url": {}}])
async def test_whoever_said_that_it_takes_forms_is_asked(home: str, capability: Any) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest(capabilities={"elicitation": capability})
        await guest.stream(conversation.id)
        await guest.say(conversation.id, 1)

        await guest.question()


@pytest.mark.promises("approvals.nobody")
async def test_after_a_while_nobody_could_be_asked_and_the_model_is_told_so(home: str) -> None:
    async with Room(home) as room:
        guest, conversation = await unheard(room)
        room.clock.passes(29)
        await room.settle_down()
        assert room.told == []

        room.clock.passes(1)
        await guest.hears("task_complete")

        assert room.told == [(1, "denied: nobody could be asked")]
        settled = next(one["params"]["msg"] for one in guest.messages if one.get("method") == "approval_settled")
        assert settled == {
            "type": "approval_settled",
            "approval_id": approval_id(1),
            "call_id": "call1",
            "decision": "timed_out",
            "by": "timeout",
            "reason": "nobody could be asked",
        }
        assert settlements(room, conversation) == [*SETTLED, "turn_ended"]


async def test_after_a_while_the_turn_may_end_instead(home: str) -> None:
    async with Room(home) as room:
        guest, _ = await unheard(room, on_timeout="abort")
        room.clock.passes(30)
        await guest.hears("error")

        assert room.told == []
        settled = next(one["params"]["msg"] for one in guest.messages if one.get("method") == "approval_settled")
        assert (settled["decision"], settled["by"]) == ("abort", "timeout")


@pytest.mark.parametrize("approvals", [{"on_timeout": "hold"}, {"timeout_seconds": 0}])
async def test_a_question_may_be_held_however_long_it_takes(home: str, approvals: dict[str, Any]) -> None:
    async with Room(home) as room:
        guest, conversation = await unheard(room, **approvals)
        room.clock.passes(1_000_000)
        await room.settle_down()

        assert conversation.state.phase.value == "asking"
        assert len((await guest.value_of(guest.call("approvalsList")))["approvals"]) == 1


async def test_time_does_not_run_while_somebody_can_be_asked_and_begins_anew_when_that_one_is_gone(
    home: str,
) -> None:
    async with Room(home) as room:
        guest, conversation = await unheard(room)
        room.clock.passes(20)
        able = await room.guest()
        stream = await able.stream(conversation.id)
        await able.question()
        able.cancel(stream)  # it may still answer
        await room.settle_down()
        room.clock.passes(1_000)
        await room.settle_down()
        assert room.told == []

        able.leave()
        await room.settle_down()
        room.clock.passes(29)
        await room.settle_down()
        assert room.told == []
        room.clock.passes(1)
        await guest.hears("task_complete")

        assert room.told == [(1, "denied: nobody could be asked")]


async def test_whoever_called_and_is_gone_is_not_waited_for(home: str) -> None:
    async with Room(home) as room:
        caller, guest = await room.guest(), await room.guest(capabilities={})
        caller.call("codex", prompt="1", cwd="/project", config=PATIENT)
        await caller.question()
        (conversation,) = room.conversations
        await guest.stream(conversation.id)
        caller.leave()
        await room.settle_down()
        room.clock.passes(30)
        await guest.hears("task_complete")

        assert room.told == [(1, "denied: nobody could be asked")]


@pytest.mark.promises("approvals.nobody")
async def test_time_does_not_run_while_nobody_reads(home: str) -> None:
    async with Room(home) as room:
        guest, conversation = await unheard(room)
        guest.leave()
        room.clock.passes(1_000_000)
        await room.settle_down()

        assert (room.told, conversation.state.phase.value) == ([], "asking")


async def test_whoever_reads_now_and_then_counts_as_somebody_who_reads(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create({"approvals": {"timeout_seconds": 90}})
        guest = await room.guest()
        await guest.say(conversation.id, 1)
        for _ in range(3):
            page = await guest.value_of(guest.call("conversationRead", conversation_id=conversation.id))
            assert page["state"] == "asking"
            await room.settle_down()
            room.clock.passes(30)
            await room.settle_down()

        assert room.told == [(1, "denied: nobody could be asked")]


@pytest.mark.promises("approvals.nobody")
async def test_whoever_reads_seldom_is_not_left_waiting_for_ever(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create({"approvals": {"timeout_seconds": 90}})
        guest = await room.guest()
        await guest.say(conversation.id, 1)
        for _ in range(2):
            page = await guest.value_of(guest.call("conversationRead", conversation_id=conversation.id))
            assert page["state"] == "asking"
            for seconds in (30, 30, 1_000):
                await room.settle_down()
                room.clock.passes(seconds)
            await room.settle_down()

        assert room.told == [(1, "denied: nobody could be asked")]


@pytest.mark.promises("approvals.nobody")
async def test_a_stream_that_is_opened_again_does_not_begin_the_time_anew(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create(PATIENT)
        guest = await room.guest(capabilities={})
        await guest.say(conversation.id, 1)
        for _ in range(3):
            stream = await guest.stream(conversation.id)
            await room.settle_down()
            assert room.told == []
            room.clock.passes(10)
            guest.cancel(stream)
            await room.settle_down()
            room.clock.passes(1_000)

        assert room.told == [(1, "denied: nobody could be asked")]


@pytest.mark.promises("approvals.nobody")
async def test_whoever_can_be_asked_and_cannot_take_its_snapshot_yet_is_waited_for(home: str) -> None:
    async with Room(home) as room:
        guest, conversation = await unheard(room)
        slow, fickle = await room.guest(), await room.guest()
        for one in (slow, fickle):
            one.door.writable = False
        slow.call("conversationStream", conversation_id=conversation.id)
        await room.settle_down()
        room.clock.passes(1_000)
        await room.settle_down()
        assert room.told == []

        slow.leave()
        stream = fickle.call("conversationStream", conversation_id=conversation.id)
        await room.settle_down()
        room.clock.passes(1_000)
        fickle.cancel(stream)
        await room.settle_down()
        assert room.told == []
        room.clock.passes(30)
        await guest.hears("task_complete")

        assert room.told == [(1, "denied: nobody could be asked")]


async def test_whoever_has_read_once_and_not_again_is_not_waited_for(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create({"approvals": {"timeout_seconds": 90}})
        guest = await room.guest()
        await guest.say(conversation.id, 1)
        await guest.value_of(guest.call("conversationRead", conversation_id=conversation.id))
        await room.settle_down()
        for _ in range(10):
            room.clock.passes(30)
            await room.settle_down()

        assert (room.told, conversation.state.phase.value) == ([], "asking")


async def test_whoever_says_after_it_began_to_stream_that_it_can_be_asked_is_asked_from_then_on(home: str) -> None:
    async with Room(home) as room:
        conversation = await room.create()
        guest = await room.guest(capabilities=None)
        late = room.stranger()
        await late.stream(conversation.id)
        await guest.say(conversation.id, 2)
        await late.hears("exec_approval_request")
        late.introduce()
        await late.answer_to("hello")
        await guest.stream(conversation.id)
        await guest.question()
        guest.answer(0, YES)
        await late.question()
        late.answer(1, YES)
        await guest.hears("task_complete")

        assert room.told == [(1, "approved"), (2, "approved")]
        assert late.asked[0]["params"]["codex_call_id"] == "call2"

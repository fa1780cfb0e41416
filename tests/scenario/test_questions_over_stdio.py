"""What a client sees of questions: how it is asked, what each answer does, what becomes of those without one."""

from __future__ import annotations

import asyncio
import signal
from operator import itemgetter
from typing import Any, Final

import pytest

from kit.asked import ASKS_FIRST, AskedSpeaker, being_asked, events_of, settlements, types_of
from kit.calls import answered as call_answered
from kit.calls import interrupted
from kit.messages import TASK_STARTED, answered, delta, error, failed, initial_state, live
from kit.messages import agent_message as said
from kit.messages import task_complete as completed
from kit.running import PATIENCE_SECONDS
from kit.shell import shell
from parley.client import Answer, ElicitationAnswer, Question, ToolFailed
from parley.testing import Call, ParleyProcess, RecordedRequest, Says, ScriptedModel
from parley.wire.elicitation import FULL_SCHEMA
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

UNKNOWN: Final = "00000000-0000-4000-8000-00000000dead"
PATCH: Final = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch"


def patch(call_id: str) -> Call:
    return shell(call_id, "apply_patch", PATCH)


def approval(call_id: str, *command: str, cwd: object) -> Any:
    return {"type": "exec_approval_request", "call_id": call_id, "command": [*command], "cwd": str(cwd)}


def question(request_id: int, message: str, **fields: Any) -> Any:
    """What a client of an older version is asked."""
    params = {"message": message, "requestedSchema": {"type": "object", "properties": {}}, **fields}
    return {"jsonrpc": "2.0", "id": request_id, "method": "elicitation/create", "params": params}


def both(request_id: int, event_id: str, event: Any) -> list[Any]:
    """An event as a call is told it."""
    params = {"_meta": {"requestId": request_id}, "id": event_id, "msg": event}
    return [{"jsonrpc": "2.0", "method": method, "params": params} for method in ("codex/event", event["type"])]


def told(model: ScriptedModel) -> Any:
    """What the model was told about its last call."""
    return model.requests[-1].body["messages"][-1]["content"]


# --- how a client is asked -----------------------------------------------------------------


@pytest.mark.promises("approvals.plain", "approvals.event-first", "approvals.told")
async def test_an_older_client_is_asked_as_by_the_original(scripted_model: ScriptedModel) -> None:
    async with being_asked(scripted_model) as client:
        cwd = str(client.work)
        scripted_model.says(shell("call1", "git", "init", "--quiet", "repo dir"))
        scripted_model.says("Done")
        call = client.codex()
        before = await client.until_asked()
        client.answer(0, {"decision": "denied"})
        after = await client.until_answer(call)

        event_id = str(call)
        assert before[2:] == [
            *both(call, event_id, TASK_STARTED),
            *both(call, event_id, approval("call1", "git", "init", "--quiet", "repo dir", cwd=cwd)),
            question(
                0,
                f"Allow Codex to run `git init --quiet 'repo dir'` in `{cwd}`?",
                codex_elicitation="exec-approval",
                codex_mcp_tool_call_id=event_id,
                codex_event_id=event_id,
                codex_call_id="call1",
                codex_command=["git", "init", "--quiet", "repo dir"],
                codex_cwd=cwd,
            ),
        ]
        assert after == [
            *both(call, event_id, delta("Done")),
            *both(call, event_id, said("Done")),
            *both(call, event_id, completed("Done")),
            call_answered(call, "Done"),
        ]
        assert told(scripted_model) == "exec command rejected by user"

        scripted_model.says(patch("call2"))
        scripted_model.says("Done")
        call = client.codex()
        *_, asked = await client.until_asked()
        client.answer(1, {"decision": "denied"})
        await client.until_answer(call)

        assert asked == question(
            1,
            "Allow Codex to apply proposed code changes?",
            codex_elicitation="patch-approval",
            codex_mcp_tool_call_id=str(call),
            codex_event_id=str(call),
            codex_call_id="call2",
            codex_changes={f"{cwd}/new.txt": {"add": {"content": "hello\n"}}},
        )
        assert told(scripted_model) == "patch rejected by user"
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("approvals.full", "approvals.settled", "approvals.told", "approvals.list")
async def test_a_newer_client_is_asked_with_more_and_its_reason_is_told(scripted_model: ScriptedModel) -> None:
    async with being_asked(scripted_model, version=FULL_VERSION) as client:
        cwd = str(client.work)
        escalated = {"with_escalated_permissions": True, "justification": "needs to write"}
        scripted_model.says(shell("call1", "touch", "a\u200bb", **escalated))
        scripted_model.says("Done")
        call = client.codex(**{"approval-policy": "on-request", "sandbox": "read-only"})
        messages = await client.until_asked()
        listed = (await client.value_of(client.call("approvalsList")))["approvals"]
        client.answer(0, {"action": "accept", "content": {"decision": "denied", "reason": "not\x07here"}})
        messages += await client.until_answer(call)

        fields = {
            "codex_elicitation": "exec-approval",
            "codex_mcp_tool_call_id": str(call),
            "codex_event_id": str(call),
            "codex_call_id": "call1",
            "codex_command": ["touch", "a\u200bb"],
            "codex_cwd": cwd,
            "codex_reason": "needs to write",
            "parley_approval_id": listed[0]["approval_id"],
        }
        text = f"needs to write\nAllow Codex to run `touch $'a\\u200bb'` in `{cwd}`, outside the sandbox?"
        (asked,) = (one for one in messages if one.get("method") == "elicitation/create")
        assert asked["params"] == {"message": text, "requestedSchema": FULL_SCHEMA, **fields, "_meta": fields}
        assert [{**one, "asked_at": ""} for one in listed] == [
            {
                "approval_id": listed[0]["approval_id"],
                "conversation_id": events_of(messages)[0]["session_id"],
                "call_id": "call1",
                "kind": "exec",
                "message": text,
                "asked_at": "",
                "command": ["touch", "a\u200bb"],
                "cwd": cwd,
            }
        ]
        settled = next(one for one in events_of(messages) if one["type"] == "approval_settled")
        assert settled == {
            "type": "approval_settled",
            "approval_id": listed[0]["approval_id"],
            "call_id": "call1",
            "decision": "denied",
            "by": "client",
            "reason": "not\\x07here",
        }
        assert told(scripted_model) == "exec command rejected by user: not\\x07here"


# --- what each answer does -----------------------------------------------------------------

DENIED: Final = "exec command rejected by user"

ANSWERS: Final[list[tuple[Any, str, str | None]]] = [
    ({"result": {"decision": "approved"}}, "approved", None),
    ({"result": {"decision": "approved_for_session"}}, "approved_for_session", None),
    ({"result": {"action": "accept"}}, "approved", None),
    ({"result": {"action": "accept", "content": {"decision": "denied"}}}, "denied", DENIED),
    ({"result": {"action": "accept", "content": {"decision": "well"}}}, "approved", None),
    ({"result": {"decision": "denied", "reason": "no"}}, "denied", f"{DENIED}: no"),
    ({"result": {"action": "decline", "content": {"reason": "no"}}}, "denied", f"{DENIED}: no"),
    ({"result": {"decision": "denied", "action": "accept"}}, "denied", DENIED),
    ({"result": {"decision": "perhaps", "action": "accept"}}, "denied", DENIED),
    ({"result": {}}, "denied", DENIED),
    ({"result": "approved"}, "denied", DENIED),
    ({"method": None, "params": None, "error": None, "result": {"decision": "approved"}}, "approved", None),
    ({"method": None, "result": None, "error": {"code": -1, "message": "no"}}, "denied", DENIED),
    ({"error": {"code": -32601, "message": "what?"}}, "denied", DENIED),
]
"""An answer, the decision, and what the model is told where it did not run."""


@pytest.mark.promises("approvals.answers", "approvals.told", "approvals.settled")
async def test_each_answer_does_what_the_table_says(scripted_model: ScriptedModel) -> None:
    async with being_asked(scripted_model, version=FULL_VERSION) as client:
        for number, (answer, decision, refusal) in enumerate(ANSWERS):
            scripted_model.says(shell("c1", "touch", f"file{number}"))
            scripted_model.says("Done")
            call = client.codex()
            await client.until_asked()
            client.raw.send({"jsonrpc": "2.0", "id": number, **answer})
            messages = await client.until_answer(call)

            reason = {"reason": "no"} if refusal == f"{DENIED}: no" else {}
            assert settlements(messages) == [{"decision": decision, "by": "client", **reason}], answer
            assert (client.work / f"file{number}").exists() is (refusal is None), answer
            assert refusal is None or told(scripted_model) == refusal, answer
            assert messages[-1]["result"]["content"] == [{"type": "text", "text": "Done"}]


@pytest.mark.promises("approvals.answers", "approvals.told")
@pytest.mark.parametrize("answer", [{"decision": "abort"}, {"action": "cancel"}], ids=str)
async def test_an_abort_interrupts_the_turn_and_tells_the_model_nothing(
    scripted_model: ScriptedModel, answer: Any
) -> None:
    async with being_asked(scripted_model) as client:
        scripted_model.says(shell("c1", "touch", "a"), shell("c2", "touch", "b"))
        call = client.codex()
        await client.until_asked()
        client.answer(0, answer)
        after = await client.until_answer(call)

        assert after == [*both(call, str(call), error(" Turn interrupted")), interrupted(call)]
        assert len(scripted_model.requests) == 1
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("approvals.session")
async def test_what_was_allowed_for_the_session_is_not_asked_again_and_anything_else_is(
    scripted_model: ScriptedModel,
) -> None:
    async with being_asked(scripted_model) as client:
        (client.work / "sub").mkdir()
        scripted_model.says(
            shell("c1", "touch", "a"),
            shell("c2", "touch", "a"),
            shell("c3", "touch", "a", workdir="sub"),
            shell("escalated", "touch", "a", with_escalated_permissions=True),
            shell("c4", "touch", "b"),
            shell("c5", "touch", "b"),
        )
        scripted_model.says("Done")
        call = client.codex()
        answers = ["approved_for_session", "approved", "approved", "approved", "denied"]
        asked = []
        for number, answer in enumerate(answers):
            asked.append((await client.until_asked())[-1]["params"]["codex_call_id"])
            client.answer(number, {"decision": answer})
        await client.until_answer(call)

        assert asked == ["c1", "c3", "escalated", "c4", "c5"]


WRITE: Final = "sandbox_workspace_write"


@pytest.mark.promises("approvals.session")
async def test_what_was_allowed_for_the_session_holds_in_the_sandbox_and_the_place_it_was_allowed_in(
    scripted_model: ScriptedModel,
) -> None:
    async with being_asked(scripted_model) as client:
        settings = {"cwd": str(client.work), "approval_policy": "untrusted", "sandbox": "workspace-write"}
        create = client.call("conversationCreate", prompt="", model="m", **settings)
        conversation = (await client.value_of(create))["conversation_id"]
        await client.open_stream(conversation)

        async def is_asked(decision: str, **more: Any) -> bool:
            scripted_model.says(shell("c1", "touch", "a"))
            scripted_model.says("Done")
            await client.say(conversation, "go", **more)
            messages = await client.until(lambda one: one["method"] in ("elicitation/create", "task_complete"))
            if messages[-1]["method"] == "task_complete":
                return False
            client.answer(messages[-1]["id"], {"decision": decision})
            await client.until_method("task_complete")
            return True

        assert await is_asked("approved_for_session")
        assert not await is_asked("denied")
        assert await is_asked("denied", sandbox="read-only")
        assert await is_asked("denied", sandbox="workspace-write", config={f"{WRITE}.network_access": True})
        roots = {f"{WRITE}.network_access": False, f"{WRITE}.writable_roots": [str(client.work / "root")]}
        assert await is_asked("denied", config=roots)
        assert not await is_asked("denied", config={f"{WRITE}.writable_roots": []})
        link = client.work / "link"
        link.symlink_to(".")
        assert not await is_asked("denied", cwd=str(link))
        (client.work / "other").mkdir()
        link.unlink()
        link.symlink_to("other")
        assert await is_asked("denied", cwd=str(link))


# --- streams, and nobody there --------------------------------------------------------------


@pytest.mark.promises("approvals.held", "approvals.event-first", "status.result")
async def test_a_question_waits_for_a_stream_and_is_asked_once_on_a_connection(
    scripted_model: ScriptedModel,
) -> None:
    async with being_asked(scripted_model) as client:
        cwd = str(client.work)
        scripted_model.says(shell("c1", "touch", "a"))
        scripted_model.says("Done")
        create = client.call("conversationCreate", prompt="", model="m", cwd=cwd, **ASKS_FIRST)
        conversation = (await client.value_of(create))["conversation_id"]
        await client.say(conversation, "go")
        page = await client.value_of(client.call("conversationRead", conversation_id=conversation, wait_seconds=10))
        while page["state"] != "asking":
            page = await client.value_of(
                client.call("conversationRead", conversation_id=conversation, after=page["seq"], wait_seconds=10)
            )
        status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))
        listed = await client.value_of(client.call("approvalsList", conversation_id=conversation))
        assert (status["state"], status["questions"]) == ("asking", listed["approvals"])
        assert status["owner"] is not None

        stream, snapshot = await client.open_stream(conversation)
        asked = await client.read()
        assert snapshot == initial_state(conversation, TASK_STARTED, approval("c1", "touch", "a", cwd=cwd))
        assert asked == question(
            0,
            f"Allow Codex to run `touch a` in `{cwd}`?",
            codex_elicitation="exec-approval",
            codex_mcp_tool_call_id=str(create),
            codex_event_id="1",
            codex_call_id="c1",
            codex_command=["touch", "a"],
            codex_cwd=cwd,
        )

        client.cancel(stream)
        assert await client.meanwhile() == []
        _, again = await client.open_stream(conversation)
        assert again == snapshot
        assert await client.meanwhile() == []
        client.answer(0, {"decision": "denied"})
        assert await client.take(3) == [live(delta("Done")), live(said("Done")), live(completed("Done"))]


@pytest.mark.promises("approvals.once")
async def test_answers_that_are_early_late_doubled_or_foreign_settle_nothing(
    scripted_model: ScriptedModel,
) -> None:
    async with being_asked(scripted_model, version=FULL_VERSION) as client:
        scripted_model.says(shell("c1", "touch", "a"), shell("c1", "touch", "a"))
        scripted_model.says("Done")
        call = client.codex()
        first = await client.until_asked()
        with client.at_once():
            for foreign in (1, 2, -1, "0", "c1", 100):
                client.answer(foreign, {"decision": "approved"})
            client.answer(0, {"decision": "denied"})
            client.answer(0, {"decision": "approved"})
            client.answer(1, {"decision": "approved"})
        second = await client.until_asked()
        client.answer(0, {"decision": "approved"})
        assert await client.meanwhile() == []
        client.answer(1, {"decision": "denied"})
        rest = await client.until_answer(call)

        assert [first[-1]["id"], second[-1]["id"]] == [0, 1]
        assert settlements([*first, *second, *rest]) == [{"decision": "denied", "by": "client"}] * 2
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("approvals.answer", "approvals.list")
async def test_a_tool_answers_for_anybody(scripted_model: ScriptedModel) -> None:
    async with being_asked(scripted_model, version=FULL_VERSION) as client:
        scripted_model.says(shell("c1", "touch", "a"))
        scripted_model.says("Done")
        call = client.codex()
        asked = await client.until_asked()
        approval_id = asked[-1]["params"]["parley_approval_id"]
        answer = {"approval_id": approval_id, "decision": "denied", "reason": "later"}
        request_id = client.call("approvalAnswer", **answer)
        messages = await client.until_answer(call)

        assert answered(request_id, {"status": "ok"}) in messages
        assert settlements(messages) == [{"decision": "denied", "by": "tool", "reason": "later"}]
        taken_back = {"requestId": 0, "reason": "Question is settled: denied"}
        assert [one["params"] for one in messages if one.get("method") == "notifications/cancelled"] == [taken_back]
        assert told(scripted_model) == f"{DENIED}: later"

        again = client.call("approvalAnswer", **answer)
        assert await client.read() == failed(again, "Question is settled: denied")
        unknown = client.call("approvalAnswer", approval_id=UNKNOWN, decision="approved")
        assert await client.read() == failed(unknown, "Question does not exist")
        nowhere = client.call("approvalsList", conversation_id=UNKNOWN)
        assert await client.read() == failed(nowhere, "Conversation does not exist")
        assert await client.value_of(client.call("approvalsList")) == {"approvals": []}
        for bad in ({"decision": "approved"}, {**answer, "decision": "perhaps"}, {**answer, "approval_id": "7"}):
            refused = (await client.value_of(client.call("approvalAnswer", **bad)))["message"]
            assert refused.startswith("Failed to parse arguments for approvalAnswer: ")


async def test_while_one_conversation_asks_everything_else_goes_on(scripted_model: ScriptedModel) -> None:
    async with being_asked(scripted_model) as client:
        scripted_model.says(shell("c1", "touch", "a"))
        conversation = await client.create(**ASKS_FIRST)
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        await client.until_asked()

        scripted_model.says("Other")
        other = client.codex("else")
        assert (await client.until_answer(other))[-1] == call_answered(other, "Other")
        await client.say(conversation, "and another thing")
        scripted_model.says("Both")
        client.answer(0, {"decision": "denied"})
        assert types_of(await client.until_method("task_complete")) == [
            "agent_message_delta",
            "agent_message",
            "task_complete",
        ]
        roles = [one["role"] for one in scripted_model.requests[-1].body["messages"]][-4:]
        assert roles == ["user", "assistant", "tool", "user"]


# --- where nobody can be asked --------------------------------------------------------------


def was_told(asked: RecordedRequest) -> bool:
    """Whether a request tells the model what came of a call."""
    return bool(asked.body["messages"][-1]["role"] == "tool")


@pytest.mark.promises("approvals.nobody")
async def test_a_client_that_cannot_be_asked_is_not_left_waiting(scripted_model: ScriptedModel) -> None:
    async with being_asked(scripted_model, version=FULL_VERSION, capabilities={}) as client:
        scripted_model.replies(lambda asked: None if was_told(asked) else Says((shell("c1", "touch", "a"),)))
        denied = client.codex(config={"approvals": {"timeout_seconds": 1}})
        aborted = client.codex(config={"approvals.timeout_seconds": 1, "approvals.on_timeout": "abort"})
        messages = []
        waiting = {denied, aborted}
        while waiting:
            messages.append(await client.read())
            if "method" not in messages[-1]:
                waiting.discard(messages[-1]["id"])

        reason = "nobody could be asked"
        assert sorted(settlements(messages), key=itemgetter("decision")) == [
            {"decision": "abort", "by": "timeout", "reason": reason},
            {"decision": "timed_out", "by": "timeout", "reason": reason},
        ]
        assert "elicitation/create" not in types_of(messages)
        [asked] = filter(was_told, scripted_model.requests)
        assert asked.body["messages"][-1]["content"] == f"{DENIED}: {reason}"
        results = {one["id"]: one["result"]["content"][0]["text"] for one in messages if "result" in one}
        assert results == {denied: "Done", aborted: " Turn interrupted"}


# --- interrupts and ends --------------------------------------------------------------------


async def asking(client: AskedSpeaker, model: ScriptedModel) -> tuple[str, int]:
    """A streamed conversation that asks: its id, and that of the message."""
    model.says(shell("c1", "touch", "a"))
    conversation = await client.create(**ASKS_FIRST)
    await client.open_stream(conversation)
    message = await client.say(conversation, "go")
    await client.until_asked()
    return conversation, message


@pytest.mark.promises("approvals.dropped")
async def test_an_interrupt_drops_the_question_before_the_turn_ends(scripted_model: ScriptedModel) -> None:
    async with being_asked(scripted_model, version=FULL_VERSION) as client:
        conversation, message = await asking(client, scripted_model)
        client.cancel(message)
        cancelled = await client.until_method("error")

        end = ["approval_settled", "notifications/cancelled", "error"]
        assert types_of(cancelled) == end
        assert settlements(cancelled) == [{"decision": "dropped", "by": "interrupt"}]
        assert cancelled[1]["params"] == {"requestId": 0, "reason": "Question is settled: dropped"}
        client.answer(0, {"decision": "approved"})

        scripted_model.says(shell("c1", "touch", "a"))
        await client.say(conversation, "again")
        await client.until_asked()
        assert [kind for kind in types_of(await client.interrupt(conversation)) if kind != "answer"] == end

        scripted_model.says(shell("c1", "touch", "a"))
        await client.say(conversation, "and again")
        await client.until_asked()
        client.raw.child.send_signal(signal.SIGINT)
        assert types_of(await client.until_method("error")) == end
        client.answer(2, {"decision": "approved"})

        scripted_model.says("Fine")
        await client.say(conversation, "enough")
        assert events_of(await client.until_method("task_complete"))[-1] == completed("Fine")
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("approvals.plain", "approvals.dropped")
async def test_an_older_client_that_interrupts_hears_of_the_end_of_the_turn_alone(
    scripted_model: ScriptedModel,
) -> None:
    async with being_asked(scripted_model) as client:
        scripted_model.says(shell("c1", "touch", "a"))
        call = client.codex()
        await client.until_asked()
        with client.at_once():
            client.cancel(call)
            client.answer(0, {"decision": "approved"})
        after = await client.until_answer(call)

        assert after == [*both(call, str(call), error(" Turn interrupted")), interrupted(call)]
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("approvals.dropped")
@pytest.mark.parametrize("end", ["stdin", "SIGTERM"])
@pytest.mark.parametrize("version", [PLAIN_VERSION, FULL_VERSION])
async def test_a_server_that_ends_while_it_asks_ends_in_order(
    scripted_model: ScriptedModel, end: str, version: str
) -> None:
    async with being_asked(scripted_model, version=version) as client:
        await asking(client, scripted_model)
        if end == "stdin":
            client.raw.close_stdin()
        else:
            client.raw.terminate()
        assert types_of([await client.read()]) == ["notifications/stream_disconnected"]
        assert await client.raw.exit_code() == 0


# --- in the order of arrival ----------------------------------------------------------------


async def open_approval(client: AskedSpeaker) -> str:
    """The id of the one open question."""
    (listed,) = (await client.value_of(client.call("approvalsList")))["approvals"]
    return str(listed["approval_id"])


@pytest.mark.promises("framing.in-order", "approvals.once")
async def test_what_comes_in_one_read_takes_effect_in_its_order(scripted_model: ScriptedModel) -> None:
    async with being_asked(scripted_model, version=FULL_VERSION) as client:
        await asking(client, scripted_model)
        approval_id = await open_approval(client)
        scripted_model.says("Done")
        with client.at_once():
            client.call("approvalAnswer", approval_id=approval_id, decision="denied")
            client.answer(0, {"decision": "approved"})
        denied = await client.until_method("task_complete")
        assert settlements(denied) == [{"decision": "denied", "by": "tool"}]

        conversation, _ = await asking(client, scripted_model)
        with client.at_once():
            client.call("conversationInterrupt", conversation_id=conversation)
            client.answer(1, {"decision": "approved"})
        interrupted_first = await client.until_method("error")
        assert settlements(interrupted_first) == [{"decision": "dropped", "by": "interrupt"}]

        conversation, _ = await asking(client, scripted_model)
        with client.at_once():
            client.message(conversation, "and")
            client.answer(2, {"decision": "abort"})
        joined = ["answer", "user_message", "approval_settled"]
        assert types_of(await client.until_method("error")) == [*joined, "error"]

        conversation, message = await asking(client, scripted_model)
        with client.at_once():
            client.message(conversation, "and")
            client.cancel(message)
        assert types_of(await client.until_method("error")) == [*joined, "notifications/cancelled", "error"]

        assert await client.meanwhile() == []
        assert len(scripted_model.requests) == 5
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("framing.in-order", "lifecycle.end-of-stdin")
async def test_what_came_before_the_end_takes_effect_in_its_order(scripted_model: ScriptedModel) -> None:
    async with being_asked(scripted_model, version=FULL_VERSION) as client:
        await asking(client, scripted_model)
        approval_id = await open_approval(client)
        scripted_model.says("Done")
        with client.at_once():
            denial = client.call("approvalAnswer", approval_id=approval_id, decision="denied")
            client.answer(0, {"decision": "approved"})
        client.raw.close_stdin()
        messages = await client.until_method("notifications/stream_disconnected")

        assert answered(denial, {"status": "ok"}) in messages
        assert settlements(messages) == [{"decision": "denied", "by": "tool"}]
        assert await client.raw.exit_code() == 0
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("framing.in-order", "lifecycle.end-of-stdin")
async def test_what_was_asked_before_the_end_is_answered_though_nothing_was_open_yet(
    scripted_model: ScriptedModel,
) -> None:
    async with being_asked(scripted_model, version=FULL_VERSION) as client:
        with client.at_once():
            creating = client.call("conversationCreate", prompt="", model="m", cwd=str(client.work))
            listing = client.call("conversationsList")
        client.raw.close_stdin()
        created, listed = await client.value_behind(creating), await client.value_behind(listing)

        assert await client.raw.exit_code() == 0
        assert "conversation_id" in created
        assert len(listed["conversations"]) <= 1


@pytest.mark.promises("framing.too-long", "approvals.answers")
async def test_an_answer_that_cannot_be_read_is_a_no_also_where_the_client_has_a_request_of_that_id(
    scripted_model: ScriptedModel,
) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    answers = (
        b'{"jsonrpc":"2.0","id":0,"result":{"action":"accept","content":{"more":%b}}}\n' % deep,
        b'{"result":{"action":"accept","content":{"more":%b}},"jsonrpc":"2.0","id":1}\n' % deep,
        b'{"jsonrpc":"2.0","id":2,"result":{"action":"accept","content":{"more":NaN}}}\n',
    )
    async with being_asked(scripted_model) as client:
        settings = {"approval-policy": "untrusted", "sandbox": "danger-full-access", "cwd": str(client.work)}
        params = {"name": "codex", "arguments": {"prompt": "go", **settings}}
        for number, answer in enumerate(answers):
            scripted_model.says(shell("c1", "touch", "a"))
            scripted_model.says("Done")
            client.raw.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            *_, asked = await client.until_asked()
            client.write(answer)
            after = await client.until_answer(number)

            assert asked["id"] == number
            assert after[-1] == call_answered(number, "Done")
            assert told(scripted_model) == DENIED
        assert list(client.work.iterdir()) == []


# --- the client library ---------------------------------------------------------------------


async def test_our_client_answers_by_a_callback_or_from_a_list(scripted_model: ScriptedModel) -> None:
    asked = asyncio.Event()
    taken_back = asyncio.Event()

    async def decide(question: Question) -> Answer:
        if question.codex_command == ("touch", "a"):
            return "approved"
        if question.codex_command == ("touch", "b"):
            return ElicitationAnswer(decision="denied", reason="not b")
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            taken_back.set()
        raise AssertionError("nobody wants to know")

    async with asyncio.timeout(PATIENCE_SECONDS), ParleyProcess(scripted_model, on_question=decide) as parley:
        scripted_model.says(*(shell(f"c-{name}", "touch", name) for name in "abc"))
        scripted_model.says("Done")
        conversation = await parley.create(approval_policy="untrusted", sandbox="danger-full-access")
        async with conversation.stream() as stream:
            await conversation.send("go")
            await asked.wait()
            (waiting,) = await parley.client.approvals(conversation.id)
            assert (waiting.command, await parley.client.approvals()) == (("touch", "c"), (waiting,))
            assert (await conversation.status()).questions == (waiting,)
            await parley.client.answer(waiting.approval_id, "denied", reason="nor c")
            await taken_back.wait()
            assert await stream.text() == "Done"
            assert await parley.client.approvals() == ()
            with pytest.raises(ToolFailed, match="Question is settled: denied"):
                await parley.client.answer(waiting.approval_id, "approved")

        outputs = [one["content"] for one in scripted_model.requests[-1].body["messages"] if one["role"] == "tool"]
        assert outputs[1:] == [f"{DENIED}: not b", f"{DENIED}: nor c"]
        assert [path.name for path in parley.work.iterdir()] == ["a"]

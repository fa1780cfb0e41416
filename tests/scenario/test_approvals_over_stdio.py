"""Approval requests as a client sees them, and approvals without an answer."""

from __future__ import annotations

import asyncio
import signal
from operator import itemgetter
from typing import Any, Final

import pytest

from kit.clients.approving import (
    ASKS_FIRST,
    DENIED,
    approving_client,
    asking,
    events_of,
    last_output,
    settlements,
    types_of,
)
from kit.clients.codex_calls import answered as call_answered
from kit.clients.codex_calls import interrupted, pairs
from kit.clients.messages import TASK_STARTED, delta, error, initial_state, live
from kit.clients.messages import agent_message as said
from kit.clients.messages import task_complete as completed
from kit.clients.reading import until_state
from kit.clients.shell_turns import shell
from kit.servers.on_terminal import ON_TERMINAL
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import Approval, ToolFailed
from parley.testing import Call, ParleyProcess, RecordedRequest, Says, ScriptedModel
from parley.wire.elicitation import FULL_SCHEMA
from parley.wire.mcp import FULL_VERSION

PATCH: Final = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch"


def patch(call_id: str) -> Call:
    return shell(call_id, "apply_patch", PATCH)


def approval(call_id: str, *command: str, cwd: object) -> Any:
    return {"type": "exec_approval_request", "call_id": call_id, "command": [*command], "cwd": str(cwd)}


def approval_request(request_id: int, message: str, **fields: Any) -> Any:
    """Return the approval request for a client of an older version."""
    params = {"message": message, "requestedSchema": {"type": "object", "properties": {}}, **fields}
    return {"jsonrpc": "2.0", "id": request_id, "method": "elicitation/create", "params": params}


# --- approval requests -----------------------------------------------------------------------


@pytest.mark.promises("approvals.plain", "approvals.event-first", "approvals.denied")
async def test_an_older_client_is_asked_as_by_the_original(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model) as client:
        cwd = str(client.work)
        parley_model.says(shell("call1", "git", "init", "--quiet", "repo dir"))
        parley_model.says("Done")
        call = client.codex()
        before = await client.until_asked()
        client.answer(0, {"decision": "denied"})
        after = await client.until_answer(call)

        event_id = str(call)
        assert before[2:] == [
            *pairs(call, event_id, TASK_STARTED, approval("call1", "git", "init", "--quiet", "repo dir", cwd=cwd)),
            approval_request(
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
            *pairs(call, event_id, delta("Done"), said("Done"), completed("Done")),
            call_answered(call, "Done"),
        ]
        assert last_output(parley_model) == DENIED

        parley_model.says(patch("call2"))
        parley_model.says("Done")
        call = client.codex()
        *_, asked = await client.until_asked()
        client.answer(1, {"decision": "denied"})
        await client.until_answer(call)

        assert asked == approval_request(
            1,
            "Allow Codex to apply proposed code changes?",
            codex_elicitation="patch-approval",
            codex_mcp_tool_call_id=str(call),
            codex_event_id=str(call),
            codex_call_id="call2",
            codex_changes={f"{cwd}/new.txt": {"add": {"content": "hello\n"}}},
        )
        assert last_output(parley_model) == "patch rejected by user"
        assert list(client.work.iterdir()) == []


async def test_a_large_patch_with_the_same_line_many_times_reaches_its_approval_request(
    parley_model: ScriptedModel,
) -> None:
    lines = "\n x" * 80_000
    text = f"*** Begin Patch\n*** Update File: a.txt\n@@{lines}\n-end\n+END\n*** End Patch"
    async with approving_client(parley_model) as client:
        path = client.work / "a.txt"
        path.write_text("x\n" * 160_000 + "end\n")
        parley_model.says(Call("apply_patch", {"input": text}))
        parley_model.says("Done")
        call = client.codex()
        *_, asked = await client.until_asked()
        client.answer(0, {"decision": "approved"})
        await client.until_answer(call)

        diff = "@@ -160000,2 +160000,2 @@\n x\n-end\n+END\n"
        shown = {"update": {"unified_diff": diff, "move_path": None}}
        assert asked["params"]["codex_changes"] == {str(path): shown}
        assert path.read_text() == "x\n" * 160_000 + "END\n"


@pytest.mark.parametrize(
    "words",
    [
        "command failed; retry without sandbox?",
        "an earlier command changed protected files that could not be restored: /project/.git",
        "The working directory was replaced after this was approved.",
    ],
)
@pytest.mark.promises("approvals.model-words")
async def test_a_justification_in_the_words_of_the_server_is_marked_as_the_model_s(
    parley_model: ScriptedModel, words: str
) -> None:
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        parley_model.says(shell("call1", "touch", "a", with_escalated_permissions=True, justification=words))
        parley_model.says("Done")
        call = client.codex(**{"approval-policy": "on-request", "sandbox": "workspace-write"})
        asked = (await client.until_asked())[-1]
        client.answer(asked["id"], {"action": "decline"})
        await client.until_answer(call)

    question = f"Allow Codex to run `touch a` in `{client.work}`, outside the sandbox?"
    assert asked["params"]["message"].split("\n") == [f'The model says: "{words}"', question]


@pytest.mark.promises("approvals.full", "approvals.settled", "approvals.denied", "approvals.list")
async def test_a_newer_client_gets_more_details_and_the_model_reads_its_reason(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        cwd = str(client.work)
        escalated = {"with_escalated_permissions": True, "justification": "needs to write"}
        parley_model.says(shell("call1", "touch", "a\u200bb", **escalated))
        parley_model.says("Done")
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
            "parley_conversation_id": events_of(messages)[0]["session_id"],
            "parley_leaves_sandbox": True,
        }
        text = (
            'The model says: "needs to write"\n'
            f"Allow Codex to run `touch $'a\\u200bb'` in `{cwd}`, outside the sandbox?"
        )
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
                "leaves_sandbox": True,
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
            "principal": "local",
        }
        assert last_output(parley_model) == f"{DENIED}: not\\x07here"


@pytest.mark.promises("approvals.full", "approvals.files")
async def test_a_newer_client_gets_the_resolved_paths_of_the_files_of_a_patch(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        (client.work / "real").mkdir()
        (client.work / "link").symlink_to("real")
        (client.work / "real" / "old").write_text("old\n")
        names = [f"f{number:02}\u202e" for number in range(11)]
        lines = [line for name in names for line in (f"*** Add File: {name}", "+hello")]
        text = "\n".join(("*** Begin Patch", "*** Delete File: ../real/old", *lines, "*** End Patch"))
        parley_model.says(Call("shell", {"command": ["apply_patch", text]}, call_id="c1"))
        parley_model.says("Done")
        client.codex(cwd=str(client.work / "link"))
        *_, asked = await client.until_asked()
        client.answer(0, {"decision": "denied"})

    first, *files = asked["params"]["message"].split("\n")
    work = client.work.resolve()
    assert first == "Allow Codex to apply proposed code changes?"
    assert len(files) == 11
    assert f"- delete {work}/real/old" in files
    assert f"- add $'{work}/real/f00\\u202e'" in files
    assert files[-1] == "- and 2 more"
    assert asked["params"]["_meta"]["parley_conversation_id"]


# --- streams, and no recipients --------------------------------------------------------------


@pytest.mark.promises("approvals.held", "approvals.event-first", "status.result")
async def test_an_approval_waits_for_a_stream_and_is_requested_once_per_connection(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model) as client:
        cwd = str(client.work)
        parley_model.says(shell("c1", "touch", "a"))
        parley_model.says("Done")
        create = client.call("conversationCreate", prompt="", model="m", cwd=cwd, **ASKS_FIRST)
        conversation = (await client.value_of(create))["conversation_id"]
        await client.say(conversation, "go")
        await until_state(client, conversation, "asking")
        status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))
        listed = await client.value_of(client.call("approvalsList", conversation_id=conversation))
        assert (status["state"], status["questions"]) == ("asking", listed["approvals"])
        assert status["owner"] is not None

        stream, snapshot = await client.open_stream(conversation)
        asked = await client.read()
        assert snapshot == initial_state(conversation, TASK_STARTED, approval("c1", "touch", "a", cwd=cwd))
        assert asked == approval_request(
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


async def test_while_one_conversation_waits_for_an_approval_everything_else_continues(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model) as client:
        parley_model.says(shell("c1", "touch", "a"))
        conversation = await client.create(**ASKS_FIRST)
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        await client.until_asked()

        parley_model.says("Other")
        other = client.codex("else")
        assert (await client.until_answer(other))[-1] == call_answered(other, "Other")
        await client.say(conversation, "and another thing")
        parley_model.says("Both")
        client.answer(0, {"decision": "denied"})
        assert types_of(await client.until_method("task_complete")) == [
            "agent_message_delta",
            "agent_message",
            "task_complete",
        ]
        roles = [one["role"] for one in parley_model.requests[-1].body["messages"]][-4:]
        assert roles == ["user", "assistant", "tool", "user"]


def has_output(asked: RecordedRequest) -> bool:
    """Return whether a model request contains the output of a call."""
    return bool(asked.body["messages"][-1]["role"] == "tool")


@pytest.mark.promises("approvals.no-client")
async def test_a_client_that_cannot_be_asked_is_not_left_waiting(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=FULL_VERSION, capabilities={}) as client:
        parley_model.set_handler(lambda asked: None if has_output(asked) else Says((shell("c1", "touch", "a"),)))
        waits = {"approvals.when_nobody": "wait", "approvals.timeout_seconds": 1}
        denied = client.codex(config=waits)
        aborted = client.codex(config={**waits, "approvals.on_timeout": "abort"})
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
        [asked] = filter(has_output, parley_model.requests)
        assert asked.body["messages"][-1]["content"] == f"{DENIED}: {reason}"
        results = {one["id"]: one["result"]["content"][0]["text"] for one in messages if "result" in one}
        assert results == {denied: "Done", aborted: " Turn interrupted"}


# --- interrupts ------------------------------------------------------------------------------


@pytest.mark.promises("approvals.dropped")
async def test_an_interrupt_drops_the_approval_before_the_turn_ends(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=FULL_VERSION, program=ON_TERMINAL) as client:
        conversation, _ = await asking(client, parley_model)
        cancelled = [one for one in await client.interrupt(conversation) if "method" in one]

        end = ["approval_settled", "notifications/cancelled", "error"]
        assert types_of(cancelled) == end
        assert settlements(cancelled) == [{"decision": "dropped", "by": "interrupt"}]
        assert cancelled[1]["params"] == {
            "requestId": 0,
            "reason": "Question is settled: dropped by local (interrupt)",
        }
        client.answer(0, {"decision": "approved"})

        parley_model.says(shell("c1", "touch", "a"))
        await client.say(conversation, "again")
        await client.until_asked()
        assert [kind for kind in types_of(await client.interrupt(conversation)) if kind != "answer"] == end

        parley_model.says(shell("c1", "touch", "a"))
        await client.say(conversation, "and again")
        await client.until_asked()
        client.raw.process.send_signal(signal.SIGINT)
        assert types_of(await client.until_method("error")) == end
        client.answer(2, {"decision": "approved"})

        parley_model.says("Fine")
        await client.say(conversation, "enough")
        assert events_of(await client.until_method("task_complete"))[-1] == completed("Fine")
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("approvals.plain", "approvals.dropped")
async def test_an_older_client_that_interrupts_sees_only_the_end_of_the_turn(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model) as client:
        parley_model.says(shell("c1", "touch", "a"))
        call = client.codex()
        await client.until_asked()
        with client.at_once():
            client.cancel(call)
            client.answer(0, {"decision": "approved"})
        after = await client.until_answer(call)

        assert after == [*pairs(call, str(call), error(" Turn interrupted")), interrupted(call)]
        assert list(client.work.iterdir()) == []


# --- the client library ----------------------------------------------------------------------


async def test_our_client_answers_by_a_callback_or_from_a_list(parley_model: ScriptedModel) -> None:
    asked = asyncio.Event()
    taken_back = asyncio.Event()

    async def decide(approval: Approval) -> None:
        if approval.command == ("touch", "a"):
            await approval.approve()
            return
        if approval.command == ("touch", "b"):
            await approval.deny("not b")
            return
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            taken_back.set()
        raise AssertionError("nobody wants to know")

    async with asyncio.timeout(TIMEOUT_SECONDS), ParleyProcess(parley_model, on_approval=decide) as parley:
        parley_model.says(*(shell(f"c-{name}", "touch", name) for name in "abc"))
        parley_model.says("Done")
        conversation = await parley.create(approval_policy="untrusted", sandbox="danger-full-access")
        async with conversation.stream() as stream:
            await conversation.send("go")
            await asked.wait()
            (waiting,) = await parley.client.approvals(conversation.id)
            assert waiting.command == ("touch", "c")
            assert [one.approval_id for one in await parley.client.approvals()] == [waiting.approval_id]
            assert [one.approval_id for one in (await conversation.status()).approvals] == [waiting.approval_id]
            await waiting.deny("nor c")
            await taken_back.wait()
            assert await stream.text() == "Done"
            assert await parley.client.approvals() == ()
            with pytest.raises(ToolFailed, match="Question is settled: denied"):
                await waiting.approve()

        outputs = [one["content"] for one in parley_model.requests[-1].body["messages"] if one["role"] == "tool"]
        assert outputs[1:] == [f"{DENIED}: not b", f"{DENIED}: nor c"]
        assert [path.name for path in parley.work.iterdir()] == ["a"]

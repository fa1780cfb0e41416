"""The effects of a client's answers over stdio: single, for a session, out of order, and by a tool."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kit.clients.approving import (
    DENIED,
    approving_client,
    asking,
    last_output,
    open_approval,
    settlements,
    types_of,
)
from kit.clients.codex_calls import answered as call_answered
from kit.clients.codex_calls import interrupted, pairs
from kit.clients.messages import answered, error, failed
from kit.clients.shell_turns import shell
from parley.testing import ScriptedModel
from parley.wire.mcp import FULL_VERSION

UNKNOWN: Final = "00000000-0000-4000-8000-00000000dead"


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
"""An answer, the decision, and the output that the model gets if the command did not run."""


@pytest.mark.promises("approvals.answers", "approvals.denied", "approvals.settled")
async def test_each_answer_does_what_the_table_says(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        for number, (answer, decision, refusal) in enumerate(ANSWERS):
            parley_model.says(shell("c1", "touch", f"file{number}"))
            parley_model.says("Done")
            call = client.codex()
            await client.until_asked()
            client.raw.send({"jsonrpc": "2.0", "id": number, **answer})
            messages = await client.until_answer(call)

            reason = {"reason": "no"} if refusal == f"{DENIED}: no" else {}
            assert settlements(messages) == [{"decision": decision, "by": "client", **reason}], answer
            assert (client.work / f"file{number}").exists() is (refusal is None), answer
            assert refusal is None or last_output(parley_model) == refusal, answer
            assert messages[-1]["result"]["content"] == [{"type": "text", "text": "Done"}]


@pytest.mark.child_process
@pytest.mark.promises("approvals.answers", "approvals.denied")
@pytest.mark.parametrize("answer", [{"decision": "abort"}, {"action": "cancel"}], ids=str)
async def test_an_abort_interrupts_the_turn_and_the_model_reads_nothing_of_it(
    parley_model: ScriptedModel, answer: Any
) -> None:
    async with approving_client(parley_model) as client:
        parley_model.says(shell("c1", "touch", "a"), shell("c2", "touch", "b"))
        call = client.codex()
        await client.until_asked()
        client.answer(0, answer)
        after = await client.until_answer(call)

        assert after == [*pairs(call, str(call), error(" Turn interrupted")), interrupted(call)]
        assert len(parley_model.requests) == 1
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("approvals.session")
async def test_an_action_approved_for_the_session_is_not_asked_again_and_others_are(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model) as client:
        (client.work / "sub").mkdir()
        parley_model.says(
            shell("c1", "touch", "a"),
            shell("c2", "touch", "a"),
            shell("c3", "touch", "a", workdir="sub"),
            shell("escalated", "touch", "a", with_escalated_permissions=True),
            shell("c4", "touch", "b"),
            shell("c5", "touch", "b"),
        )
        parley_model.says("Done")
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
async def test_a_session_grant_holds_only_for_the_same_sandbox_and_directory(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model) as client:
        settings = {"cwd": str(client.work), "approval_policy": "untrusted", "sandbox": "workspace-write"}
        create = client.call("conversationCreate", prompt="", model="m", **settings)
        conversation = (await client.value_of(create))["conversation_id"]
        await client.open_stream(conversation)

        async def is_asked(decision: str, **more: Any) -> bool:
            parley_model.says(shell("c1", "touch", "a"))
            parley_model.says("Done")
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


@pytest.mark.promises("approvals.once")
async def test_answers_that_are_early_late_doubled_or_foreign_settle_nothing(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        parley_model.says(shell("c1", "touch", "a"), shell("c1", "touch", "a"))
        parley_model.says("Done")
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


@pytest.mark.promises("framing.too-long", "approvals.answers")
async def test_an_answer_that_cannot_be_read_is_a_no_also_where_the_client_has_a_request_of_that_id(
    parley_model: ScriptedModel,
) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    answers = (
        b'{"jsonrpc":"2.0","id":0,"result":{"action":"accept","content":{"more":%b}}}\n' % deep,
        b'{"result":{"action":"accept","content":{"more":%b}},"jsonrpc":"2.0","id":1}\n' % deep,
        b'{"jsonrpc":"2.0","id":2,"result":{"action":"accept","content":{"more":NaN}}}\n',
    )
    async with approving_client(parley_model) as client:
        settings = {"approval-policy": "untrusted", "sandbox": "danger-full-access", "cwd": str(client.work)}
        params = {"name": "codex", "arguments": {"prompt": "go", **settings}}
        for number, answer in enumerate(answers):
            parley_model.says(shell("c1", "touch", "a"))
            parley_model.says("Done")
            client.raw.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            *_, asked = await client.until_asked()
            client.write(answer)
            after = await client.until_answer(number)

            assert asked["id"] == number
            assert after[-1] == call_answered(number, "Done")
            assert last_output(parley_model) == DENIED
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("framing.in-order", "approvals.once")
async def test_messages_of_one_read_take_effect_in_order(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        await asking(client, parley_model)
        approval_id = await open_approval(client)
        parley_model.says("Done")
        with client.at_once():
            client.call("approvalAnswer", approval_id=approval_id, decision="denied")
            client.answer(0, {"decision": "approved"})
        denied = await client.until_method("task_complete")
        assert settlements(denied) == [{"decision": "denied", "by": "tool"}]

        conversation, _ = await asking(client, parley_model)
        with client.at_once():
            client.call("conversationInterrupt", conversation_id=conversation)
            client.answer(1, {"decision": "approved"})
        interrupted_first = await client.until_method("error")
        assert settlements(interrupted_first) == [{"decision": "dropped", "by": "interrupt"}]

        conversation, _ = await asking(client, parley_model)
        with client.at_once():
            client.message(conversation, "and")
            client.answer(2, {"decision": "abort"})
        joined = ["answer", "user_message", "approval_settled"]
        assert types_of(await client.until_method("error")) == [*joined, "error"]

        conversation, _ = await asking(client, parley_model)
        with client.at_once():
            client.message(conversation, "and")
            client.call("conversationInterrupt", conversation_id=conversation)
        interrupted = types_of(await client.until_method("error"))
        assert [kind for kind in interrupted if kind != "answer"] == [
            "user_message",
            "approval_settled",
            "notifications/cancelled",
            "error",
        ]
        assert types_of(await client.meanwhile()) in ([], ["answer"])

        assert len(parley_model.requests) == 5
        assert list(client.work.iterdir()) == []


@pytest.mark.promises("approvals.answer", "approvals.list")
async def test_the_tool_answers_approvals_of_any_client(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        parley_model.says(shell("c1", "touch", "a"))
        parley_model.says("Done")
        call = client.codex()
        asked = await client.until_asked()
        approval_id = asked[-1]["params"]["parley_approval_id"]
        answer = {"approval_id": approval_id, "decision": "denied", "reason": "later"}
        request_id = client.call("approvalAnswer", **answer)
        messages = await client.until_answer(call)

        assert answered(request_id, {"status": "ok"}) in messages
        assert settlements(messages) == [{"decision": "denied", "by": "tool", "reason": "later"}]
        settled = "Question is settled: denied by local (tool)"
        taken_back = {"requestId": 0, "reason": settled}
        assert [one["params"] for one in messages if one.get("method") == "notifications/cancelled"] == [taken_back]
        assert last_output(parley_model) == f"{DENIED}: later"

        again = client.call("approvalAnswer", **answer)
        late = (await client.until_answer(again))[-1]["result"]["structuredContent"]
        assert late.pop("settled_at")
        facts = {"decision": "denied", "by": "tool", "principal": "local", "reason": "later"}
        assert late == {"status": "error", "message": settled, "code": "approval_settled", **facts}
        unknown = client.call("approvalAnswer", approval_id=UNKNOWN, decision="approved")
        assert await client.read() == failed(unknown, "Question does not exist", "unknown_approval")
        nowhere = client.call("approvalsList", conversation_id=UNKNOWN)
        assert await client.read() == failed(nowhere, "Conversation does not exist", "unknown_conversation")
        assert await client.value_of(client.call("approvalsList")) == {"approvals": []}
        for bad in ({"decision": "approved"}, {**answer, "decision": "perhaps"}, {**answer, "approval_id": "7"}):
            refused = (await client.value_of(client.call("approvalAnswer", **bad)))["message"]
            assert refused.startswith("Failed to parse arguments for approvalAnswer: ")

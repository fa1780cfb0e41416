"""The end of stdin, and signals: earlier messages take effect, and an open approval stays open."""

from __future__ import annotations

import pytest

from kit.clients.approving import approving_client, asking, open_approval, settlements, types_of
from kit.clients.messages import answered
from parley.testing import ScriptedModel
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

pytestmark = pytest.mark.child_process


@pytest.mark.promises("approvals.dropped")
@pytest.mark.parametrize(
    ("end", "version"),
    [
        ("stdin", FULL_VERSION),
        ("SIGTERM", PLAIN_VERSION),
        pytest.param("stdin", PLAIN_VERSION, marks=pytest.mark.long),
        pytest.param("SIGTERM", FULL_VERSION, marks=pytest.mark.long),
    ],
)
async def test_a_server_with_an_open_approval_ends_in_order(
    parley_model: ScriptedModel, end: str, version: str
) -> None:
    async with approving_client(parley_model, version=version) as client:
        await asking(client, parley_model)
        if end == "stdin":
            client.raw.close_stdin()
        else:
            client.raw.terminate()
        assert types_of([await client.read()]) == ["notifications/stream_disconnected"]
        assert await client.raw.exit_code() == 0


@pytest.mark.promises("framing.in-order", "lifecycle.end-of-stdin")
async def test_messages_before_the_end_of_stdin_take_effect_in_order(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        await asking(client, parley_model)
        approval_id = await open_approval(client)
        parley_model.says("Done")
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
async def test_requests_before_the_end_of_stdin_are_answered_although_the_home_was_not_open(
    parley_model: ScriptedModel,
) -> None:
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        with client.at_once():
            creating = client.call("conversationCreate", prompt="", model="m", cwd=str(client.work))
            listing = client.call("conversationsList")
        client.raw.close_stdin()
        created, listed = await client.value_after(creating), await client.value_after(listing)

        assert await client.raw.exit_code() == 0
        assert "conversation_id" in created
        assert len(listed["conversations"]) <= 1

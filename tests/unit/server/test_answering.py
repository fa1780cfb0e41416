"""Several clients and one approval: the answer that counts, and the messages to the other clients."""

from __future__ import annotations

import pytest

from kit.builders.approvals import approval_id
from kit.servers.local_server import LocalServer
from kit.servers.settlements import NO, SETTLED, YES, settlements, taken_back
from kit.servers.slow_store import SlowStore
from parley.runtime.durable_log import WRITE_RETRY_SECONDS
from parley.wire.framing import PREFIX_BYTES, Overlong
from parley.wire.jsonrpc import encode
from parley.wire.mcp import PLAIN_VERSION


@pytest.mark.promises("approvals.once")
async def test_late_doubled_and_foreign_answers_settle_nothing_else(home: str) -> None:
    async with LocalServer(home) as server:
        client, other = await server.client(), await server.client()
        conversation = await server.asking(client, other, approvals=2)
        for foreign in (1, 7, "0", -1):
            client.answer(foreign, YES)
        await server.settle_down()
        assert server.decisions == []

        client.answer(0, NO)
        client.answer(0, YES)
        await client.approval_request(2)
        client.answer(0, YES)
        other.answer(1, YES)
        await server.settle_down()
        assert server.decisions == [(1, "denied")]
        other.answer(3, NO)
        await client.wait_for_message("task_complete")

        assert server.decisions == [(1, "denied"), (2, "denied")]
        assert [one["id"] for one in client.asked] == [0, 2]
        assert settlements(server, conversation) == [*SETTLED, *SETTLED, "turn_ended"]


@pytest.mark.promises("approvals.once")
async def test_a_client_that_comes_back_cannot_settle_another_approval_by_a_late_answer(home: str) -> None:
    async with LocalServer(home) as server:
        client, other = await server.client(), await server.client(capabilities={})
        conversation = await server.asking(client, approvals=2)
        first = client.asked[0]
        client.leave()
        await other.value_of(other.call("approvalAnswer", approval_id=approval_id(1), decision="denied"))
        back = await server.client()
        await back.stream(conversation.id)
        second = await back.approval_request()

        back.answer(first["id"], YES)
        back.answer(second["id"], NO)
        await back.wait_for_message("task_complete")

        assert (first["id"], second["id"]) == (0, 1)
        assert server.decisions == [(1, "denied"), (2, "denied")]


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
    async with LocalServer(home) as server:
        client = await server.client()
        await server.asking(client)

        client.send_frame(Overlong(b'{"id":0,"method":"ping","params":{"more":"aaa'))
        client.send_frame(Overlong(b'{"id":7,"result":{"more":"aaa'))
        client.send_frame(answer)
        await client.wait_for_message("task_complete")

        assert server.decisions == [(1, "denied")]
        data = {"code": "message_too_large"}
        refused = {"code": -32600, "message": "message is longer than 64 MB", "data": data}
        assert [one for one in client.messages if "error" in one] == [{"jsonrpc": "2.0", "id": 0, "error": refused}]


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
    async with LocalServer(home) as server:
        client = await server.client()
        await server.asking(client)

        for line in (b'{"id":0,"method":"ping","params":{"more":NaN}}', b'{"id":0,"method":5}', b'{"id":0'):
            client.send_frame(line)
        await server.settle_down()
        decisions_before = list(server.decisions)
        client.send_frame(answer)
        await client.wait_for_message("task_complete")

        assert (decisions_before, server.decisions) == ([], [(1, "denied")])
        assert [one for one in client.messages if "error" in one] == []


async def test_an_answer_that_cannot_be_stored_is_tried_again(home: str, caplog: pytest.LogCaptureFixture) -> None:
    store = SlowStore()
    async with LocalServer(home, store=store) as server:
        client = await server.client()
        conversation = await server.asking(client)

        store.slow = True
        client.answer(0, YES)
        await server.settle_down()
        await store.fail()
        await server.settle_down()
        store.slow = False
        server.clock.passes(WRITE_RETRY_SECONDS)
        await client.wait_for_message("task_complete")

        assert server.decisions == [(1, "approved")]
        assert client.taken_back == []
        assert settlements(server, conversation) == [*SETTLED, "turn_ended"]
        assert caplog.messages[-1].startswith("the answer to an approval is not stored yet: ")


@pytest.mark.promises("approvals.everybody")
async def test_clients_do_not_see_an_answer_before_it_is_durable(home: str) -> None:
    store = SlowStore()
    async with LocalServer(home, store=store) as server:
        client, other = await server.client(), await server.client()
        conversation = await server.asking(client, other)

        store.slow = True
        client.answer(0, YES)
        await server.settle_down()
        other.answer(1, NO)
        await server.settle_down()
        assert (server.decisions, other.taken_back, other.number_of("approval_settled")) == ([], [], 0)

        store.slow = False
        await store.write()
        await other.wait_for_message("task_complete")
        assert server.decisions == [(1, "approved")]
        assert settlements(server, conversation) == [*SETTLED, "turn_ended"]


async def test_an_answer_after_an_interrupt_in_the_same_read_is_ignored(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        client = await server.client()
        await client.stream(conversation.id)
        await client.say(conversation.id, 1)
        await client.approval_request()

        client.call("conversationInterrupt", conversation_id=conversation.id)
        client.answer(0, YES)
        await client.wait_for_message("error")

        assert server.decisions == []
        assert client.taken_back == [taken_back(0, "dropped", by="interrupt")]
        assert settlements(server, conversation) == [*SETTLED, "turn_ended"]
        assert client.event("approval_settled") == {
            "type": "approval_settled",
            "approval_id": approval_id(1),
            "call_id": "call1",
            "decision": "dropped",
            "by": "interrupt",
            "principal": "local",
        }


async def test_an_interrupt_after_an_answer_in_the_same_read_leaves_the_answer_as_it_is(home: str) -> None:
    async with LocalServer(home) as server:
        conversation = await server.create()
        client = await server.client()
        await client.stream(conversation.id)
        await client.say(conversation.id, 2)
        await client.approval_request()

        client.answer(0, YES)
        client.call("conversationInterrupt", conversation_id=conversation.id)
        await client.wait_for_message("error")

        assert client.taken_back == []
        assert conversation.approvals.open is None
        assert settlements(server, conversation) == [*SETTLED, "turn_ended"]
        settled = client.event("approval_settled")
        assert (settled["decision"], settled["by"]) == ("approved", "client")


async def test_the_tool_answers_any_approval_and_requests_to_clients_are_cancelled(home: str) -> None:
    async with LocalServer(home) as server:
        client, other = await server.client(), await server.client(version=PLAIN_VERSION, capabilities={})
        await server.asking(client)
        listed = (await other.value_of(other.call("approvalsList")))["approvals"]
        answer = {"approval_id": listed[0]["approval_id"], "decision": "denied", "reason": "no\x1b[2J"}

        assert await other.value_of(other.call("approvalAnswer", **answer)) == {"status": "ok"}
        again = await other.value_of(other.call("approvalAnswer", **answer))
        await client.wait_for_message("task_complete")

        assert again == {"status": "error", "message": "Question is settled: denied"}
        assert client.taken_back == [taken_back(0, "denied", by="tool")]
        assert server.decisions == [(1, "denied: no\\x1b[2J")]
        assert (await other.value_of(other.call("approvalsList"))) == {"approvals": []}


async def test_an_abort_ends_the_turn_and_requests_to_other_clients_are_cancelled(home: str) -> None:
    async with LocalServer(home) as server:
        client, other = await server.client(), await server.client()
        conversation = await server.asking(client, other, approvals=2)

        client.answer(0, {"action": "cancel"})
        await client.wait_for_message("error")

        assert server.decisions == []
        assert (client.taken_back, other.taken_back) == ([], [taken_back(1, "abort", by="client")])
        assert settlements(server, conversation) == [*SETTLED, "turn_ended"]


@pytest.mark.promises("approvals.everybody", "approvals.dropped")
async def test_an_older_client_sees_the_answer_of_another_client_and_no_dropped_approval(
    home: str,
) -> None:
    async with LocalServer(home) as server:
        client, older = await server.client(), await server.client(version=PLAIN_VERSION)
        conversation = await server.asking(client, older, approvals=2)
        client.answer(0, YES)
        await older.approval_request(2)

        client.call("conversationInterrupt", conversation_id=conversation.id)
        older.answer(3, YES)
        await older.wait_for_message("error")

        assert older.taken_back == [taken_back(1, "approved")]
        assert client.taken_back == [taken_back(2, "dropped", by="interrupt")]
        assert server.decisions == [(1, "approved")]


async def test_an_error_for_an_answer_is_a_no(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client()
        await server.asking(client, approvals=2)
        client.send({"jsonrpc": "2.0", "id": 0, "error": {"code": -32601, "message": "what?"}})
        await client.approval_request(2)
        client.send({"jsonrpc": "2.0", "id": 1})
        await client.wait_for_message("task_complete")

        assert server.decisions == [(1, "denied"), (2, "denied")]

"""No message of a client prevents the server from handling the next message."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from kit.clients.requests import request
from kit.servers.local_server import FrameList
from parley.server.context import LOCAL_USER, RequestContext
from parley.server.dispatch import Call, Dispatch
from parley.server.hosts import FULL
from parley.server.outgoing_requests import OutgoingRequests
from parley.wire.jsonrpc import Message, encode
from parley.wire.mcp import FULL_VERSION


def fails(*_: Message) -> None:
    raise RuntimeError("a bug of ours")


async def works_until_it_is_cancelled(call: Call) -> None:
    call.on_cancel(fails)


async def ping(call: Call) -> None:
    call.answer(b"{}")


async def test_a_failing_receiver_of_an_answer_or_a_cancellation_costs_no_later_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox = FrameList(FULL_VERSION)
    own = OutgoingRequests(count())
    async with asyncio.TaskGroup() as tasks:
        dispatch = Dispatch(
            outbox,
            {"ping": ping, "work": works_until_it_is_cancelled},
            context=lambda reply, meta: RequestContext(principal=LOCAL_USER, features=FULL, reply=reply),
            own=own,
            tasks=tasks,
        )
        own.send("ping", b"{}", out=outbox, answered=fails)
        dispatch.take(encode({"jsonrpc": "2.0", "id": 0, "result": {}}))
        dispatch.take(encode(request(1, "work", {})))
        dispatch.take(encode({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}))
        dispatch.take(encode(request(2, "ping", {})))

    assert outbox.messages[-1] == {"jsonrpc": "2.0", "id": 2, "result": {}}
    assert caplog.messages == ["failed to handle a message"] * 2

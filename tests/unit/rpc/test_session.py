"""A session with an untrusted MCP server: the era, the results, and the server's messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from parley.rpc.errors import (
    RequestRefused,
    SessionLost,
    TooLarge,
    UnreadableAnswer,
    UnsupportedVersion,
)
from parley.rpc.incoming import MAX_VALUES
from parley.rpc.session import MAX_INITIALIZE_BYTES, MAX_WAITING, Outgoing, Session
from parley.wire.framing import LineFramer
from parley.wire.jsonrpc import RequestId

T = TypeVar("T")

MODERN = "2026-07-28"
GREETING = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}


class Line:
    """A carrier that records the messages."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.headers: list[Any] = []
        self.cancelled: list[Any] = []
        self.listens = False
        self.version: tuple[str, bool] | None = None
        self.waiting = 0

    def send(self, message: Outgoing) -> None:
        self.sent.append(json.loads(message.frame))
        self.headers.append(dict(message.headers))

    def cancel(self, request_id: RequestId, notice: bytes | None) -> None:
        self.cancelled.append((request_id, None if notice is None else json.loads(notice)))

    def set_version(self, version: str, *, is_modern: bool) -> None:
        self.version = version, is_modern

    def listen(self) -> None:
        self.listens = True


class Peer:
    """A session and its line."""

    def __init__(self, max_bytes: int = 16 * 1024 * 1024) -> None:
        self.changes = 0
        self.session = Session(max_bytes=max_bytes, on_tools_changed=self._changed)
        self.line = Line()
        self.session.carrier = self.line

    def _changed(self) -> None:
        self.changes += 1

    async def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        return task

    def answer(self, **message: Any) -> bool:
        return self.session.receive(json.dumps({"jsonrpc": "2.0", **message}).encode())

    async def open(self) -> None:
        opening = await self.begin(self.session.open())
        self.answer(id=self.line.sent[-1]["id"], result=GREETING)
        await opening

    async def open_modern(self, code: int = -32022, **capabilities: Any) -> None:
        opening = await self.begin(self.session.open())
        self.answer(id=1, error={"code": code, "message": "no", "data": {"supported": [MODERN]}})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = {"supportedVersions": [MODERN], "capabilities": capabilities, "resultType": "complete"}
        self.answer(id=2, result=found)
        await opening


# --- the era -----------------------------------------------------------------------------


async def test_a_server_is_greeted_at_the_newest_version_with_initialize() -> None:
    peer = Peer()
    await peer.open()

    greeting, initialized = peer.line.sent
    assert greeting["method"] == "initialize"
    assert greeting["params"]["protocolVersion"] == "2025-11-25"
    assert initialized == {"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}}
    assert (peer.line.version, peer.line.listens) == (("2025-11-25", False), True)


async def test_an_older_version_is_accepted_and_an_unknown_one_is_not() -> None:
    for version, is_known in (("2024-11-05", True), ("2030-01-01", False)):
        peer = Peer()
        opening = await peer.begin(peer.session.open())
        peer.answer(id=1, result={**GREETING, "protocolVersion": version})
        if is_known:
            await opening
        else:
            with pytest.raises(UnsupportedVersion):
                await opening


@pytest.mark.parametrize("result", [{}, {"protocolVersion": 5}, {**GREETING, "capabilities": None}])
async def test_a_greeting_of_another_shape_is_refused(result: Any) -> None:
    peer = Peer()
    opening = await peer.begin(peer.session.open())
    peer.answer(id=1, result=result)

    with pytest.raises(UnreadableAnswer):
        await opening


@pytest.mark.parametrize("code", [-32022, -32601, -32602, -32020])
async def test_a_server_without_initialize_is_asked_for_the_modern_version(code: int) -> None:
    peer = Peer()
    await peer.open_modern(code)
    calling = await peer.begin(peer.session.request("tools/call", {"name": "größe"}, on_progress=lambda *_: None))
    peer.answer(id=3, result={"content": [], "resultType": "complete"})

    assert await calling == {"content": [], "resultType": "complete"}
    _, discover, call = peer.line.sent
    assert (discover["method"], discover["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"]) == (
        "server/discover",
        MODERN,
    )
    assert call["params"]["_meta"]["progressToken"] == 3
    assert call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}
    assert peer.line.headers[2] == {
        "MCP-Protocol-Version": MODERN,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "=?base64?Z3LDtsOfZQ==?=",
    }
    assert peer.line.version == (MODERN, True)


async def test_a_server_that_knows_neither_is_refused_with_its_first_answer() -> None:
    peer = Peer()
    opening = await peer.begin(peer.session.open())
    peer.answer(id=1, error={"code": -32601, "message": "first"})
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    peer.answer(id=2, error={"code": -32601, "message": "second"})

    with pytest.raises(RequestRefused) as refused:
        await opening
    assert refused.value.message == "first"


async def test_another_error_is_no_sign_of_the_modern_version() -> None:
    peer = Peer()
    opening = await peer.begin(peer.session.open())
    peer.answer(id=1, error={"code": -32603, "message": "broken"})

    with pytest.raises(RequestRefused):
        await opening
    assert len(peer.line.sent) == 1


async def test_a_modern_server_tells_of_changed_tools_in_a_subscription() -> None:
    peer = Peer()
    await peer.open_modern(tools={"listChanged": True})
    await asyncio.sleep(0)

    assert peer.line.sent[-1]["method"] == "subscriptions/listen"
    assert peer.line.sent[-1]["params"]["notifications"] == {"toolsListChanged": True}
    peer.answer(method="notifications/tools/list_changed", params={"_meta": {}})
    assert peer.changes == 1
    peer.session.end()
    await asyncio.sleep(0)


async def test_a_modern_result_that_asks_for_input_is_no_result() -> None:
    peer = Peer()
    await peer.open_modern()
    calling = await peer.begin(peer.session.request("tools/call", {"name": "x"}))
    peer.answer(id=3, result={"resultType": "input_required", "inputRequests": {}})

    with pytest.raises(UnreadableAnswer):
        await calling


# --- results -----------------------------------------------------------------------------


async def test_results_find_their_requests_in_any_order() -> None:
    peer = Peer()
    first = await peer.begin(peer.session.request("a"))
    second = await peer.begin(peer.session.request("b"))
    assert peer.answer(id="2", result={"of": "b"})  # some servers send numbers as strings
    assert peer.answer(id=1, result={"of": "a"})
    assert peer.answer(id=99, result={"of": "nobody"})

    assert (await first, await second) == ({"of": "a"}, {"of": "b"})


async def test_cancelling_tells_the_server_once() -> None:
    peer = Peer()
    calling = await peer.begin(peer.session.request("a"))
    calling.cancel()
    await asyncio.wait([calling])

    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    assert peer.line.cancelled == [(1, notice)]
    assert peer.answer(id=1, result={})  # a late answer has no effect


async def test_the_greeting_is_not_cancelled_at_the_server() -> None:
    peer = Peer()
    opening = await peer.begin(peer.session.open())
    opening.cancel()
    await asyncio.wait([opening])

    assert peer.line.cancelled == [(1, None)]


async def test_progress_reaches_its_request_alone() -> None:
    peer, seen = Peer(), list[Any]()
    calling = await peer.begin(peer.session.request("a", on_progress=lambda *news: seen.append(news)))
    token = peer.line.sent[0]["params"]["_meta"]["progressToken"]
    for params in (
        {"progressToken": token, "progress": 1, "total": 2, "message": "half"},
        {"progressToken": token, "progress": 2, "total": "two", "message": 5},
        {"progressToken": token, "progress": True},
        {"progressToken": 99, "progress": 1},
        {"progressToken": [token], "progress": 1},
        [1],
    ):
        peer.answer(method="notifications/progress", params=params)
    peer.answer(id=1, result={})
    await calling
    peer.answer(method="notifications/progress", params={"progressToken": token, "progress": 3})

    assert seen == [(1, 2, "half"), (2, None, None)]


async def test_the_end_fails_all_requests_and_every_later_one() -> None:
    peer = Peer()
    calling = await peer.begin(peer.session.request("a"))
    peer.session.end()

    with pytest.raises(SessionLost):
        await calling
    with pytest.raises(SessionLost):
        await peer.session.request("b")


# --- an untrusted server -------------------------------------------------------------------------


async def test_a_ping_is_answered_and_every_other_request_is_refused() -> None:
    peer = Peer()
    peer.answer(id="p", method="ping")
    for number, method in enumerate(("sampling/createMessage", "roots/list", "elicitation/create")):
        peer.answer(id=number, method=method, params={"deep": [{}] * 1000})

    assert peer.line.sent[0] == {"jsonrpc": "2.0", "id": "p", "result": {}}
    assert [(one["id"], one["error"]["code"]) for one in peer.line.sent[1:]] == [
        (0, -32601),
        (1, -32601),
        (2, -32601),
    ]


async def test_a_server_that_asks_and_does_not_read_costs_no_more_memory() -> None:
    peer = Peer()
    peer.line.waiting = MAX_WAITING
    peer.answer(id=1, method="ping")

    assert peer.line.sent == []


@pytest.mark.parametrize(
    "garbage",
    [b"", b" ", b"\xff\xfe{", b"Debug: hello", b'{"jsonrpc": "2.0"}', b"[1, 2]", b"[" * 5000, b"null", b"7"],
)
async def test_garbage_is_skipped(garbage: bytes) -> None:
    peer = Peer()
    calling = await peer.begin(peer.session.request("a"))
    assert not peer.session.receive(garbage)
    peer.answer(id=1, result={"fine": True})

    assert await calling == {"fine": True}


@pytest.mark.parametrize("result", ["text", 5, [1], None, True])
async def test_a_result_that_is_no_object_fails_its_request(result: Any) -> None:
    peer = Peer()
    calling = await peer.begin(peer.session.request("a"))
    peer.answer(id=1, result=result)

    with pytest.raises(UnreadableAnswer):
        await calling


async def test_an_answer_without_result_and_error_fails_its_request() -> None:
    peer = Peer()
    calling = await peer.begin(peer.session.request("a"))
    peer.answer(id=1)

    with pytest.raises(UnreadableAnswer):
        await calling


async def test_a_line_that_is_cut_off_fails_the_request_that_it_names() -> None:
    peer = Peer()
    calling = await peer.begin(peer.session.request("a"))
    peer.session.receive(b'{"jsonrpc": "2.0", "id": 1, "result": {"content"')

    with pytest.raises(UnreadableAnswer):
        await calling


async def test_a_line_beyond_the_limit_fails_the_request_that_it_names_and_the_next_is_read() -> None:
    peer = Peer(max_bytes=2000)
    first = await peer.begin(peer.session.request("a"))
    second = await peer.begin(peer.session.request("b"))
    framer = LineFramer(2000)
    long = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"text": "x" * 5000}}).encode()
    for line in framer.feed(long + b'\n{"id": 2, "result": {}}\n'):
        peer.session.receive(line)

    with pytest.raises(TooLarge) as failure:
        await first
    assert (failure.value.limit, failure.value.unit) == (2000, "bytes")
    assert await second == {}


async def test_the_first_answer_may_be_a_mebibyte_and_later_ones_longer() -> None:
    peer = Peer()
    first = await peer.begin(peer.session.request("a"))
    peer.answer(id=1, result={"text": "x" * MAX_INITIALIZE_BYTES})
    with pytest.raises(TooLarge):
        await first
    second = await peer.begin(peer.session.request("b"))
    peer.answer(id=2, result={})
    await second
    third = await peer.begin(peer.session.request("c"))
    peer.answer(id=3, result={"text": "x" * MAX_INITIALIZE_BYTES})

    assert len((await third)["text"]) == MAX_INITIALIZE_BYTES


async def test_an_answer_with_too_many_values_is_not_decoded() -> None:
    peer = Peer()
    await peer.open()
    calling = await peer.begin(peer.session.request("a"))
    peer.session.receive(b'{"id": 2, "result": {"x": [' + b"{}," * MAX_VALUES + b"{}]}}")

    with pytest.raises(TooLarge) as failure:
        await calling
    assert failure.value.unit == "values"


async def test_values_that_are_nested_too_deeply_are_left_out_and_the_rest_is_read() -> None:
    peer = Peer()
    calling = await peer.begin(peer.session.request("a"))
    peer.session.receive(b'{"id": 1, "result": {"deep": ' + b"[" * 5000 + b"]" * 5000 + b', "flat": 1}}')

    result = await calling
    assert result["flat"] == 1

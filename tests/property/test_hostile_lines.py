"""Any lines from a client: the server continues, answers the next line, and sends only valid messages."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parley.testing import RawParley, ScriptedModel, check_message
from parley.wire.jsonrpc import encode

BATCHES: Final = 25
LINES_A_BATCH: Final = 50

THE_CONVERSATION: Final = "00000000-0000-4000-8000-000000000000"
"""A placeholder for the id of an existing conversation."""
UUIDS: Final = (THE_CONVERSATION, "11111111-1111-4111-8111-111111111111", "x", "")
METHODS: Final = (
    "initialize",
    "ping",
    "tools/list",
    "tools/call",
    "notifications/cancelled",
    "notifications/initialized",
    "elicitation/create",
    "no/such",
    "",
)
TOOLS: Final = (
    "codex",
    "codex-reply",
    "conversationCreate",
    "conversationSendMessage",
    "conversationStream",
    "conversationsList",
    "conversationRead",
    "conversationInterrupt",
    "conversationStatus",
    "conversationDelete",
    "nope",
)
KEYS: Final = (
    "prompt",
    "model",
    "cwd",
    "sessionId",
    "conversation_id",
    "content",
    "message_id",
    "parent_message_id",
    "after",
    "limit",
    "cursor",
    "event_meta",
    "config",
    "profile",
    "sandbox",
    "approval_policy",
    "approval-policy",
    "include-plan-tool",
)

GOOD: Final = [
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"id","reason":"because"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}',
    b'{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{"elicitation":{}},"clientInfo":{"name":"a","version":"1"}}}',
    b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"codex","arguments":{"prompt":"go"},'
    b'"_meta":{"progressToken":"t"}}}',
    b'{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"conversationCreate",'
    b'"arguments":{"prompt":"","model":"m","cwd":".","config":{"model_reasoning_effort":"low"}}}}',
    b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"conversationSendMessage","arguments":'
    b'{"conversation_id":"00000000-0000-4000-8000-000000000000","content":[{"type":"text","text":"\\ud83d\\ude00"}]}}}',
    b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"conversationStream",'
    b'"arguments":{"conversation_id":"00000000-0000-4000-8000-000000000000","event_meta":true}}}',
    b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"codex-reply",'
    b'"arguments":{"sessionId":"00000000-0000-4000-8000-000000000000","prompt":"go"}}}',
    b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"conversationsList","arguments":{"limit":3}}}',
    b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"conversationRead",'
    b'"arguments":{"conversation_id":"00000000-0000-4000-8000-000000000000","after":0}}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3,"reason":"no"}}',
    b'{"jsonrpc":"2.0","id":0,"result":{"decision":"approved"}}',
    b'{"jsonrpc":"2.0","id":0,"error":{"code":-1,"message":"no"}}',
]
"""Valid messages, from which invalid ones are generated."""

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(UUIDS),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=5)), inner, max_size=3),
    ),
    max_leaves=5,
)
arguments = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
calls = st.fixed_dictionaries({"name": st.sampled_from(TOOLS), "arguments": st.one_of(arguments, values)})
messages = st.fixed_dictionaries(
    {"id": st.one_of(st.integers(-9, 9), st.text(max_size=3), values)},
    optional={
        "jsonrpc": st.one_of(st.just("2.0"), values),
        "method": st.one_of(st.sampled_from(METHODS), values),
        "params": st.one_of(calls, values),
        "result": values,
        "error": values,
    },
)
whole_calls = st.builds(
    lambda request_id, params: {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params},
    st.one_of(st.integers(-9, 9), st.text(max_size=3)),
    calls,
)

edits = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 6), st.binary(min_size=1, max_size=3)), min_size=1, max_size=4
)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """Generate a valid message with some bytes removed, changed, added or repeated."""
    line = draw(st.sampled_from(GOOD))
    for place, lost, added in draw(edits):
        at = place % (len(line) + 1)
        line = line[:at] + added + line[at + lost :]
    return line


@st.composite
def glued(draw: st.DrawFn) -> bytes:
    """Generate the halves of two messages, which may form a valid one."""
    first, second = draw(st.sampled_from(GOOD)), draw(st.sampled_from(GOOD))
    return first[: draw(st.integers(0, len(first)))] + second[draw(st.integers(0, len(second))) :]


@st.composite
def nested(draw: st.DrawFn) -> bytes:
    """Generate a request with very many brackets, which may be closed."""
    depth = draw(st.sampled_from((1, 100, 900, 1000, 1100, 30_000)))
    opening, closing = draw(st.sampled_from(((b"[", b"]"), (b'{"a":', b"}"))))
    body = opening * depth + b"1" + closing * draw(st.sampled_from((depth, depth - 1, 0)))
    place = draw(
        st.sampled_from((b'"params":%b', b'"params":{"name":"conversationCreate","arguments":%b}', b'"id":%b'))
    )
    return b'{"id":1,"method":"tools/call",' + place % body + b"}"


lines = st.one_of(
    spoiled(),
    glued(),
    st.builds(encode, messages),
    st.builds(encode, whole_calls),
    st.builds(encode, values),
    st.binary(max_size=30),
    nested(),
)


@pytest.mark.promises("framing.bad-lines", "notifications.known")
def test_no_line_kills_the_server_or_makes_it_silent() -> None:
    """Send batches of 50 lines to one process, each followed by a ping."""
    numbers = count()

    async def created(raw: RawParley) -> str:
        arguments = {"prompt": "", "model": "m", "cwd": "."}
        params = {"name": "conversationCreate", "arguments": arguments}
        raw.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        answer = await raw.read_message()
        return str(answer["result"]["structuredContent"]["conversation_id"])

    async def checked(raw: RawParley, conversation: str, batch: list[bytes]) -> None:
        last = f"ping after batch {next(numbers)}"
        hostile = b"\n".join(batch).replace(THE_CONVERSATION.encode(), conversation.encode())
        raw.write(hostile + b"\n" + encode({"jsonrpc": "2.0", "id": last, "method": "ping"}) + b"\n")
        answer = await raw.expect(lambda message: message.get("id") == last)
        assert answer == {"jsonrpc": "2.0", "id": last, "result": {}}
        for frame in raw.frames:
            check_message(frame)
        raw.frames.clear()

    with asyncio.Runner() as runner:
        model = runner.run(ScriptedModel().__aenter__())
        raw = runner.run(RawParley(model).__aenter__())
        try:
            conversation = runner.run(created(raw))

            @settings(
                max_examples=BATCHES,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            @given(batch=st.lists(lines, min_size=LINES_A_BATCH, max_size=LINES_A_BATCH))
            def holds(batch: list[bytes]) -> None:
                runner.run(checked(raw, conversation, batch))

            holds()
            raw.close_stdin()
            assert runner.run(raw.exit_code()) == 0
            assert "Traceback" not in raw.stderr_text()
        finally:
            runner.run(raw.__aexit__(None, None, None))
            runner.run(model.__aexit__(None, None, None))

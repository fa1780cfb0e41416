"""Lines on stdin and stdout: which lines are messages, and how the server handles other lines."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, Final

import msgspec
import pytest

from kit.clients.requests import ping, pong, tool
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import HOLD, RawParley, ScriptedModel, check_message
from parley.testing.home import Home
from parley.wire.framing import MAX_LINE_BYTES

IGNORED: Final = [
    b"this is not json",
    b"",
    b"   ",
    b'{"jsonrpc":"2.0","id":70,"method":"ping"',
    b"[]",
    b"42",
    b"null",
    b'"ping"',
    b'[{"jsonrpc":"2.0","id":71,"method":"ping"},{"jsonrpc":"2.0","id":72,"method":"ping"}]',
    b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":true,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":[1],"method":"ping"}',
    b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
    b'{"jsonrpc":"2.0","id":5,"method":7}',
    b'{"jsonrpc":"2.0","id":5,"method":null}',
    b'{"jsonrpc":"2.0","id":5}',
    b"{}",
    b'{"jsonrpc":"2.0","id":999,"result":{}}',
    b'{"jsonrpc":"2.0","id":998,"error":{"code":1,"message":"x"}}',
    b'{"jsonrpc":"2.0","method":"notifications/unknown","params":{}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":12345}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1.5}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
    b'{"jsonrpc":"2.0","method":"ping"}',
    b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"conversationsList"}}',
    b'{"jsonrpc":"2.0","id":5,"method":"ping"} and more',
    b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}',
    b'{"jsonrpc":"2.0","id":5,"method":"pi\xc3\x28ng"}',
    b"\xff\xfe{\x00}\x00",
    b"\x00",
    b'\xef\xbb\xbf{"jsonrpc":"2.0","id":5,"method":"ping"}',
    b'{"jsonrpc":"2.0","method":"ping","params":' + b"[" * 100_000 + b"]" * 100_000 + b',"id":5,"more":1}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
]

PING: Final = b'"method":"ping"}'

TAKEN: Final[list[tuple[bytes, object]]] = [
    (b'{"id":73,"method":"ping"}', 73),
    (b'{"jsonrpc":"1.0","id":74,"method":"ping"}', 74),
    (b'{"jsonrpc":5,"id":79,"method":"ping"}', 79),
    (b'{"jsonrpc":"2.0","id":75,"method":"ping","extra":true}', 75),
    (b'{"jsonrpc":"2.0","id":76,"method":"ping","params":null}', 76),
    (b'{"jsonrpc":"2.0","id":77,"method":"ping","params":[]}', 77),
    (b'  { "method" : "ping" , "id" : 78 }  \r', 78),
    (b'{"jsonrpc":"2.0","id":"","method":"ping"}', ""),
    (b'{"jsonrpc":"2.0","id":-7,"method":"ping"}', -7),
    (b'{"jsonrpc":"2.0","id":0,"method":"ping"}', 0),
    (b'{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}', 9007199254740993),
    (b'{"jsonrpc":"2.0","id":9223372036854775807,"method":"ping"}', 2**63 - 1),
    (b'{"jsonrpc":"2.0","id":-9223372036854775808,"method":"ping"}', -(2**63)),
    (b'{"jsonrpc":"2.0","id":1000000000000000000000000000000,"method":"ping"}', 10**30),
    (b'{"jsonrpc":"2.0","id":"7","method":"ping"}', "7"),
    (b'{"jsonrpc":"2.0","id":"a\\"b\\\\c\\n\\u0000%b%s","method":"ping"}', 'a"b\\c\n\0%b%s'),
    (b'{"jsonrpc":"2.0","id":"\\ud83d\\ude00","method":"ping"}', "\N{GRINNING FACE}"),
    ('{"jsonrpc":"2.0","id":"\N{SNOWMAN}","method":"ping"}'.encode(), "\N{SNOWMAN}"),
    (b'{"jsonrpc":"2.0","id":"half \\ud83d","method":"ping"}', "half \N{REPLACEMENT CHARACTER}"),
    (b'{"jsonrpc":"2.0","id":"' + b"i" * 100_000 + b'","method":"ping"}', "i" * 100_000),
]


async def answers(raw: RawParley, wanted: set[object]) -> dict[object, Any]:
    """Return the answers to these requests, and skip other messages."""
    found: dict[object, Any] = {}
    while found.keys() != wanted:
        message = await raw.expect(lambda message: "method" not in message)
        assert message["id"] in wanted
        assert message["id"] not in found
        found[message["id"]] = message
    return found


@asynccontextmanager
async def server(model: ScriptedModel) -> AsyncIterator[Process]:
    """Start a server whose stdin blocks when it is full, so that large messages are not buffered in the test."""
    home = Home(model)
    home.open()
    try:
        process = await asyncio.create_subprocess_exec(
            *home.command, stdin=PIPE, stdout=PIPE, stderr=home.stderr, env=home.environ, cwd=home.work
        )
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                assert await process.wait() == 0
    finally:
        home.close()


async def write_padded(process: Process, head: bytes, tail: bytes, *, length: int) -> None:
    """Write one line of `length` bytes, without its line end, in pieces: `head`, blanks, and `tail`."""
    assert process.stdin is not None
    blanks = b" " * (256 * 1024)
    left = length - len(head) - len(tail)
    process.stdin.write(head)
    while left:
        piece = blanks[:left]
        process.stdin.write(piece)
        left -= len(piece)
        await process.stdin.drain()
    process.stdin.write(tail + b"\n")
    await process.stdin.drain()


async def read_message(process: Process) -> Any:
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        line = await process.stdout.readline()
    check_message(line)
    return msgspec.json.decode(line)


@pytest.mark.promises("framing.bad-lines", "framing.strays", "framing.lenient")
async def test_a_line_that_is_not_a_message_is_ignored_and_the_next_is_read(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        for number, line in enumerate(IGNORED):
            raw.write(line + b"\n")
            raw.send(ping(number))

            assert await raw.read_message() == pong(number), line[:100]


@pytest.mark.promises("framing.bad-lines", "framing.one-message-a-line")
async def test_ignored_lines_are_logged_and_only_there(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        raw.write(b"this is not json\n")
        raw.send(ping(1))
        await raw.read_message()

        assert raw.stderr_text().count("ignored a line that is not a message") == 1
        assert len(raw.frames) == 1


@pytest.mark.promises("framing.ids", "framing.lenient", "lifecycle.ping")
async def test_every_id_comes_back_as_it_was_sent(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        for line, request_id in TAKEN:
            raw.write(line + b"\n")

            answer = await raw.read_message()

            assert answer == pong(request_id)
            assert type(answer["id"]) is type(request_id)


async def test_lines_cut_and_glued_anyhow_are_the_same_lines(parley_model: ScriptedModel) -> None:
    pairs = zip(IGNORED, TAKEN, strict=False)
    everything = b"".join(b"%b\n%b\n" % (ignored, taken) for ignored, (taken, _) in pairs)
    expected = [pong(request_id) for _, request_id in TAKEN]
    async with RawParley(parley_model) as raw:
        raw.write(everything)
        assert [await raw.read_message() for _ in expected] == expected

        size = 997
        for at in range(0, len(everything), size):
            raw.write(everything[at : at + size])
        assert [await raw.read_message() for _ in expected] == expected


@pytest.mark.child_process
async def test_the_last_line_needs_no_line_end(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        raw.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        raw.close_stdin()

        assert await raw.read_message() == pong(1)
        assert await raw.exit_code() == 0


@pytest.mark.child_process
@pytest.mark.promises("framing.one-answer")
async def test_many_requests_in_flight_are_each_answered_once(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        wanted: set[object] = set()
        for number in range(100):
            arguments = {"prompt": "", "model": "m", "cwd": str(raw.work)}
            raw.send(tool(number, "conversationCreate", arguments))
            raw.send(ping(str(number)))
            raw.send({"jsonrpc": "2.0", "id": -1 - number, "method": "no/such"})
            wanted |= {number, str(number), -1 - number}

        found = await answers(raw, wanted)

        assert all(found[str(number)] == pong(str(number)) for number in range(100))
        created = {found[number]["result"]["structuredContent"]["conversation_id"] for number in range(100)}
        assert len(created) == 100
        assert all(found[-1 - number]["error"]["code"] == -32601 for number in range(100))


@pytest.mark.promises("framing.never-blocked", "lifecycle.ping")
async def test_a_ping_is_answered_at_once_while_codex_runs(parley_model: ScriptedModel) -> None:
    parley_model.says("one", HOLD, "two")
    async with RawParley(parley_model) as raw:
        raw.send(tool(1, "codex", {"prompt": "go"}))
        await parley_model.wait_until_held()

        raw.send(ping(2))

        assert await answers(raw, {2}) == {2: pong(2)}
        parley_model.release()
        done = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "onetwo"}]}}
        assert await answers(raw, {1}) == {1: done}


async def test_the_number_1_and_the_text_1_are_two_requests(parley_model: ScriptedModel) -> None:
    parley_model.says("a", HOLD)
    parley_model.says("b", HOLD)
    async with RawParley(parley_model) as raw:
        raw.send(tool(1, "codex", {"prompt": "go"}))
        raw.send(tool("1", "codex", {"prompt": "go"}))
        await parley_model.wait_until_held(2)

        raw.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "1"}})
        cut_short = await answers(raw, {"1"})
        parley_model.release()
        completed = await answers(raw, {1})

        said = {"error": " Turn interrupted", "content": [{"type": "text", "text": " Turn interrupted"}]}
        assert cut_short["1"]["result"] == {**said, "isError": True}
        assert "error" not in completed[1]["result"]


@pytest.mark.promises("framing.one-answer")
async def test_an_id_in_use_is_refused_and_the_first_request_continues(parley_model: ScriptedModel) -> None:
    parley_model.says("one", HOLD)
    async with RawParley(parley_model) as raw:
        raw.send(tool(1, "codex", {"prompt": "go"}))
        await parley_model.wait_until_held()

        raw.send(ping(1))
        refused = await raw.expect(lambda message: message.get("id") == 1)
        parley_model.release()
        answered = await raw.expect(lambda message: message.get("id") == 1)

        assert refused["error"] == {"code": -32600, "message": "request id is in use"}
        assert answered["result"] == {"content": [{"type": "text", "text": "one"}]}


HALVES: Final = {
    rb"half \ud83d of it": "half \N{REPLACEMENT CHARACTER} of it",
    rb"\ude00\ud83d": "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}",
    rb"\\ud83d \ud83d\ude00 \ud83dx": "\\ud83d \N{GRINNING FACE} \N{REPLACEMENT CHARACTER}x",
    rb"a\u0000b": "a\0b",  # is none
}


@pytest.mark.promises("framing.lenient")
async def test_half_a_surrogate_pair_is_read_as_a_replacement(parley_model: ScriptedModel) -> None:
    call = b'{"id":1,"method":"tools/call","params":{"name":"codex","arguments":{"prompt":"%b"}}}\n'
    async with RawParley(parley_model) as raw:
        for sent in HALVES:
            raw.write(call % sent)
            await answers(raw, {1})

        read = [request.body["messages"][-1] for request in parley_model.requests]
        assert read == [{"role": "user", "content": text} for text in HALVES.values()]


async def test_arguments_that_are_not_utf8_are_refused_by_a_result(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        raw.write(b'{"id":1,"method":"tools/call","params":{"name":"codex","arguments":{"prompt":"\xff"}}}\n')
        found = await answers(raw, {1})

        text = (
            "Failed to parse configuration for Codex tool: arguments cannot be read: "
            "not UTF-8: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
        )
        assert found[1]["result"] == {"content": [{"type": "text", "text": text}], "isError": True}
        assert parley_model.requests == []


@pytest.mark.promises("framing.too-long")
async def test_a_message_nested_beyond_reason_is_refused_by_its_id(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        for (opening, closing), depth in product([(b"[", b"]"), (b'{"a":', b"}")], (100_000, 1_000_000)):
            nested = opening * depth + b"1" + closing * depth
            raw.write(b'{"id":"deep","method":"tools/call","params":{"name":"codex","arguments":%b}}\n' % nested)
            raw.send(ping(depth))

            refused = {"code": -32600, "message": "message is nested too deeply"}
            assert await raw.read_message() == {"jsonrpc": "2.0", "id": "deep", "error": refused}
            assert await raw.read_message() == pong(depth)
        assert parley_model.requests == []


@pytest.mark.child_process
@pytest.mark.promises("framing.too-long")
async def test_a_message_of_64_mb_is_taken(parley_model: ScriptedModel) -> None:
    async with server(parley_model) as process:
        for less in (1, 0):
            await write_padded(process, b'{"id":%d,' % less, PING, length=MAX_LINE_BYTES - less)

            assert await read_message(process) == pong(less)


LONGER: Final[dict[str, tuple[bytes, bytes, object]]] = {
    "first": (b'{"jsonrpc":"2.0","id":1,', PING, 1),
    "after other ids": (
        b'{"jsonrpc":"2.0","params":{"id":5,"more":[{"id":6}]},"x":"\\"id\\":7","id":"a\\nb",',
        PING,
        "a\nb",
    ),
    "just within 4 KiB": (b'{"jsonrpc":"2.0","x":"' + b"x" * 4000 + b'","id":-8,', PING, -8),
    "last": (b'{"params":{"id":5},"x":', b'{"id":6},"jsonrpc":"2.0","id":7}', 7),
}


@pytest.mark.promises("framing.too-long")
async def test_a_longer_message_is_refused_by_its_id_and_the_connection_continues(
    parley_model: ScriptedModel,
) -> None:
    async with server(parley_model) as process:
        for where, (head, tail, request_id) in LONGER.items():
            await write_padded(process, head, tail, length=MAX_LINE_BYTES + 1)
            await write_padded(process, b'{"id":2,', PING, length=100)

            refusal = {"code": -32600, "message": "message is longer than 64 MB"}
            assert await read_message(process) == {"jsonrpc": "2.0", "id": request_id, "error": refusal}, where
            assert await read_message(process) == pong(2)


SKIPPED: Final = {
    "beyond 4 KiB": b'{"jsonrpc":"2.0","method":"ping","x":"' + b"x" * 4096 + b'","id":1,',
    "within the params": b'{"jsonrpc":"2.0","params":{"id":1,"x":"',
    "within an array": b"[[{",
    "no object": b"no json at all",
}


@pytest.mark.promises("framing.too-long")
async def test_a_longer_message_without_an_id_at_either_end_is_skipped(parley_model: ScriptedModel) -> None:
    async with server(parley_model) as process:
        for where, head in SKIPPED.items():
            await write_padded(process, head, b'"id":1}', length=MAX_LINE_BYTES + 1)
            await write_padded(process, b'{"id":2,', PING, length=100)

            assert await read_message(process) == pong(2), where


@pytest.mark.promises("framing.bad-lines")
async def test_a_cancellation_in_bytes_that_are_no_text_costs_no_later_message(
    parley_model: ScriptedModel,
) -> None:
    async with RawParley(parley_model) as raw:
        raw.write(
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\xff"}}\n'
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"\xff"}}\n'
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":5}\n'
            b'{"jsonrpc":"2.0","id":7,"method":"ping"}\n'
        )

        assert await raw.read_message() == {"jsonrpc": "2.0", "id": 7, "result": {}}

"""Tool servers as a turn uses them, as real programs and as an HTTP server on the loopback."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs

from kit.builders.transcript import RecordingTranscript
from kit.servers.official_tool_server import official_program, official_url
from kit.servers.tool_servers import (
    ENVIRON,
    SLOW_TIMING,
    TIMEOUT_SECONDS,
    Loopback,
    call_item,
    call_text,
    closing,
    context,
    marker,
    program,
    running,
)
from kit.system.waiting import until
from parley.config.types import ToolServer
from parley.conversation.log import LogPayload
from parley.errors import ShuttingDown
from parley.ports.model import ToolSpec
from parley.tools.servers import ServerPool, ServerTools, Timing
from parley.tools.servers.program import environment
from parley.tools.servers.progress import progress_text, throttled_progress
from parley.wire.events import (
    BackgroundEvent,
    Duration,
    EventMsg,
    Invocation,
    McpToolCallBegin,
    McpToolCallEnd,
    ToolCallOutcome,
)
from parley.wire.ids import CallId

X = program("x", env={"EXTRA": "1"})


@pytest.fixture
async def pool() -> AsyncIterator[ServerPool]:
    async with closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool:
        yield pool


async def run(pool: ServerPool, name: str, arguments: str) -> tuple[list[LogPayload], str]:
    """Return the events of one call without durations, and the output for the model."""
    transcript = RecordingTranscript()
    async with asyncio.timeout(TIMEOUT_SECONDS), pool.lease([X]) as lease:
        output = await ServerTools(context(transcript), lease).run(call_item(name, arguments))
    assert transcript.shown == []
    return [without_duration(one) for one in transcript.payloads], output


def without_duration(event: LogPayload) -> LogPayload:
    if isinstance(event, McpToolCallEnd):
        assert 0 <= event.duration.secs + event.duration.nanos / 1e9 < TIMEOUT_SECONDS
        return structs.replace(event, duration=Duration(secs=0, nanos=0))
    return event


def shown(tool: str, arguments: dict[str, Any] | None, outcome: ToolCallOutcome) -> list[EventMsg]:
    """Return the events of a call without progress."""
    invocation = Invocation(server="x", tool=tool, arguments=arguments)
    call_id = CallId("c1")
    return [
        McpToolCallBegin(call_id=call_id, invocation=invocation),
        McpToolCallEnd(call_id=call_id, invocation=invocation, duration=Duration(secs=0, nanos=0), result=outcome),
    ]


# --- the tools of the model ------------------------------------------------------------------


async def test_tools_are_offered_as_in_the_recorded_traffic(pool: ServerPool) -> None:
    async with pool.lease([X]) as lease:
        specs = lease.specs()

    recorded = {"x__add", "x__env", "x__fail", "x__image", "x__rpc_error", "x__slow"}
    nothing: dict[str, Any] = {"type": "object", "properties": {}}
    number, string = {"type": "number"}, {"type": "string"}
    assert [spec for spec in specs if spec.name in recorded] == [
        ToolSpec(
            name="x__add",
            description="Adds two integers.",
            parameters={"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]},
        ),
        ToolSpec(name="x__env", description="Names of its environment variables.", parameters=nothing),
        ToolSpec(name="x__fail", description="Reports a tool failure.", parameters=nothing),
        ToolSpec(
            name="x__image",
            description="Returns an image.",
            parameters={
                "type": "object",
                "properties": {"mode": string, "opt": string, "tags": {"type": "array", "items": string}},
            },
        ),
        ToolSpec(name="x__rpc_error", description="Answers with a JSON-RPC error.", parameters=nothing),
        ToolSpec(
            name="x__slow",
            description="Sleeps.",
            parameters={"type": "object", "properties": {"seconds": number}},
        ),
    ]
    assert [spec.name for spec in specs] == sorted(spec.name for spec in specs)


async def test_only_what_is_offered_can_be_called(pool: ServerPool) -> None:
    async with pool.lease([X]) as lease:
        tools = ServerTools(context(RecordingTranscript()), lease)

        assert [tools.handles(name) for name in ("x__add", "x__nope", "add", "y__add", "shell")] == [
            True,
            False,
            False,
            False,
            False,
        ]
        assert await tools.run(call_item("x__nope", "{}")) == "unsupported call: x__nope"


async def test_a_turn_without_tool_servers_has_no_tools(pool: ServerPool) -> None:
    async with pool.lease([]) as lease:
        assert (lease.specs(), await pool.start([])) == ((), ())


async def test_tools_that_changed_are_offered_anew(pool: ServerPool) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), pool.lease([X]) as lease:
        assert await call_text(lease, "x__change_tools") == "ok"
        await until(lambda: [spec.name for spec in lease.specs()] == ["x__new"])


async def test_a_tool_that_makes_no_sense_hides_no_other(
    pool: ServerPool, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool.lease([program("x", "odd")]) as lease:
        specs = lease.specs()
        assert await call_text(lease, "x__nested") == "nested"

    assert [spec.name for spec in specs] == ["x__nested", "x__odd_error", "x__y__add"]
    assert [spec.description for spec in specs] == ["", "", ""]
    assert len(json.dumps(specs[0].parameters)) < 2000
    assert [record.getMessage() for record in caplog.records] == [
        "tool server x: omitted tools: 6 without a name or an input schema "
        "(`no_schema`, `a_list`, nameless, ``, nameless)"
    ]


async def test_an_error_flag_that_is_none_is_left_out(pool: ServerPool) -> None:
    transcript = RecordingTranscript()
    async with pool.lease([program("x", "odd")]) as lease, asyncio.timeout(TIMEOUT_SECONDS):
        await ServerTools(context(transcript), lease).run(call_item("x__odd_error", "{}"))

    end = transcript.payloads[-1]
    assert isinstance(end, McpToolCallEnd)
    assert end.result == ToolCallOutcome(ok={"content": [{"type": "text", "text": "odd"}]})


async def test_of_two_tools_that_would_be_called_the_same_the_second_gets_another_name(pool: ServerPool) -> None:
    second = "x__y__add" + hashlib.sha1(b"x__y\0add").hexdigest()
    async with pool.lease([program("x", "odd"), program("x__y")]) as lease:
        assert {spec.name for spec in lease.specs()} >= {"x__y__add", second}
        assert await call_text(lease, "x__y__add") == "of y"
        assert await call_text(lease, second, {"a": 1, "b": 2}) == "3"


async def test_names_are_given_once_for_each_change_of_the_tools(pool: ServerPool) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), pool.lease([X]) as lease:
        before, tool = lease.specs(), lease.find("x__add")
        assert (lease.specs() is before, lease.find("x__add") is tool) == (True, True)

        await call_text(lease, "x__change_tools")
        await until(lambda: lease.specs() is not before)
        assert lease.find("x__add") is None


def test_a_server_is_waited_for_ten_seconds_left_alone_for_thirty_and_kept_for_three_hundred() -> None:
    assert Timing() == Timing(answer_seconds=10, retry_seconds=30, idle_seconds=300)


# --- calls, as in the recorded traffic ---------------------------------------------------


async def test_a_result_is_shown_whole_and_the_model_reads_its_content_as_json(pool: ServerPool) -> None:
    events, output = await run(pool, "x__add", '{"a": 1, "b": 2}')

    result = {"content": [{"type": "text", "text": "3"}], "structuredContent": {"sum": 3}}
    assert events == shown("add", {"a": 1, "b": 2}, ToolCallOutcome(ok=result))
    assert output == '[{"text":"3","type":"text"}]'


async def test_a_tool_that_reports_a_failure_has_a_result_all_the_same(pool: ServerPool) -> None:
    events, output = await run(pool, "x__fail", "{}")

    result = {"content": [{"type": "text", "text": "it failed"}], "isError": True}
    assert events == shown("fail", {}, ToolCallOutcome(ok=result))
    assert output == '[{"text":"it failed","type":"text"}]'


async def test_a_json_rpc_error_is_a_failed_call(pool: ServerPool) -> None:
    events, output = await run(pool, "x__rpc_error", "{}")

    failure = "tool call error: tool call failed for `x/rpc_error`"
    assert (events, output) == (shown("rpc_error", {}, ToolCallOutcome(err=failure)), failure)


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ("{bad", "JSON is malformed: object keys must be strings (byte 1)"),
        ("[1]", "Expected `object | null`, got `array`"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested too deeply"),
    ],
)
async def test_arguments_that_are_no_json_object_leave_no_events(
    pool: ServerPool, arguments: str, detail: str
) -> None:
    assert await run(pool, "x__add", arguments) == ([], f"err: {detail}")


@pytest.mark.parametrize("arguments", ["", "  ", "null"])
async def test_empty_arguments_mean_none(pool: ServerPool, arguments: str) -> None:
    events, output = await run(pool, "x__env", arguments)

    result = {"content": [{"type": "text", "text": "EXTRA,HOME,LANG,PATH"}]}
    assert events == shown("env", None, ToolCallOutcome(ok=result))
    assert output == '[{"text":"EXTRA,HOME,LANG,PATH","type":"text"}]'


async def test_the_model_reads_an_image_as_json_too(pool: ServerPool) -> None:
    events, output = await run(pool, "x__image", '{"mode": "a"}')

    result = {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    assert events == shown("image", {"mode": "a"}, ToolCallOutcome(ok=result))
    assert output == '[{"data":"AAAA","mimeType":"image/png","type":"image"}]'


async def test_arguments_reach_the_tool_as_the_model_gave_them(pool: ServerPool) -> None:
    arguments: dict[str, Any] = {
        "none": None,
        "list": [None, 1.5, True],
        "text": "ü 😀",
        "big": 2**70,
        "deep": {"a": {}},
    }

    async with pool.lease([X]) as lease:
        assert json.loads(await call_text(lease, "x__echo", arguments)) == arguments


async def test_a_result_over_one_mebibyte_is_cut_for_the_model_alone(pool: ServerPool) -> None:
    size = 1024 * 1024
    events, output = await run(pool, "x__big", json.dumps({"size": size}))

    result = {"content": [{"type": "text", "text": "x" * size}]}
    whole = f'[{{"text":"{"x" * size}","type":"text"}}]'
    assert events == shown("big", {"size": size}, ToolCallOutcome(ok=result))
    assert output == whole[:size] + f"\n[The result is too long: 27 of {size + 27} bytes are left out.]"


async def test_a_result_over_four_mebibytes_is_left_out_of_the_event(pool: ServerPool) -> None:
    size = 4 * 1024 * 1024
    events, output = await run(pool, "x__big", json.dumps({"size": size}))

    sentence = f"The result is too long to be shown: {size + 39} bytes, of {size} at most."
    result = {"content": [{"type": "text", "text": sentence}]}
    assert events == shown("big", {"size": size}, ToolCallOutcome(ok=result))
    assert len(output) < 1024 * 1024 + 100


# --- progress ----------------------------------------------------------------------------


async def test_progress_becomes_background_events_few_enough_to_read(pool: ServerPool) -> None:
    events, output = await run(pool, "x__steps", '{"count": 1000}')

    begin, *progress, end = events
    assert isinstance(begin, McpToolCallBegin)
    assert isinstance(end, McpToolCallEnd)
    assert output == '[{"text":"done","type":"text"}]'
    assert progress[-1] == BackgroundEvent(message="Progress of x/steps: 1000 of 1000 (step 1000)")
    assert all(isinstance(one, BackgroundEvent) for one in progress)
    assert len(progress) < 100


async def test_progress_is_seen_while_the_tool_works(pool: ServerPool) -> None:
    transcript = RecordingTranscript()
    async with pool.lease([X]) as lease:
        tools = ServerTools(context(transcript), lease)
        waiting = asyncio.create_task(tools.run(call_item("x__wait", "{}")))
        await transcript.until(2)

        assert transcript.payloads[1] == BackgroundEvent(message="Progress of x/wait: 0 (waiting)")
        assert await call_text(lease, "x__release") == "ok"
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await waiting == '[{"text":"released","type":"text"}]'


@pytest.mark.parametrize(
    ("done", "total", "message", "words"),
    [
        (1, None, None, "Progress of x/y: 1"),
        (0.5, 2, "", "Progress of x/y: 0.5 of 2"),
        (3, 4, " two\n\x1b[2Klines ", "Progress of x/y: 3 of 4 (two [2Klines)"),
        (3, 4, "long" * 1000, f"Progress of x/y: 3 of 4 ({'long' * 125})"),
    ],
)
def test_progress_is_said_in_one_line(done: float, total: float | None, message: str | None, words: str) -> None:
    assert progress_text("x", "y", done, total, message) == words


async def test_of_progress_that_arrives_too_fast_the_first_and_the_last_are_passed_on() -> None:
    said: list[str] = []
    first = asyncio.Event()

    async def say(words: str) -> None:
        said.append(words)
        first.set()

    async with asyncio.timeout(TIMEOUT_SECONDS), throttled_progress(say) as put:
        put("1")
        await first.wait()
        for number in range(2, 100):
            put(str(number))

    assert said == ["1", "99"]


# --- sharing -----------------------------------------------------------------------------


async def test_equal_settings_share_one_program_whatever_they_are_called(pool: ServerPool) -> None:
    mark = marker()
    one, other = program("one", mark=mark), program("other", mark=mark)

    async with pool.lease([one]) as lease, pool.lease([other, one]) as second:
        pids = {
            await call_text(lease, "one__pid"),
            await call_text(second, "other__pid"),
            await call_text(second, "one__pid"),
        }

        assert (len(pids), running(mark)) == (1, 1)


async def test_other_settings_do_not(pool: ServerPool) -> None:
    mark = marker()
    same = [program("a", mark=mark), program("b", mark=mark, env={"A": "1"}), program("c", "garbage", mark=mark)]

    async with pool.lease(same) as lease:
        pids = {await call_text(lease, f"{name}__pid") for name in "abc"}

    assert (len(pids), running(mark)) == (3, 3)


async def test_a_server_runs_on_between_turns(pool: ServerPool) -> None:
    async with pool.lease([X]) as lease:
        before = await call_text(lease, "x__pid")
    async with pool.lease([X]) as lease:
        assert await call_text(lease, "x__pid") == before


async def test_starting_twice_starts_once(pool: ServerPool) -> None:
    mark = marker()
    server = program("x", mark=mark)

    await asyncio.gather(pool.start([server]), pool.start([server]), pool.start([server]))

    assert running(mark) == 1


async def test_an_unused_server_is_ended_and_started_again_when_needed() -> None:
    mark = marker()
    server = program("x", mark=mark)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        closing(ServerPool(ENVIRON, timing=Timing(answer_seconds=TIMEOUT_SECONDS, idle_seconds=0))) as pool,
    ):
        async with pool.lease([server]) as lease:
            before = await call_text(lease, "x__pid")
        await until(lambda: not running(mark))
        async with pool.lease([server]) as lease:
            assert await call_text(lease, "x__pid") != before


async def test_a_server_that_is_used_is_not_ended() -> None:
    async with (
        closing(ServerPool(ENVIRON, timing=Timing(answer_seconds=TIMEOUT_SECONDS, idle_seconds=0))) as pool,
        pool.lease([X]) as lease,
    ):
        before = await call_text(lease, "x__pid")
        async with pool.lease([X]) as second:
            assert await call_text(second, "x__pid") == before

        assert await call_text(lease, "x__pid") == before


async def test_a_closed_pool_starts_nothing() -> None:
    pool = ServerPool(ENVIRON, timing=SLOW_TIMING)
    await pool.close()

    with pytest.raises(ShuttingDown):
        await pool.start([X])
    with pytest.raises(ShuttingDown):
        async with pool.lease([X]):
            pass


async def test_an_unused_pool_says_so_once_its_servers_were_idle() -> None:
    unused: list[int] = []
    timing = Timing(answer_seconds=TIMEOUT_SECONDS, idle_seconds=0)
    async with closing(ServerPool(ENVIRON, timing=timing, on_unused=lambda: unused.append(1))) as pool:
        async with pool.lease([X]) as lease, pool.lease([program("y")]):
            assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"
            assert unused == []
        await until(lambda: bool(unused))


async def test_a_pool_whose_only_server_fails_or_cannot_be_used_is_unused_too() -> None:
    unused: list[int] = []
    timing = Timing(answer_seconds=TIMEOUT_SECONDS, idle_seconds=0)
    async with closing(ServerPool(ENVIRON, timing=timing, on_unused=lambda: unused.append(1))) as pool:
        await pool.start([program("bad name")])
        assert unused == [1]
        await pool.start([ToolServer(name="broken", command="/no/such/program")])
        await until(lambda: len(unused) == 2)


# --- other servers -----------------------------------------------------------------------


@asynccontextmanager
async def official(transport: str, era: str) -> AsyncIterator[ToolServer]:
    if transport == "stdio":
        command, *args = official_program(era)
        yield ToolServer(name="o", command=command, args=tuple(args))
    else:
        async with official_url(era) as url:
            yield ToolServer(name="o", url=url)


@pytest.mark.parametrize(
    ("transport", "era"),
    [
        ("stdio", "legacy"),
        pytest.param("http", "modern", marks=pytest.mark.long),
        pytest.param("stdio", "modern", marks=pytest.mark.long),
        pytest.param("http", "legacy", marks=pytest.mark.long),
    ],
)
async def test_a_server_of_the_official_library_is_understood(pool: ServerPool, transport: str, era: str) -> None:
    async with official(transport, era) as server, pool.lease([server]) as lease:
        transcript = RecordingTranscript()
        tools = ServerTools(context(transcript), lease)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output = [
                await tools.run(call_item("o__add", '{"a": 1, "b": 2}')),
                await tools.run(call_item("o__steps", '{"count": 3}')),
                await tools.run(call_item("o__picture", "{}")),
                await tools.run(call_item("o__fail", "{}")),
                await tools.run(call_item("o__locate", '{"region": "Zürich"}')),
            ]
            waiting = asyncio.create_task(tools.run(call_item("o__wait", "{}")))
            await transcript.until(12)
            waiting.cancel()
            await asyncio.wait([waiting])
            output.append(await tools.run(call_item("o__add", '{"a": 3, "b": 4}')))

        assert [spec.name for spec in lease.specs()] == [
            "o__add",
            "o__fail",
            "o__locate",
            "o__picture",
            "o__steps",
            "o__wait",
        ]
        assert output == [
            '[{"text":"3","type":"text"}]',
            '[{"text":"done","type":"text"}]',
            '[{"data":"AAAA","mimeType":"image/png","type":"image"}]',
            '[{"text":"Error executing tool fail","type":"text"}]',
            '[{"text":"Zürich","type":"text"}]',
            '[{"text":"7","type":"text"}]',
        ]
        assert BackgroundEvent(message="Progress of o/steps: 3 of 3 (step 3)") in transcript.payloads
        add = next(one for one in transcript.payloads if isinstance(one, McpToolCallEnd))
        assert isinstance(add.result.ok, dict)
        assert add.result.ok["structuredContent"] == {"result": 3}


async def test_an_address_is_reached_with_the_token_that_a_variable_holds() -> None:
    loopback = Loopback(token="t0p-secret")
    async with loopback.open() as url, closing(ServerPool({**ENVIRON, "TOKEN": "t0p-secret"})) as pool:
        server = ToolServer(name="far", url=url, bearer_token_env_var="TOKEN")
        transcript = RecordingTranscript()

        assert await pool.start([server]) == ()
        async with pool.lease([server]) as lease:
            tools = ServerTools(context(transcript), lease)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                output = await tools.run(call_item("far__add", '{"a": 1, "b": 2}'))
                await tools.run(call_item("far__steps", '{"count": 2}'))

    assert output == '[{"text":"3","type":"text"}]'
    assert BackgroundEvent(message="Progress of far/steps: 2 of 2 (step 2)") in transcript.payloads
    assert set(loopback.seen_tokens) == {"Bearer t0p-secret"}
    assert (loopback.sessions, loopback.farewells) == (1, 1)


async def test_an_address_gets_the_headers_of_its_settings() -> None:
    loopback = Loopback()
    server = ToolServer(
        name="far",
        http_headers={"X-Team": "tools", "Accept-Encoding": "gzip"},
        env_http_headers={"X-Tenant": "TENANT", "X-Absent": "NO_SUCH_VARIABLE"},
    )
    async with (
        loopback.open() as url,
        closing(ServerPool({"TENANT": "t-1"}, timing=SLOW_TIMING)) as pool,
        pool.lease([structs.replace(server, url=url)]) as lease,
    ):
        assert await call_text(lease, "far__add", {"a": 1, "b": 2}) == "3"

    assert {(one["x-team"], one["x-tenant"], one["accept-encoding"]) for one in loopback.seen_headers} == {
        ("tools", "t-1", "identity")
    }
    assert not any("x-absent" in one for one in loopback.seen_headers)


async def test_an_address_needs_no_token() -> None:
    loopback = Loopback()
    async with (
        loopback.open() as url,
        closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool,
        pool.lease([ToolServer(name="far", url=url)]) as lease,
    ):
        assert await call_text(lease, "far__add", {"a": 1, "b": 2}) == "3"

    assert set(loopback.seen_tokens) == {None}


async def test_a_large_result_comes_from_an_address_too() -> None:
    loopback = Loopback()
    async with (
        loopback.open() as url,
        closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool,
        pool.lease([ToolServer(name="far", url=url)]) as lease,
    ):
        assert len(await call_text(lease, "far__big", {"size": 3_000_000})) == 3_000_000


# --- the environment of a program ----------------------------------------------------------------


def test_a_program_is_given_a_few_variables_and_those_of_its_settings() -> None:
    passed = ("HOME", "LOGNAME", "PATH", "SHELL", "USER", "LANG", "LC_ALL", "TERM", "TMPDIR", "TZ")
    environ = dict.fromkeys((*passed, "__CF_USER_TEXT_ENCODING", "OPENAI_API_KEY", "LD_PRELOAD", "A"), "ours")

    assert environment(environ, {"A": "theirs", "TZ": "theirs"}) == {
        **dict.fromkeys(passed, "ours"),
        "__CF_USER_TEXT_ENCODING": "ours",
        "A": "theirs",
        "TZ": "theirs",
    }


# --- the HTTP library -------------------------------------------------------------------------


def test_the_http_library_is_not_loaded_before_a_server_is_needed() -> None:
    code = """
import asyncio, sys
from parley.tools.servers import ServerPool, ServerTools
async def main():
    pool = ServerPool({})
    await pool.start([])
    async with pool.lease([]):
        pass
    await pool.close()
asyncio.run(main())
print([name for name in ("aiohttp", "mcp", "pydantic") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert result.stdout == "[]\n"

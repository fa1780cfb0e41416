"""Tool servers that crash, hang, send invalid messages or do not exit."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from kit.builders.transcript import RecordingTranscript
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
    nothing_running,
    program,
    running,
)
from kit.system.frozen_time import frozen_time
from kit.system.waiting import until
from parley.config.types import ToolServer
from parley.tools.errors import ToolServerFailed
from parley.tools.servers import ServerPool, ServerTools, Timing
from parley.tools.servers.connection import CLOSE_SECONDS
from parley.tools.servers.program import LEAVE_SECONDS, TERM_SECONDS
from parley.wire.events import McpToolCallBegin, McpToolCallEnd

HASTY = Timing(answer_seconds=0.5)
EAGER = Timing(answer_seconds=TIMEOUT_SECONDS, retry_seconds=0)


@pytest.fixture
async def pool() -> AsyncIterator[ServerPool]:
    async with closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool:
        yield pool


@pytest.fixture
async def mark() -> AsyncIterator[str]:
    """Return a marker that no process may have after the test."""
    mark = marker()
    yield mark
    await nothing_running(mark)


async def failures(pool: ServerPool, *servers: ToolServer) -> list[str]:
    """Return the failures of `start`, without their common beginning."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        sentences = [sentence for _, sentence in await pool.start(servers)]
    named = [sentence.removeprefix("MCP client for ").split(" failed to start: ", 1) for sentence in sentences]
    assert all(len(one) == 2 for one in named), sentences
    return [f"{name} {detail}" for name, detail in named]


def write_program(path: Path, mode: str, mark: str) -> ToolServer:
    """Write a program to a file, which can be replaced while the settings stay the same."""
    command = shlex.join([program("x").command or "", *program("x", mode, mark=mark).args])
    draft = path.with_suffix(".new")
    draft.write_text(f"#!/bin/sh\nexec {command}\n")
    draft.chmod(0o755)
    draft.rename(path)
    return ToolServer(name="x", command=str(path))


# --- servers that do not start -----------------------------------------------------------


async def test_each_server_that_cannot_be_started_has_its_sentence_in_order(pool: ServerPool) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        failed = await pool.start(
            [
                ToolServer(name="broken", command="/no/such/program"),
                program("good"),
                program("bad name"),
                ToolServer(name="folder", command="/tmp"),
                ToolServer(name="nul", command="a\0b"),
                program("gone", "exit"),
            ]
        )

    assert [name for name, _ in failed] == ["broken", "bad name", "folder", "nul", "gone"]
    assert tuple(sentence for _, sentence in failed) == (
        "MCP client for `broken` failed to start: "
        "cannot run /no/such/program: No such file or directory (os error 2)",
        "MCP client for `bad name` failed to start: "
        "invalid server name 'bad name': must match pattern ^[a-zA-Z0-9_-]+$",
        "MCP client for `folder` failed to start: cannot run /tmp: Permission denied (os error 13)",
        "MCP client for `nul` failed to start: embedded null byte",
        "MCP client for `gone` failed to start: the program ended before it answered (exit code 3)",
    )


async def test_the_others_can_be_used_beside_one_that_failed(pool: ServerPool) -> None:
    servers = [ToolServer(name="broken", command="/no/such/program"), program("x"), program("bad name")]

    async with pool.lease(servers) as lease:
        assert {spec.name.partition("__")[0] for spec in lease.specs()} == {"x"}
        assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"


async def test_a_server_that_never_answers_is_given_up_and_ended(mark: str) -> None:
    async with closing(ServerPool(ENVIRON, timing=HASTY)) as pool:
        assert await failures(pool, program("slow", "mute", mark=mark)) == ["`slow` request timed out"]
        await until(lambda: not running(mark))


async def test_other_calls_do_not_wait_while_a_server_starts(mark: str) -> None:
    async with closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool, pool.lease([program("x")]) as lease:
        starting = asyncio.create_task(pool.start([program("slow", "mute", mark=mark)]))
        await until(lambda: running(mark) == 1)

        for _ in range(10):
            assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"
        assert not starting.done()
        await pool.close()
        await starting


async def test_every_conversation_reports_a_failed_server_without_a_second_try(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text("#!/bin/sh\necho tried >> tries\nexit 3\n".replace("tries", str(tmp_path / "tries")))
    script.chmod(0o755)
    server = ToolServer(name="x", command=str(script))
    expected = ["`x` the program ended before it answered (exit code 3)"]

    async with closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool:
        assert [await failures(pool, server), await failures(pool, server)] == [expected] * 2
        async with pool.lease([server]) as lease:
            assert lease.specs() == ()

    assert (tmp_path / "tries").read_text() == "tried\n"


async def test_a_server_that_was_mended_is_found_after_a_while(tmp_path: Path) -> None:
    server = ToolServer(name="x", command=str(tmp_path / "server"), args=program("x").args)
    async with closing(ServerPool(ENVIRON, timing=EAGER)) as pool:
        assert await failures(pool, server) == [
            f"`x` cannot run {tmp_path}/server: No such file or directory (os error 2)"
        ]
        python = program("x").command
        assert python is not None
        (tmp_path / "server").symlink_to(python)

        async with pool.lease([server]) as lease:
            await until(lambda: lease.find("x__add") is not None)
            assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"
        assert await failures(pool, server) == []


async def test_a_server_that_failed_is_started_again_without_delaying_later_turns(
    tmp_path: Path, mark: str
) -> None:
    server = ToolServer(name="x", command=str(tmp_path / "server"))
    expected = [f"`x` cannot run {tmp_path}/server: No such file or directory (os error 2)"]
    async with closing(ServerPool(ENVIRON, timing=Timing(answer_seconds=1000, retry_seconds=0))) as pool:
        assert await failures(pool, server) == expected
        write_program(tmp_path / "server", "mute", mark)

        async with asyncio.timeout(TIMEOUT_SECONDS), pool.lease([server]) as lease:
            assert lease.specs() == ()
            assert await failures(pool, server) == expected
            await until(lambda: running(mark) == 1)


async def test_a_turn_does_not_wait_for_a_server_that_is_started_again_after_a_crash(
    tmp_path: Path, mark: str
) -> None:
    server = write_program(tmp_path / "server", "serve", mark)
    async with closing(ServerPool(ENVIRON, timing=Timing(answer_seconds=1000))) as pool:
        async with pool.lease([server]) as lease:
            specs = lease.specs()
            write_program(tmp_path / "server", "mute", mark)
            with pytest.raises(ToolServerFailed):
                await call_text(lease, "x__crash")

        async with asyncio.timeout(TIMEOUT_SECONDS), pool.lease([server]) as lease:
            assert lease.specs() == specs
            assert specs


async def test_an_idle_server_that_failed_is_not_waited_for_again(tmp_path: Path, mark: str) -> None:
    server = ToolServer(name="x", command=str(tmp_path / "server"))
    expected = [f"`x` cannot run {tmp_path}/server: No such file or directory (os error 2)"]
    timing = Timing(answer_seconds=1000, retry_seconds=0, idle_seconds=0)
    async with closing(ServerPool(ENVIRON, timing=timing)) as pool:
        assert await failures(pool, server) == expected
        write_program(tmp_path / "server", "mute", mark)
        for _ in range(3):
            async with asyncio.timeout(TIMEOUT_SECONDS), pool.lease([server]):
                await until(lambda: running(mark) == 1)
                assert await failures(pool, server) == expected
            await until(lambda: running(mark) == 0)  # no lease uses it


async def test_closing_does_not_wait_for_a_server_that_still_starts(mark: str) -> None:
    pool = ServerPool(ENVIRON, timing=SLOW_TIMING)
    starting = asyncio.create_task(pool.start([program("slow", "mute", mark=mark)]))
    await until(lambda: running(mark) == 1)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        await pool.close()
        assert await starting == ()


async def test_leaving_while_servers_start_leaves_them_to_start(pool: ServerPool, mark: str) -> None:
    starting = asyncio.create_task(pool.start([program("x", mark=mark)]))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])

    async with pool.lease([program("x", mark=mark)]) as lease:
        assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"
        assert running(mark) == 1
    await pool.close()


# --- servers that send invalid messages ----------------------------------------------------


async def test_garbage_between_the_answers_is_skipped(pool: ServerPool) -> None:
    async with pool.lease([program("x", "garbage")]) as lease:
        assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"


async def test_ten_megabytes_on_stderr_block_nothing_and_are_logged_in_short_lines(
    pool: ServerPool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "parley.tools.servers.program")

    async with pool.lease([program("x", "noisy")]) as lease:
        assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"

    lines = [record.getMessage() for record in caplog.records if record.name == "parley.tools.servers.program"]
    assert lines == ["tool server x: a line"] + [f"tool server x: {'x' * 1000}"] * 10
    assert capfd.readouterr().out == ""


async def test_the_secrets_of_a_tool_server_are_redacted_in_its_lines_of_the_log(
    pool: ServerPool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "parley.tools.servers.program")
    begin = "x" * 990
    script = f"printf '%s\\n' \"with $DB_THING and $1\" '{begin} '\"$DB_THING\" >&2"
    settings = ToolServer(
        name="x",
        command="sh",
        args=("-c", script, "sh", "--key=argument-secret-1"),
        env={"DB_THING": "environment-secret"},
    )

    await failures(pool, settings)

    lines = [record.getMessage() for record in caplog.records if record.name == "parley.tools.servers.program"]
    assert lines == [
        "tool server x: with [redacted] and --key=[redacted]",
        f"tool server x: {begin} [redacted",
    ]


async def test_an_answer_that_cannot_be_read_fails_its_call_alone(pool: ServerPool) -> None:
    async with pool.lease([program("x")]) as lease:
        with pytest.raises(ToolServerFailed) as failure:
            await call_text(lease, "x__unreadable")

        assert str(failure.value) == (
            "tool call error: tool call failed for `x/unreadable`: its response cannot be read"
        )
        assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"


async def test_an_answer_that_is_too_long_fails_its_call_alone(pool: ServerPool) -> None:
    size = 16 * 1024 * 1024
    async with pool.lease([program("x")]) as lease:
        with pytest.raises(ToolServerFailed) as failure:
            await call_text(lease, "x__big", {"size": size})

        assert failure.value.detail == f"its response is longer than {size} bytes"
        assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"


async def test_an_answer_that_is_nested_too_deeply_fails_its_call_alone(pool: ServerPool) -> None:
    async with pool.lease([program("x")]) as lease:
        tools = ServerTools(context(RecordingTranscript()), lease)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await tools.run(call_item("x__deep", '{"depth": 100}')) == (
                "tool call error: tool call failed for `x/deep`: its response is nested too deeply"
            )


# --- crashes -----------------------------------------------------------------------------


async def test_the_call_that_meets_a_crash_fails_and_the_next_one_works(pool: ServerPool) -> None:
    transcript = RecordingTranscript()
    async with pool.lease([program("x")]) as lease:
        tools = ServerTools(context(transcript), lease)
        before, specs = await call_text(lease, "x__pid"), lease.specs()

        async with asyncio.timeout(TIMEOUT_SECONDS):
            output = await tools.run(call_item("x__crash", "{}"))

        assert output == (
            "tool call error: tool call failed for `x/crash`: the connection to the tool server was lost"
        )
        end = transcript.payloads[-1]
        assert isinstance(end, McpToolCallEnd)
        assert end.result.err == output
        assert lease.specs() == specs
        assert await call_text(lease, "x__pid") != before


async def test_all_calls_under_way_fail_when_their_server_is_killed(pool: ServerPool) -> None:
    transcript = RecordingTranscript()
    async with pool.lease([program("x")]) as lease:
        tools = ServerTools(context(transcript), lease)
        calls = [asyncio.create_task(tools.run(call_item("x__wait", "{}"))) for _ in range(3)]
        await transcript.until(6)  # the three calls have begun and are waiting
        os.kill(int(await call_text(lease, "x__pid")), signal.SIGKILL)

        async with asyncio.timeout(TIMEOUT_SECONDS):
            outputs = await asyncio.gather(*calls)

    assert (
        outputs
        == ["tool call error: tool call failed for `x/wait`: the connection to the tool server was lost"] * 3
    )


async def test_a_crash_is_noticed_though_a_child_holds_the_output(pool: ServerPool, mark: str) -> None:
    server = program("x", mark=mark)
    async with pool.lease([server]) as lease:
        await call_text(lease, "x__child")
        await until(lambda: running(mark) == 2)

        with pytest.raises(ToolServerFailed):
            await call_text(lease, "x__crash")
        assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"
        await until(lambda: running(mark) == 1)
    await pool.close()


async def test_a_server_that_cannot_be_started_again_reports_it_to_the_model(tmp_path: Path) -> None:
    python = program("x").command
    assert python is not None
    (tmp_path / "server").symlink_to(python)
    server = ToolServer(name="x", command=str(tmp_path / "server"), args=program("x").args)
    async with closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool, pool.lease([server]) as lease:
        tool = lease.find("x__add")
        assert tool is not None
        with pytest.raises(ToolServerFailed):
            await call_text(lease, "x__crash")
        (tmp_path / "server").unlink()

        async with asyncio.timeout(TIMEOUT_SECONDS):
            with pytest.raises(ToolServerFailed) as failure:
                await tool.call({"a": 1, "b": 2}, progress=lambda *_: None)

        assert failure.value.detail == f"cannot run {tmp_path}/server: No such file or directory (os error 2)"
        assert lease.specs() == ()


# --- cancelling --------------------------------------------------------------------------


async def test_cancelling_a_call_stops_it_at_the_server_and_affects_no_other_call(pool: ServerPool) -> None:
    transcript = RecordingTranscript()
    async with pool.lease([program("x")]) as lease:
        tools = ServerTools(context(transcript), lease)
        before = await call_text(lease, "x__pid")
        ending = asyncio.create_task(tools.run(call_item("x__wait", "{}", "ending")))
        await transcript.until(2)
        other = asyncio.create_task(tools.run(call_item("x__wait", "{}", "other")))
        await transcript.until(4)

        ending.cancel()
        await asyncio.wait([ending])
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while await call_text(lease, "x__cancelled") != "1":
                pass
            await call_text(lease, "x__release")
            output = await other

        assert ending.cancelled()
        assert output == '[{"text":"released","type":"text"}]'
        assert await call_text(lease, "x__pid") == before
        assert [one.call_id for one in transcript.payloads if isinstance(one, McpToolCallBegin)] == [
            "ending",
            "other",
        ]
        assert [one.call_id for one in transcript.payloads if isinstance(one, McpToolCallEnd)] == ["other"]


async def test_cancelling_a_call_over_http_stops_it_at_the_server() -> None:
    loopback, transcript = Loopback(), RecordingTranscript()
    async with (
        loopback.open() as url,
        closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool,
        pool.lease([ToolServer(name="x", url=url)]) as lease,
    ):
        ending = asyncio.create_task(ServerTools(context(transcript), lease).run(call_item("x__wait", "{}")))
        await transcript.until(2)

        ending.cancel()
        await asyncio.wait([ending])
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while await call_text(lease, "x__cancelled") != "1":
                pass

        assert loopback.sessions == 1


async def test_a_server_that_does_not_listen_holds_up_neither_a_cancellation_nor_the_end(mark: str) -> None:
    pool = ServerPool(ENVIRON, timing=SLOW_TIMING)
    async with pool.lease([program("x", mark=mark)]) as lease:
        os.kill(int(await call_text(lease, "x__pid")), signal.SIGSTOP)
        transcript = RecordingTranscript()
        arguments = '{"a": "' + "x" * 1_000_000 + '"}'
        ending = asyncio.create_task(ServerTools(context(transcript), lease).run(call_item("x__echo", arguments)))
        await transcript.until(1)

        ending.cancel()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await asyncio.wait([ending])
            await pool.close()

        assert ending.cancelled()


# --- calls that take too long --------------------------------------------------------------


@pytest.mark.parametrize("where", ["program", "address"])
async def test_a_call_that_takes_too_long_is_stopped_at_the_server_which_continues(where: str) -> None:
    transcript, loopback = RecordingTranscript(), Loopback()
    async with loopback.open() as url, closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool:
        server = program("x") if where == "program" else ToolServer(name="x", url=url)
        async with (
            pool.lease([structs.replace(server, tool_timeout_seconds=1)]) as hasty,
            pool.lease([server]) as lease,
        ):
            before = await call_text(lease, "x__pid")
            async with asyncio.timeout(TIMEOUT_SECONDS):
                with frozen_time():
                    tools = ServerTools(context(transcript), hasty)
                    waiting = asyncio.create_task(tools.run(call_item("x__wait", "{}")))
                    await transcript.until(2)  # the call has arrived at the server
                output = await waiting
                while await call_text(lease, "x__cancelled") != "1":
                    pass

            assert output == "tool call error: tool call failed for `x/wait`: request timed out"
            assert await call_text(lease, "x__pid") == before
            begin, *_, end = transcript.payloads
            assert isinstance(begin, McpToolCallBegin)
            assert isinstance(end, McpToolCallEnd)
            assert end.result.err == output
            assert end.duration.secs >= 1


async def test_the_time_of_a_call_runs_while_its_server_starts_again(tmp_path: Path, mark: str) -> None:
    server = write_program(tmp_path / "server", "serve", mark)
    hasty = structs.replace(server, tool_timeout_seconds=1)
    async with (
        closing(ServerPool(ENVIRON, timing=Timing(answer_seconds=1000))) as pool,
        pool.lease([server]) as lease,
        pool.lease([hasty]) as second,
    ):
        write_program(tmp_path / "server", "mute", mark)
        with pytest.raises(ToolServerFailed):
            await call_text(lease, "x__crash")

        with pytest.raises(ToolServerFailed) as failure:
            await call_text(second, "x__add", {"a": 1, "b": 2})

    assert failure.value.detail == "request timed out"


async def test_without_a_limit_a_call_may_take_as_long_as_it_likes(pool: ServerPool) -> None:
    transcript = RecordingTranscript()
    async with pool.lease([structs.replace(program("x"), tool_timeout_seconds=0)]) as lease:
        waiting = asyncio.create_task(ServerTools(context(transcript), lease).run(call_item("x__wait", "{}")))
        await transcript.until(2)

        await call_text(lease, "x__release")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await waiting == '[{"text":"released","type":"text"}]'


# --- ending ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["serve", "stubborn", "leaving"])
async def test_closing_leaves_nothing_running(mode: str) -> None:
    mark = marker()
    pool = ServerPool(ENVIRON, timing=SLOW_TIMING)
    async with pool.lease([program("x", mode, mark=mark)]) as lease:
        await call_text(lease, "x__child")
        await until(lambda: running(mark) > 1)

        async with asyncio.timeout(TIMEOUT_SECONDS):
            await pool.close()

        await until(lambda: running(mark) == 0)


async def test_a_server_that_is_stopped_in_its_tracks_is_ended_too() -> None:
    mark = marker()
    pool = ServerPool(ENVIRON, timing=SLOW_TIMING)
    async with pool.lease([program("x", mark=mark)]) as lease:
        os.kill(int(await call_text(lease, "x__pid")), signal.SIGSTOP)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        await pool.close()

    await until(lambda: running(mark) == 0)


async def test_closing_does_not_wait_for_an_http_server_that_does_not_answer() -> None:
    loopback = Loopback()
    async with loopback.open() as url:
        async with (
            closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool,
            pool.lease([ToolServer(name="x", url=url)]) as lease,
        ):
            assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"
            loopback.falls_silent = True

        assert loopback.farewells == 1


def test_a_program_that_does_not_exit_is_abandoned_within_two_seconds() -> None:
    assert CLOSE_SECONDS <= 0.7
    assert LEAVE_SECONDS + TERM_SECONDS <= 1.0


async def test_a_call_under_way_fails_when_the_pool_closes(mark: str) -> None:
    pool, transcript = ServerPool(ENVIRON, timing=SLOW_TIMING), RecordingTranscript()
    async with asyncio.timeout(TIMEOUT_SECONDS), pool.lease([program("x", mark=mark)]) as lease:
        waiting = asyncio.create_task(ServerTools(context(transcript), lease).run(call_item("x__wait", "{}")))
        await transcript.until(2)

        await pool.close()

        lost = "tool call error: tool call failed for `x/wait`: the connection to the tool server was lost"
        assert await waiting == lost
        with pytest.raises(ToolServerFailed):
            await call_text(lease, "x__add", {"a": 1, "b": 2})


async def test_many_starts_and_ends_leave_no_descriptor_and_no_task(mark: str) -> None:
    def left() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())

    async def one_start() -> None:
        async with closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool:
            await pool.start([program("e", "exit", mark=mark), ToolServer(name="b", command="/no/such/program")])
            async with pool.lease([program("x", mark=mark), program("g", "garbage", mark=mark)]) as lease:
                await call_text(lease, "g__add", {"a": 1, "b": 2})
                with pytest.raises(ToolServerFailed):
                    await call_text(lease, "x__crash")
                await call_text(lease, "x__add", {"a": 1, "b": 2})

    await one_start()  # the library is loaded
    before = left()
    for _ in range(3):
        await one_start()
    await until(lambda: left() == before)


# --- addresses ---------------------------------------------------------------------------


async def test_an_address_without_a_server_is_a_failure(pool: ServerPool) -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        server = ToolServer(name="far", url=f"http://127.0.0.1:{taken.getsockname()[1]}/mcp")

        assert await failures(pool, server) == ["`far` Connection refused (os error 111)"]


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1/", "http://", ""])
async def test_an_invalid_url_is_a_failure(url: str, pool: ServerPool) -> None:
    (failure,) = await failures(pool, ToolServer(name="far", url=url))

    assert failure.startswith("`far` ")


@pytest.mark.parametrize(
    ("environ", "detail"),
    [
        ({}, "Missing environment variable: `TOKEN`"),
        ({"TOKEN": ""}, "Missing environment variable: `TOKEN`"),
        ({"TOKEN": "s3cret\nX-Evil: 1"}, "environment variable `TOKEN` does not hold a token"),
        ({"TOKEN": "wrong"}, "the server answered 401 Unauthorized"),
    ],
)
async def test_a_missing_or_wrong_token_is_named_but_never_shown(environ: dict[str, str], detail: str) -> None:
    async with Loopback(token="right").open() as url, closing(ServerPool(environ)) as pool:
        server = ToolServer(name="far", url=url, bearer_token_env_var="TOKEN")

        assert await failures(pool, server) == [f"`far` {detail}"]


async def test_a_token_does_not_follow_to_another_origin() -> None:
    near, far = Loopback(token="s3cret"), Loopback()
    async with near.open() as url, far.open() as elsewhere, closing(ServerPool({"TOKEN": "s3cret"})) as pool:
        near.redirect_to = f"{elsewhere}?key=s3cret"
        (failure,) = await failures(pool, ToolServer(name="far", url=url, bearer_token_env_var="TOKEN"))

    assert failure.startswith(f"`far` Redirect to {elsewhere} not followed")
    assert "s3cret" not in failure
    assert far.seen_tokens == []


async def test_an_address_that_falls_silent_is_given_up_and_left() -> None:
    loopback = Loopback()
    loopback.falls_silent = True
    async with loopback.open() as url, closing(ServerPool(ENVIRON, timing=HASTY)) as pool:
        assert await failures(pool, ToolServer(name="far", url=url)) == ["`far` request timed out"]


async def test_a_server_that_forgot_the_session_is_greeted_again_at_the_next_call() -> None:
    loopback = Loopback()
    async with (
        loopback.open() as url,
        closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool,
        pool.lease([ToolServer(name="x", url=url)]) as lease,
    ):
        assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"
        loopback.forget_session()

        with pytest.raises(ToolServerFailed):
            await call_text(lease, "x__add", {"a": 1, "b": 2})
        assert await call_text(lease, "x__add", {"a": 1, "b": 2}) == "3"
        assert loopback.sessions == 2


async def test_an_address_that_went_away_fails_the_call_and_may_come_back() -> None:
    loopback = Loopback()
    async with closing(ServerPool(ENVIRON, timing=EAGER)) as pool:
        async with loopback.open() as url:
            server = ToolServer(name="x", url=url)
            assert await pool.start([server]) == ()
        async with pool.lease([server]) as lease:
            tool = lease.find("x__add")
            assert tool is not None
            async with asyncio.timeout(TIMEOUT_SECONDS):
                with pytest.raises(ToolServerFailed) as failure:
                    await tool.call({"a": 1, "b": 2}, progress=lambda *_: None)

    assert failure.value.detail == "the connection to the tool server was lost"

"""Different kinds of stdin and stdout, and the log on stderr, even if no program reads it."""

from __future__ import annotations

import asyncio
import os
import pty
import socket
import tty
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import IO, Any

import msgspec
import pytest

from kit.clients.requests import EXIT_SECONDS, initialize, request, result, tool
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import Home
from parley.wire.jsonrpc import encode

pytestmark = pytest.mark.child_process


@asynccontextmanager
async def server(
    model: ScriptedModel,
    *,
    stdin: int | IO[bytes],
    stdout: int | IO[bytes],
    stderr: int | None = None,
    env: dict[str, str] | None = None,
    through: tuple[str, ...] = (),
) -> AsyncIterator[Process]:
    """Start a server on any descriptors, possibly through another program. Kill the server if it does not exit."""
    home = Home(model, env=env or {})
    home.open()
    try:
        process = await asyncio.create_subprocess_exec(
            *through,
            *home.command,
            stdin=stdin,
            stdout=stdout,
            stderr=home.stderr if stderr is None else stderr,
            env=home.environ,
            cwd=home.work,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            process._transport.close()  # type: ignore[attr-defined] # a pipe that was not read to its end stays open
    finally:
        home.close()


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Return both ends of a terminal in raw mode. The caller closes the near end."""
    near, far = pty.openpty()
    tty.setraw(far)
    try:
        yield near, far
    finally:
        os.close(far)


async def read_line(fd: int) -> Any:
    """Read one message from a blocking descriptor."""

    def read() -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(fd, 1)
        return line

    async with asyncio.timeout(TIMEOUT_SECONDS):
        return msgspec.json.decode(await asyncio.to_thread(read))


async def ended_in_time(process: Process) -> int:
    async with asyncio.timeout(EXIT_SECONDS):
        return await process.wait()


# --- files, terminals, sockets --------------------------------------------------------------


async def test_stdin_may_be_a_file_and_stdout_another(
    parley_model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    asked = [initialize(0), tool(1, "conversationsList"), *(request(number, "ping") for number in range(2, 1000))]
    (folder / "in").write_bytes(b"".join(encode(message) + b"\n" for message in asked))
    with (folder / "in").open("rb") as stdin, (folder / "out").open("wb") as stdout:
        async with server(parley_model, stdin=stdin, stdout=stdout) as process:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                assert await process.wait() == 0

    said = [msgspec.json.decode(line) for line in (folder / "out").read_bytes().splitlines()]
    assert sorted(message["id"] for message in said if "result" in message) == list(range(1000))


async def test_a_file_appended_to_keeps_what_it_had(
    parley_model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("files") / "out"
    out.write_bytes(b"before\n")
    with out.open("ab") as stdout:
        async with server(parley_model, stdin=PIPE, stdout=stdout) as process:
            await process.communicate(encode(request(1, "ping")) + b"\n")

    assert out.read_bytes() == b'before\n{"jsonrpc":"2.0","id":1,"result":{}}\n'


async def test_nothing_on_stdin_ends_the_server_at_once(parley_model: ScriptedModel) -> None:
    async with server(parley_model, stdin=DEVNULL, stdout=PIPE) as process:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            said, _ = await process.communicate()

        assert (process.returncode, said) == (0, b"")


async def test_stdout_may_be_a_terminal(parley_model: ScriptedModel) -> None:
    with terminal() as (near, far):
        async with server(parley_model, stdin=PIPE, stdout=far) as process:
            assert process.stdin is not None
            process.stdin.write(encode(request(1, "ping")) + b"\n")
            assert await read_line(near) == result(1, {})

            process.stdin.close()
            assert await ended_in_time(process) == 0
        os.close(near)


async def test_stdin_and_stdout_may_be_one_terminal_that_goes_away(parley_model: ScriptedModel) -> None:
    near, far = pty.openpty()
    tty.setraw(far)
    async with server(parley_model, stdin=far, stdout=far) as process:
        os.close(far)
        os.write(near, encode(request(1, "ping")) + b"\n")
        assert await read_line(near) == result(1, {})

        os.close(near)

        assert await ended_in_time(process) == 0


async def test_on_a_terminal_one_line_says_what_is_waited_for(parley_model: ScriptedModel) -> None:
    with terminal() as (near, far):
        async with server(parley_model, stdin=far, stdout=DEVNULL, stderr=PIPE) as process:
            assert process.stderr is not None
            async with asyncio.timeout(TIMEOUT_SECONDS):
                line = await process.stderr.readline()
            os.close(near)
            assert await ended_in_time(process) == 0
            rest = await process.stderr.read()

    assert line == (
        b"parley mcp: waiting for an MCP client's JSON-RPC messages on stdin, one on each line; "
        b"Ctrl-D ends it, `parley demo` shows a conversation\n"
    )
    assert rest == b""


async def test_stdin_and_stdout_may_be_one_socket(parley_model: ScriptedModel) -> None:
    near, far = socket.socketpair()
    with near, far:
        async with server(parley_model, stdin=far.fileno(), stdout=far.fileno()) as process:
            far.close()
            reader, writer = await asyncio.open_connection(sock=near)
            asked = [request(number, "tools/list") for number in range(300)]  # more than the socket holds
            writer.write(b"".join(encode(message) + b"\n" for message in asked))
            writer.write_eof()

            async with asyncio.timeout(TIMEOUT_SECONDS):
                said = (await reader.read()).splitlines()

            assert [msgspec.json.decode(line)["id"] for line in said] == list(range(300))
            assert await ended_in_time(process) == 0
            writer.close()
            await writer.wait_closed()


async def test_other_processes_with_the_same_descriptors_stay_blocking(parley_model: ScriptedModel) -> None:
    near, far = socket.socketpair()
    read_end, write_end = os.pipe()
    with near, far:
        async with server(parley_model, stdin=read_end, stdout=far.fileno()) as process:
            os.write(write_end, encode(request(1, "ping")) + b"\n")
            assert await read_line(near.fileno()) == result(1, {})

            assert (os.get_blocking(read_end), os.get_blocking(far.fileno())) == (True, True)
            os.close(write_end)
            os.close(read_end)
            assert await ended_in_time(process) == 0


# --- output is not read -------------------------------------------------------------------


@pytest.mark.promises("lifecycle.end-of-stdin")
async def test_a_client_that_does_not_read_cannot_keep_the_server(parley_model: ScriptedModel) -> None:
    read_end, write_end = os.pipe()
    async with server(parley_model, stdin=PIPE, stdout=write_end) as process:
        os.close(write_end)
        assert process.stdin is not None
        process.stdin.write(b"".join(encode(request(number, "tools/list")) + b"\n" for number in range(400)))
        await process.stdin.drain()
        assert (await read_line(read_end))["id"] == 0

        process.stdin.close()

        assert await ended_in_time(process) == 0
    os.close(read_end)


@pytest.mark.parametrize("running", [False, True], ids=["idle", "in a turn"])
async def test_a_server_whose_stdout_was_closed_ends(parley_model: ScriptedModel, running: bool) -> None:
    parley_model.says("one", HOLD, "two")
    read_end, write_end = os.pipe()
    async with server(parley_model, stdin=PIPE, stdout=write_end) as process:
        os.close(write_end)
        assert process.stdin is not None
        if running:
            process.stdin.write(encode(tool(1, "codex", {"prompt": "go"})) + b"\n")
            await parley_model.wait_until_held()
        else:
            process.stdin.write(encode(request(1, "ping")) + b"\n")
            await read_line(read_end)

        os.close(read_end)
        if running:
            parley_model.release()
        else:
            process.stdin.write(encode(request(2, "ping")) + b"\n")

        assert await ended_in_time(process) == 0


async def test_an_unread_log_does_not_block_the_server(parley_model: ScriptedModel) -> None:
    read_end, write_end = os.pipe()
    async with server(
        parley_model, stdin=PIPE, stdout=PIPE, stderr=write_end, env={"PARLEY_LOG": "debug"}
    ) as process:
        os.close(write_end)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"this is not json\n" * 5000)
        process.stdin.write(encode(tool(1, "codex", {"prompt": "go"})) + b"\n")
        await parley_model.wait_for_requests()
        process.stdin.write(encode(request(2, "ping")) + b"\n")
        process.stdin.close()

        async with asyncio.timeout(TIMEOUT_SECONDS):
            said = [msgspec.json.decode(line) for line in (await process.stdout.read()).splitlines()]

        assert sorted(message["id"] for message in said if "result" in message) == [1, 2]
        assert await ended_in_time(process) == 0
    os.close(read_end)


async def test_a_log_without_a_reader_does_not_stop_the_server(parley_model: ScriptedModel) -> None:
    read_end, write_end = os.pipe()
    async with server(parley_model, stdin=PIPE, stdout=PIPE, stderr=write_end) as process:
        os.close(write_end)
        os.close(read_end)

        said, _ = await process.communicate(b"this is not json\n" + encode(request(2, "ping")) + b"\n")

        assert (process.returncode, msgspec.json.decode(said)) == (0, result(2, {}))


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"], ids=["stdin", "stdin and stderr"])
async def test_a_server_without_stdin_ends_at_once(parley_model: ScriptedModel, closed: str) -> None:
    async with server(
        parley_model, stdin=DEVNULL, stdout=PIPE, through=("sh", "-c", f'exec "$@" {closed}', "sh")
    ) as process:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            said, _ = await process.communicate()

        assert (process.returncode, said) == (0, b"")

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.system.commands import PYTHON, TIMEOUT_SECONDS, Ran, open_descriptors, out_of_time, ran, start_of
from parley.errors import CommandNotStarted
from parley.tools.commands.executor import Executor
from parley.wire.events import OutputStream


def ignored(stream: OutputStream, data: bytes) -> None:
    pass


# --- how commands end --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("true", Ran(exit_code=0)),
        ("exit 3", Ran(exit_code=3)),
        ("exit 255", Ran(exit_code=255)),
        ("echo out; echo err >&2; exit 1", Ran(exit_code=1, stdout=b"out\n", stderr=b"err\n")),
        ("printf '\\377\\000\\033[1m'; exit 0", Ran(exit_code=0, stdout=b"\xff\x00\x1b[1m")),
        ("kill -TERM $$", Ran(signal=signal.SIGTERM)),
        ("kill -KILL $$", Ran(signal=signal.SIGKILL)),
        ("echo out; kill -SEGV $$", Ran(signal=signal.SIGSEGV, stdout=b"out\n")),
    ],
)
async def test_a_command_ends_as_it_says(executor: Executor, script: str, expected: Ran) -> None:
    assert await ran(executor, "sh", "-c", script) == expected


async def test_a_command_that_takes_too_long_is_killed_and_what_it_said_is_kept(executor: Executor) -> None:
    result = await out_of_time(executor, "sh", "-c", "trap '' TERM; echo out; sleep 1000", says=b"out\n")

    assert result == Ran(stdout=b"out\n", timed_out=True)


@pytest.mark.parametrize("timeout_seconds", [0, -1.0])
async def test_no_time_at_all_is_a_timeout(executor: Executor, timeout_seconds: float) -> None:
    assert await ran(executor, "sleep", "1000", timeout_seconds=timeout_seconds) == Ran(timed_out=True)


async def test_a_command_has_as_long_as_it_likes_when_there_is_no_end_to_it(executor: Executor) -> None:
    assert await ran(executor, "true", timeout_seconds=float("inf")) == Ran(exit_code=0)


async def test_the_time_is_that_of_the_command(executor: Executor) -> None:
    await ran(executor, "true")
    ended = await executor.start(start_of("sleep", "0.2"), output=ignored)

    assert 0.19 < ended.seconds < TIMEOUT_SECONDS


# --- the environment of commands ---------------------------------------------------------------


async def test_a_command_runs_in_its_directory_with_its_own_environment_alone(
    executor: Executor, tmp_path: Path
) -> None:
    place = await ran(executor, "pwd", cwd=str(tmp_path))
    environment = await ran(executor, "/usr/bin/env", env={"A": "1", "B": "x=y", "C": ""})

    assert place == Ran(exit_code=0, stdout=f"{tmp_path}\n".encode())
    assert environment == Ran(exit_code=0, stdout=b"A=1\nB=x=y\nC=\n")


async def test_a_command_finds_an_empty_stdin_and_no_other_descriptor(executor: Executor) -> None:
    script = "import os, sys; print(sorted(map(int, os.listdir('/proc/self/fd'))), sys.stdin.read() == '')"

    result = await ran(executor, *PYTHON, script)

    assert result == Ran(exit_code=0, stdout=b"[0, 1, 2, 3] True\n")  # 3 is the descriptor of the listed directory


async def test_a_command_has_a_session_and_a_group_of_its_own_and_all_signals_as_they_are_by_default(
    executor: Executor,
) -> None:
    script = """
import os, resource, signal
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(os.getsid(0) == os.getppid(), os.getpgrp() == os.getpid(), resource.getrlimit(resource.RLIMIT_CORE))
print(*(hex(int(status[name], 16) % 2**31) for name in ("SigIgn", "SigBlk")))
"""
    as_it_was = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        result = await ran(executor, *PYTHON, script)
    finally:
        signal.signal(signal.SIGUSR1, as_it_was)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})

    by_python = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert result == Ran(exit_code=0, stdout=f"True True (0, 0)\n{by_python:#x} 0x0\n".encode())


async def test_a_broken_pipe_ends_a_command_quietly(executor: Executor) -> None:
    assert await ran(executor, "bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}") == Ran(
        exit_code=0, stdout=b"y\n141\n"
    )


async def test_a_command_goes_first_when_memory_runs_out(executor: Executor) -> None:
    assert await ran(executor, "cat", "/proc/self/oom_score_adj") == Ran(exit_code=0, stdout=b"500\n")


async def test_a_program_is_looked_for_in_the_path_of_the_command(executor: Executor, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory, mode in ((first, 0o644), (second, 0o755)):
        directory.mkdir()
        (directory / "greet").write_text("#!/bin/sh\necho $0\n")
        (directory / "greet").chmod(mode)
    path = f"{tmp_path}/none:{first}:{second}"

    found = await ran(executor, "greet", env={"PATH": path})
    here = await ran(executor, "./greet", cwd=str(second), env={})
    by_default = await ran(executor, "true", env={})

    assert found == Ran(exit_code=0, stdout=f"{second}/greet\n".encode())
    assert here == Ran(exit_code=0, stdout=b"./greet\n")
    assert by_default == Ran(exit_code=0)


async def test_a_command_of_a_megabyte_arrives_whole(executor: Executor) -> None:
    words = [f"{number:0100}" for number in range(10_000)]

    result = await ran(executor, *PYTHON, "import sys; print(len(sys.argv), *sys.argv[1:])", *words)

    assert result == Ran(exit_code=0, stdout=f"10001 {' '.join(words)}\n".encode())


async def test_an_environment_of_thousands_of_variables_arrives_whole(executor: Executor) -> None:
    env = {f"NAME_{number}": f"value {number}" for number in range(4000)}

    result = await ran(executor, "/usr/bin/env", env=env)

    assert result == Ran(exit_code=0, stdout="".join(f"{name}={env[name]}\n" for name in env).encode())


async def test_words_may_be_anything_but_nul(executor: Executor) -> None:
    words = ("", " ", "\n", "*", "é\U0001f600", "\udcff", "$(id)", "-n")

    result = await ran(executor, "printf", "<%s>", *words)

    assert result == Ran(exit_code=0, stdout=os.fsencode("".join(f"<{word}>" for word in words)))


# --- commands that cannot be started -----------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "cwd", "why"),
    [
        ((), "/", "command args are empty"),
        (("no-such-program",), "/", "No such file or directory (os error 2)"),
        (("/no/such/program",), "/", "No such file or directory (os error 2)"),
        (("",), "/", "No such file or directory (os error 2)"),
        (("true",), "/no/such/directory", "No such file or directory (os error 2)"),
        (("true",), "/etc/passwd", "Not a directory (os error 20)"),
        (("/etc/passwd/x",), "/", "Not a directory (os error 20)"),
        (("/etc/passwd",), "/", "Permission denied (os error 13)"),
        (("/etc",), "/", "Permission denied (os error 13)"),
        (("true", "x" * 200_000), "/", "Argument list too long (os error 7)"),
        (("true", "a\0b"), "/", "a word of the command contains a NUL character"),
        (("true",), "/\0", "the working directory contains a NUL character"),
        (("true", "\ud800"), "/", "a word of the command contains a character that cannot be encoded"),
    ],
)
async def test_a_command_that_cannot_be_started_says_why(
    executor: Executor, argv: tuple[str, ...], cwd: str, why: str
) -> None:
    with pytest.raises(CommandNotStarted) as caught:
        await ran(executor, *argv, cwd=cwd)

    assert caught.value.detail == why
    assert await ran(executor, "true") == Ran(exit_code=0)


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"A": "\0"}, "the variable 'A' contains a NUL character"),
        ({"A=B": "c"}, "'A=B' cannot be the name of a variable"),
        ({"": "c"}, "'' cannot be the name of a variable"),
    ],
)
async def test_an_invalid_variable_name_is_refused(executor: Executor, env: dict[str, str], why: str) -> None:
    with pytest.raises(CommandNotStarted) as caught:
        await ran(executor, "/bin/true", env=env)

    assert caught.value.detail == why


@pytest.mark.parametrize(
    ("python", "why"),
    [
        (
            "/no/such/python",
            "the process that starts commands cannot be started: No such file or directory (os error 2)",
        ),
        ("/bin/false", "the process that starts commands has ended"),
    ],
)
async def test_a_fork_server_that_cannot_start_is_a_command_that_cannot(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, python: str, why: str
) -> None:
    before = open_descriptors()
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(CommandNotStarted) as caught:
        await ran(executor, "true")
    after = open_descriptors()
    monkeypatch.undo()

    assert (caught.value.detail, after) == (why, before)
    assert await ran(executor, "true") == Ran(exit_code=0)


async def test_without_descriptors_a_command_cannot_be_started_and_none_is_lost(executor: Executor) -> None:
    await ran(executor, "true")
    before = open_descriptors()
    os.close(lowest := os.dup(0))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = []
    for more in range(6):
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, limits[1]))
        try:
            await ran(executor, "true")
        except CommandNotStarted as error:
            said.append(error.detail)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert said == [
        "Too many open files (os error 24): "
        f"the server can have at most {lowest + more} files and connections open (RLIMIT_NOFILE, `ulimit -n`)"
        for more in range(6)
    ]
    assert open_descriptors() == before


# --- output ------------------------------------------------------------------------------


async def test_output_comes_whole_and_in_order(executor: Executor) -> None:
    result = await ran(executor, "sh", "-c", "seq 200000; seq 100000 >&2")

    assert result == Ran(
        exit_code=0,
        stdout="".join(f"{number + 1}\n" for number in range(200_000)).encode(),
        stderr="".join(f"{number + 1}\n" for number in range(100_000)).encode(),
    )


async def test_output_comes_while_the_command_runs(executor: Executor, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    said: asyncio.Queue[tuple[OutputStream, bytes]] = asyncio.Queue()
    script = start_of("sh", "-c", f"echo ready; read line < {tmp_path}/go; echo $line >&2")
    task = asyncio.create_task(executor.start(script, output=lambda stream, data: said.put_nowait((stream, data))))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        first = await said.get()
        await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
        ended = await task

    assert (first, said.get_nowait(), ended.exit_code) == (("stdout", b"ready\n"), ("stderr", b"on\n"), 0)


async def test_a_failing_listener_ends_the_command(executor: Executor) -> None:
    def fail(stream: OutputStream, data: bytes) -> None:
        raise LookupError(data)

    with pytest.raises(LookupError, match="ready"):
        await executor.start(start_of("sh", "-c", "echo ready; sleep 1000"), output=fail)

    assert await ran(executor, "true") == Ran(exit_code=0)


# --- many commands -----------------------------------------------------------------------------


@pytest.mark.long
async def test_hundreds_of_commands_run_side_by_side(executor: Executor) -> None:
    results = await asyncio.gather(*(ran(executor, "sh", "-c", f"echo {n}; exit {n % 256}") for n in range(300)))

    assert results == [Ran(exit_code=n % 256, stdout=f"{n}\n".encode()) for n in range(300)]


async def test_no_descriptor_is_left_of_any_command(executor: Executor) -> None:
    async def not_started() -> None:
        with pytest.raises(CommandNotStarted):
            await ran(executor, "no-such-program")

    kinds: list[Callable[[], object]] = [
        lambda: ran(executor, "true"),
        lambda: ran(executor, "sh", "-c", "sleep 1000 & echo"),
        lambda: ran(executor, "sleep", "1000", timeout_seconds=0.001),
        not_started,
    ]
    await ran(executor, "true")
    before = open_descriptors()
    for number in range(80):
        await kinds[number % len(kinds)]()  # type: ignore[misc]  # each is a coroutine

    assert open_descriptors() == before


async def test_closing_ends_what_runs_and_refuses_the_rest(executor: Executor) -> None:
    before = open_descriptors()
    started = asyncio.Event()
    task = asyncio.create_task(
        executor.start(start_of("sh", "-c", "echo ready; sleep 1000"), output=lambda stream, data: started.set())
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await started.wait()
        await executor.close()
        ended = await task
    with pytest.raises(CommandNotStarted, match="Server is shutting down"):
        await ran(executor, "true")
    await executor.close()

    assert (ended.exit_code, ended.signal, ended.timed_out) == (None, signal.SIGKILL, False)
    assert open_descriptors() == before


async def test_closing_what_never_ran_is_nothing() -> None:
    before = open_descriptors()
    await Executor().close()

    assert open_descriptors() == before

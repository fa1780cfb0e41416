"""A client that sends requests and reads no response."""

from __future__ import annotations

import asyncio
import os
import selectors
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
import pytest

from kit.system.commands import TIMEOUT_SECONDS, resident_bytes
from parley.testing import ScriptedModel, check_message
from parley.testing.home import Home

REQUEST = b'{"jsonrpc":"2.0","id":%d,"method":"tools/list"}\n'
ANSWERED_AT_MOST = 64 * 1024 * 1024
"""A total size of answers, in bytes, that far exceeds the size at which the server stops reading requests."""
KEPT_AT_LEAST = 16 * 1024 * 1024
"""The total size of unread answers, in bytes, up to which the server must continue to read and answer requests."""
QUIET_SECONDS = 1.5
"""The time in seconds after which a server that has not read a request counts as no longer reading."""


@pytest.fixture
def home(parley_model: ScriptedModel) -> Iterator[Home]:
    home = Home(parley_model)
    home.open()
    yield home
    home.close()


@contextmanager
def server(home: Home, stdin: IO[bytes] | int) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start a server; return it and its stdout."""
    with subprocess.Popen(
        home.command, stdin=stdin, stdout=subprocess.PIPE, env=home.environ, cwd=home.work
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout


@contextmanager
def asked_once(home: Home) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes], bytes]]:
    """Start a server and send one request; return it, its stdin and stdout, and the answer."""
    with server(home, subprocess.PIPE) as (process, stdout):
        assert process.stdin is not None
        process.stdin.write(REQUEST % 0)
        process.stdin.flush()
        yield process, process.stdin, stdout, stdout.readline()


@pytest.mark.promises("framing.slow-client")
async def test_after_16_mb_of_unread_answers_a_client_is_not_read_from_until_it_reads(home: Home) -> None:
    asked, size, unread, ids, rest = await asyncio.to_thread(_ask_without_reading, home)

    assert asked < ANSWERED_AT_MOST // size, "the server read on without end"
    assert asked * size > KEPT_AT_LEAST
    assert unread < 150 * 1024 * 1024
    assert sorted(ids) == list(range(1, asked + 1))
    assert rest == b""


def _ask_without_reading(home: Home) -> tuple[int, int, int, list[int], bytes]:
    """Send requests without reading.

    Return the number of accepted requests, the length of an answer, the server's memory, and all answers.
    """
    with asked_once(home) as (process, stdin, stdout, first):
        check_message(first)
        size = len(first)
        asked = _ask_until_nothing_is_taken(stdin.fileno(), size)
        unread = resident_bytes(process.pid)
        answers = [stdout.readline() for _ in range(asked)]
        assert {_result(answer) for answer in answers} == {_result(first)}
        ids = [msgspec.json.decode(answer)["id"] for answer in answers]
        stdin.close()
        return asked, size, unread, ids, stdout.read()


def _ask_until_nothing_is_taken(stdin: int, size: int) -> int:
    """Write requests with answers of this size until the pipe stays full.

    Return the number of requests that were written completely.
    """
    os.set_blocking(stdin, False)
    asked = 0
    with selectors.DefaultSelector() as selector:
        selector.register(stdin, selectors.EVENT_WRITE)
        while asked < ANSWERED_AT_MOST // size:
            if not selector.select(QUIET_SECONDS if asked * size > KEPT_AT_LEAST else TIMEOUT_SECONDS):
                break
            request = REQUEST % (asked + 1)
            try:
                os.write(stdin, request)  # shorter than PIPE_BUF, so the write is atomic
            except BlockingIOError:
                continue
            asked += 1
    os.set_blocking(stdin, True)
    return asked


def _result(answer: bytes) -> bytes:
    """Return an answer without its id."""
    return answer.partition(b'"result"')[2]


@pytest.mark.promises("framing.slow-client")
@pytest.mark.long
async def test_a_file_of_requests_is_read_no_faster_than_its_answers_are(home: Home, tmp_path: Path) -> None:
    count = 30_000
    requests = tmp_path / "requests"
    requests.write_bytes(b"".join(REQUEST % number for number in range(count)))
    most, answered = await asyncio.to_thread(_read_late, home, requests)

    assert answered == count
    assert most < 150 * 1024 * 1024


def _read_late(home: Home, requests: Path) -> tuple[int, int]:
    """Return the peak memory of a server whose input is a file, and the number of its answers."""
    with requests.open("rb") as stdin, server(home, stdin) as (process, stdout):
        first = stdout.readline()
        check_message(first)
        most = resident_bytes(process.pid)
        answered = 1
        for answer in stdout:
            assert _result(answer) == _result(first)
            answered += 1
            # the server has not ended: a thousand more answers follow, which do not fit into the pipe
            if answered % 1000 == 1:
                most = max(most, resident_bytes(process.pid))
    return most, answered


@pytest.mark.waits
@pytest.mark.promises("lifecycle.end-of-stdin")
async def test_a_client_that_leaves_without_reading_is_noticed_all_the_same(home: Home) -> None:
    assert await asyncio.to_thread(_leave_without_reading, home) == 0


def _leave_without_reading(home: Home) -> int:
    """Return the exit code of a server whose client sends too many requests and closes its side."""
    with asked_once(home) as (process, stdin, _, first):
        _ask_until_nothing_is_taken(stdin.fileno(), len(first))
        stdin.close()
        return _exit_code(process)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(timeout=TIMEOUT_SECONDS)
    finally:
        process.kill()


@pytest.mark.promises("lifecycle.sigterm")
async def test_a_server_that_reads_a_file_and_whose_output_is_not_read_ends_on_sigterm(
    home: Home, tmp_path: Path
) -> None:
    requests = tmp_path / "requests"
    requests.write_bytes(b"".join(REQUEST % number for number in range(30_000)))

    assert await asyncio.to_thread(_terminate_unread, home, requests) == 0


def _terminate_unread(home: Home, requests: Path) -> int:
    with requests.open("rb") as stdin, server(home, stdin) as (process, stdout):
        stdout.readline()
        process.terminate()
        return _exit_code(process)

"""Sockets in a directory: access, long paths, and leftover files."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from parley.transports.descriptors import STOP_READING_BYTES
from parley.transports.unix import (
    BACKLOG,
    Connection,
    Listener,
    connect,
    names_in,
    prepare_directory,
    unique_name,
)
from parley.wire.framing import Overlong

NOBODY = 65534

Frame = bytes | Overlong

NAME = "1-0123456789abcdef.sock"
"""The name of a socket that belongs to no process."""


@pytest.fixture(autouse=True)
def _no_descriptor_is_left() -> Iterator[None]:
    before = _descriptors()
    yield
    assert _descriptors() <= before


@pytest.fixture
def directory() -> Iterator[str]:
    """Return a directory with a short path that does not exist yet.

    The path is short because tests create sockets in it.
    """
    with tempfile.TemporaryDirectory() as parent:
        yield os.path.join(parent, "run")


def listen(directory: str, *, on_connection: Callable[[Connection], None]) -> Listener:
    prepare_directory(directory)
    return Listener(directory, unique_name(), on_channel=lambda channel: on_connection(Connection(channel)))


async def test_frames_go_both_ways(directory: str) -> None:
    async with Pair(directory) as pair:
        pair.here.outbox.send(b"question")
        assert await pair.heard_there() == b"question"

        pair.there.outbox.send(b"answer")
        assert await pair.heard_here() == b"answer"


async def test_two_that_say_much_at_once_do_not_wait_for_each_other(directory: str) -> None:
    much = b"x" * (STOP_READING_BYTES + 2**20)
    async with Pair(directory) as pair:
        pair.here.outbox.send(much)
        pair.there.outbox.send(much)

        assert await pair.heard_here() == await pair.heard_there() == much


async def test_a_short_name_in_a_directory_of_any_length_will_do() -> None:
    """The temporary name of a socket is longer than its name."""
    with tempfile.TemporaryDirectory() as place:
        for length in range(80, 110):
            directory = os.path.join(place, "x" * (length - len(place) - 1))
            os.mkdir(directory)
            Listener(directory, "s", on_channel=lambda channel: channel.close()).close()
            os.rmdir(directory)


async def test_a_path_of_any_length_will_do(tmp_path: Path) -> None:
    deep = tmp_path / ("a" * 120) / ("b" * 120)
    deep.mkdir(parents=True)

    async with Pair(str(deep / "run")) as pair:
        pair.here.outbox.send(b"from afar")
        assert await pair.heard_there() == b"from afar"

    assert os.listdir(deep / "run") == []


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o177])
async def test_no_other_user_may_enter_whatever_the_umask_is(directory: str, umask: int) -> None:
    before = os.umask(umask)
    try:
        listener = listen(directory, on_connection=Connection.close)
    finally:
        os.umask(before)

    assert (_mode(directory), _mode(directory, listener.name)) == (0o700, 0o600)
    listener.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the sockets of all processes")
async def test_a_process_that_cannot_read_the_directory_does_not_learn_the_name(directory: str) -> None:
    listener = listen(directory, on_connection=Connection.close)

    listed = await asyncio.to_thread(Path("/proc/net/unix").read_text)

    assert ".new" in listed
    assert listener.name not in listed
    listener.close()


async def test_a_directory_that_is_open_to_others_is_closed_to_them(directory: str) -> None:
    os.mkdir(directory)
    os.chmod(directory, 0o777)

    listen(directory, on_connection=Connection.close).close()

    assert _mode(directory) == 0o700


async def test_a_directory_that_is_a_link_is_refused(directory: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    os.symlink(tmp_path / "elsewhere", directory)

    with pytest.raises(OSError):
        listen(directory, on_connection=Connection.close)

    assert _mode(str(tmp_path / "elsewhere")) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
async def test_a_directory_of_another_user_is_refused(directory: str) -> None:
    os.mkdir(directory)
    os.chown(directory, NOBODY, NOBODY)

    with pytest.raises(PermissionError):
        listen(directory, on_connection=Connection.close)

    assert os.listdir(directory) == []


async def test_the_name_of_a_dead_process_is_removed_by_the_process_that_finds_it(directory: str) -> None:
    dead = _orphaned_socket(directory)

    assert connect(directory, dead) is None
    assert os.listdir(directory) == []


@pytest.mark.parametrize("name", ["", f"../{NAME}", NAME, f"{NAME}\n", "x.sock"])
async def test_no_process_is_reached_by_a_name_that_is_missing_or_invalid(directory: str, name: str) -> None:
    os.mkdir(directory)
    outside = os.path.join(directory, "..", NAME)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(outside)
        other.listen()

        assert connect(directory, name) is None

    assert sorted(os.listdir(os.path.dirname(directory))) == [NAME, "run"]


async def test_a_process_that_has_just_begun_to_listen_is_not_taken_for_dead(directory: str) -> None:
    done = threading.Event()

    async def look() -> None:
        while not done.is_set():
            for name in names_in(directory):
                try:
                    found = connect(directory, name)
                except BlockingIOError:
                    continue  # the backlog of the listener is full
                if found is not None:
                    found.close()

    searching = threading.Thread(target=lambda: asyncio.run(look()))
    searching.start()
    there = []
    for _ in range(300):
        listener = listen(directory, on_connection=Connection.close)
        there.append(names_in(directory) == [listener.name])
        listener.close()
    done.set()
    searching.join()

    assert all(there)


async def test_a_name_that_was_never_finished_goes_when_it_is_old(directory: str) -> None:
    os.mkdir(directory)
    for name in ("old.sock.new", "young.sock.new"):
        with socket.socket(socket.AF_UNIX) as unfinished:
            unfinished.bind(os.path.join(directory, name))
    os.utime(os.path.join(directory, "old.sock.new"), (0, 0))

    listen(directory, on_connection=Connection.close).close()

    assert os.listdir(directory) == ["young.sock.new"]


async def test_connections_beyond_the_backlog_fail_as_busy(directory: str) -> None:
    let_in = asyncio.Event()

    def let(connection: Connection) -> None:
        connection.close()
        let_in.set()

    listener = listen(directory, on_connection=let)
    waiting: list[Connection] = []

    def come(times: int) -> None:
        for _ in range(times):
            connection = connect(directory, listener.name)
            assert connection is not None
            waiting.append(connection)

    with pytest.raises(BlockingIOError):
        come(2 * BACKLOG)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await let_in.wait()
    come(1)

    for connection in waiting:
        connection.close()
    listener.close()


async def test_refused_connections_do_not_fill_the_log(
    directory: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("parley.transports.unix.is_confined", lambda channel: True)
    listener = listen(directory, on_connection=lambda connection: None)
    for _ in range(5):
        refused = connect(directory, listener.name)
        assert refused is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await refused.read(lambda frame: None)
        refused.close()
    listener.close()

    assert len(caplog.records) == 1


async def test_the_end_of_one_side_is_the_end_of_the_other(directory: str) -> None:
    async with Pair(directory) as pair:
        pair.here.outbox.send(b"farewell")
        await pair.here.outbox.flush()
        pair.here.close()

        assert await pair.heard_there() == b"farewell"
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await pair.reading_there


class Pair:
    """A listener and both ends of one connection to it."""

    here: Connection
    there: Connection

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._at_here: asyncio.Queue[Frame] = asyncio.Queue()
        self._at_there: asyncio.Queue[Frame] = asyncio.Queue()

    async def __aenter__(self) -> Pair:
        came: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._listener = listen(self._directory, on_connection=came.set_result)
        here = connect(self._directory, self._listener.name)
        assert here is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            self.here, self.there = here, await came
        self.reading_here = asyncio.ensure_future(self.here.read(self._at_here.put_nowait))
        self.reading_there = asyncio.ensure_future(self.there.read(self._at_there.put_nowait))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.here.close()
        self.there.close()
        self._listener.close()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await asyncio.gather(self.reading_here, self.reading_there)

    async def heard_here(self) -> Frame:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._at_here.get()

    async def heard_there(self) -> Frame:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._at_there.get()


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()


def _mode(*path: str) -> int:
    return stat.S_IMODE(os.lstat(os.path.join(*path)).st_mode)


def _orphaned_socket(directory: str) -> str:
    """Create a socket name without a listening process."""
    os.mkdir(directory)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.path.join(directory, NAME))
        dead.listen()
    return NAME

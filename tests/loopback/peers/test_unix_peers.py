"""The processes of one home: how they find each other, and the effects that one process can have on the others."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from kit.servers.peers import TIMEOUT_SECONDS, LinkRecorder, StartPeer, saying
from parley.errors import StoreFailed
from parley.peers import UnixPeers
from parley.ports.peers import Peers
from parley.transports.unix import BACKLOG, Connection

ANSWER = '{"jsonrpc":"2.0","id":$id,"result":{}}'
NOBODY = 65534

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


async def test_no_file_is_created_before_the_process_listens(peers: UnixPeers, home: Path) -> None:
    peers.notify_all("changed", b"{}")
    link = await peers.connect(
        "1-0123456789abcdef.sock", on_notification=lambda method, params: None, on_lost=lambda: None
    )

    assert (link, peers.address, os.listdir(home)) == (None, "", [])


async def test_a_listening_process_has_one_socket_which_it_removes_at_the_end(peers: UnixPeers, home: Path) -> None:
    await peers.listen()
    await peers.listen()

    assert os.listdir(home / "run") == [peers.address]
    assert stat.S_IMODE(os.lstat(home / "run" / peers.address).st_mode) == 0o600
    await peers.close()
    assert (peers.address, os.listdir(home / "run")) == ("", [])


async def test_a_home_without_room_for_a_socket_is_a_failure_that_has_a_name(home: Path) -> None:
    (home / "run").write_bytes(b"")
    peers: Peers = UnixPeers(str(home), _ignore)

    with pytest.raises(StoreFailed):
        await peers.listen()
    peers.notify_all("changed", b"{}")
    await peers.close()


async def test_all_other_processes_are_notified_in_order(peers: UnixPeers, start: StartPeer) -> None:
    await peers.listen()
    others = [await start(), await start()]

    for number in range(3):
        peers.notify_all("changed", b'{"n":%d}' % number)
    received = [[(await other.received())["params"] for _ in range(3)] for other in others]
    others[0].tells("changed", '{"n":3}')

    assert received == [[{"n": 0}, {"n": 1}, {"n": 2}]] * 2
    assert (await others[1].received())["params"] == {"n": 3}


async def test_another_process_is_known_while_it_lives(peers: UnixPeers, start: StartPeer) -> None:
    assert not peers.has_others()
    await peers.listen()
    assert not peers.has_others()  # a process does not count itself

    other = await start()
    assert peers.has_others()
    await other.killed()
    assert not peers.has_others()


async def test_telling_more_takes_no_second_connection(home: Path) -> None:
    listening, telling = Register(home), UnixPeers(str(home), _ignore)
    await listening.peers.listen()

    for number in range(3):
        telling.notify_all("changed", b"%d" % number)
        assert await listening.next() == (1, b'{"jsonrpc":"2.0","method":"changed","params":%d}' % number)

    await asyncio.gather(listening.peers.close(), telling.close())


async def test_a_connection_that_was_made_to_tell_is_let_go_when_there_is_no_news(home: Path) -> None:
    listening, telling = Register(home), UnixPeers(str(home), _ignore, keep_seconds=0)
    await listening.peers.listen()

    telling.notify_all("changed", b"{}")

    assert await listening.next() == (1, b'{"jsonrpc":"2.0","method":"changed","params":{}}')
    assert await listening.next() == (1, "let go")
    await asyncio.gather(listening.peers.close(), telling.close())


async def test_notifications_just_before_the_end_arrive(peers: UnixPeers, start: StartPeer) -> None:
    other = await start()

    peers.notify_all("changed", b'{"n":1}')
    await peers.close()
    peers.notify_all("changed", b'{"n":2}')

    assert (await other.received())["params"] == {"n": 1}


async def test_the_socket_of_a_killed_process_is_removed_and_the_others_are_notified(
    peers: UnixPeers, start: StartPeer, home: Path
) -> None:
    killed, other = await start(), await start()
    peers.notify_all("changed", b'{"n":1}')
    await other.received()
    await killed.killed()

    peers.notify_all("changed", b'{"n":2}')

    assert (await other.received())["params"] == {"n": 2}
    recorder = LinkRecorder()
    assert (
        await peers.connect(killed.address, on_notification=recorder.on_notification, on_lost=recorder.on_lost)
        is None
    )
    assert os.listdir(home / "run") == [other.address]
    assert recorder.nothing_more()


async def test_a_stopped_process_blocks_no_other(peers: UnixPeers, start: StartPeer) -> None:
    stopped, other = await start(), await start()
    stopped.stopped()

    for number in range(10):
        # more than the socket buffer holds
        peers.notify_all("changed", b'{"n":%d,"much":"%b"}' % (number, b"x" * 2**16))
        assert (await other.received())["params"]["n"] == number


async def test_little_is_buffered_for_a_client_that_does_not_read(home: Path) -> None:
    reads, received = asyncio.Event(), 0

    def on_notification(frame: object) -> None:
        nonlocal received
        received += 1

    async def serve(connection: Connection) -> None:
        await reads.wait()
        await connection.read(on_notification)

    listening, telling = UnixPeers(str(home), serve), UnixPeers(str(home), _ignore)
    await listening.listen()
    for _ in range(50):
        telling.notify_all("changed", b'{"much":"%b"}' % (b"x" * 2**16))
        await asyncio.sleep(0)
    reads.set()
    await telling.close()
    await listening.close()

    assert 0 < received < 50


async def test_a_connection_is_accepted_when_the_backlog_has_room(home: Path) -> None:
    busy, peers = (UnixPeers(str(home), _ignore) for _ in range(2))
    await busy.listen()
    waiting = [_send_raw(home / "run" / busy.address) for _ in range(BACKLOG + 1)]

    async with asyncio.timeout(TIMEOUT_SECONDS):
        link = await peers.connect(busy.address, on_notification=lambda method, params: None, on_lost=lambda: None)

    assert link is not None
    for channel in waiting:
        channel.close()
    await asyncio.gather(busy.close(), peers.close())


@pytest.mark.long
async def test_a_process_that_accepts_no_connection_is_not_waited_for_forever(peers: UnixPeers, home: Path) -> None:
    address = "1-0123456789abcdef.sock"
    os.mkdir(home / "run")
    hanging = socket.socket(socket.AF_UNIX)
    hanging.bind(str(home / "run" / address))
    hanging.listen(0)
    waiting = _send_raw(home / "run" / address)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert (
            await peers.connect(address, on_notification=lambda method, params: None, on_lost=lambda: None) is None
        )

    waiting.close()
    hanging.close()


async def test_a_flood_of_connections_delays_only_its_source(
    peers: UnixPeers, start: StartPeer, home: Path
) -> None:
    recorder, peer = LinkRecorder(), await start(most_files=40)
    link = await recorder.on(peers, peer.address)

    flood = [_send_raw(home / "run" / peer.address) for _ in range(BACKLOG)]
    link.request("ask", saying(ANSWER), answered=recorder.answered)
    assert await recorder.next() == ("answered", 1)
    for channel in flood:
        channel.close()
    late = await recorder.on(peers, peer.address)
    late.request("ask", saying(ANSWER), answered=recorder.answered)

    assert await recorder.next() == ("answered", 1)


async def test_garbage_costs_the_connection_that_it_came_on(peers: UnixPeers, start: StartPeer, home: Path) -> None:
    recorder, peer = LinkRecorder(), await start()
    link = await recorder.on(peers, peer.address)
    garbage = _send_raw(home / "run" / peer.address)

    garbage.setblocking(False)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await asyncio.get_running_loop().sock_sendall(garbage, b"\xff\x00{[\n" * 1000)
        assert await asyncio.get_running_loop().sock_recv(garbage, 1) == b""
    garbage.close()
    link.request("ask", saying(ANSWER), answered=recorder.answered)

    assert await recorder.next() == ("answered", 1)


async def test_closing_waits_for_no_process_and_leaves_nothing(home: Path, start: StartPeer) -> None:
    """There are connections in both directions, one with a handler that does not end by itself."""
    served = asyncio.Event()

    async def for_ever(connection: Connection) -> None:
        served.set()
        await asyncio.Event().wait()

    peers = UnixPeers(str(home), for_ever)
    await peers.listen()
    recorder, peer = LinkRecorder(), await start()
    await recorder.on(peers, peer.address)
    peer.tells("changed", "{}")
    peers.notify_all("changed", b"{}")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await served.wait()
        await peers.close()

    assert os.listdir(home / "run") == [peer.address]
    assert recorder.nothing_more()


async def test_a_handler_that_raises_ends_its_connection(home: Path) -> None:
    async def fail(connection: Connection) -> None:
        raise RuntimeError("on purpose")

    broken, recorder = UnixPeers(str(home), fail), LinkRecorder()
    await broken.listen()
    await recorder.on(broken, broken.address)

    assert await recorder.next() == "gone"
    await broken.close()


@AS_ROOT
async def test_a_process_of_another_user_is_not_let_in(home: Path) -> None:
    came: list[Connection] = []

    async def serve(connection: Connection) -> None:
        came.append(connection)

    peers = UnixPeers(str(home), serve)
    await peers.listen()
    os.chmod(home / "run", 0o711)
    os.chmod(home / "run" / peers.address, 0o666)

    stranger = await _stranger(home / "run", f"s.connect('{peers.address}'); print(s.recv(1))")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        said, _ = await stranger.communicate()

    assert (said, came) == (b"b''\n", [])
    await peers.close()


@AS_ROOT
async def test_a_socket_of_another_user_is_not_used(peers: UnixPeers, home: Path) -> None:
    address = "1-0123456789abcdef.sock"
    os.mkdir(home / "run")
    os.chmod(home / "run", 0o777)
    stranger = await _stranger(home / "run", f"s.bind('{address}'); s.listen(); print(flush=True); input()")
    assert stranger.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await stranger.stdout.readline()

        assert (
            await peers.connect(address, on_notification=lambda method, params: None, on_lost=lambda: None) is None
        )

        await stranger.communicate(b"\n")


class Register:
    """A process of the home that records all frames with the number of their connection."""

    def __init__(self, home: Path) -> None:
        self.peers = UnixPeers(str(home), self._serve)
        self._came = 0
        self._lines: asyncio.Queue[tuple[int, object]] = asyncio.Queue()

    async def next(self) -> tuple[int, object]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._lines.get()

    async def _serve(self, connection: Connection) -> None:
        self._came += 1
        number = self._came
        await connection.read(lambda frame: self._lines.put_nowait((number, frame)))
        self._lines.put_nowait((number, "let go"))


async def _ignore(connection: Connection) -> None:
    await connection.read(lambda frame: None)


def _send_raw(path: Path) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(str(path))
    return channel


async def _stranger(directory: Path, program: str) -> asyncio.subprocess.Process:
    """Run a program as another user in the directory; `s` is a socket."""
    change = f"os.chdir({str(directory)!r}); os.setgid({NOBODY}); os.setuid({NOBODY})"
    words = f"import os, socket; {change}; s = socket.socket(socket.AF_UNIX); {program}"
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", words, stdin=pipe, stdout=pipe)

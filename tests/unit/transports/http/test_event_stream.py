"""A stream of server-sent events: order, backpressure, comments, and its end."""

from __future__ import annotations

import asyncio

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.transports.http.event_stream import HIGH_WATER_BYTES, MAX_UNREAD_BYTES, EventStream

OPEN = b":\n\n"


class Connection:
    """A connection that accepts bytes while it is open."""

    def __init__(self) -> None:
        self.written = b""
        self.room = asyncio.Event()
        self.room.set()

    async def write(self, data: bytes) -> None:
        await self.room.wait()
        self.written += data


async def test_messages_are_written_in_order_with_their_ids_until_the_end() -> None:
    stream, connection = EventStream(), Connection()
    stream.send(b'{"n":1}')
    stream.send(b'{"n":2}', "abc")
    stream.end()
    stream.send(b"too late")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await stream.run(connection.write)
        await stream.flush()

    assert connection.written == OPEN + b'data: {"n":1}\n\nid: abc\ndata: {"n":2}\n\n'
    assert stream.closed


@pytest.mark.promises("http.slow")
async def test_a_stream_is_not_writable_until_its_client_has_read() -> None:
    stream, connection = EventStream(), Connection()
    connection.room.clear()
    running = asyncio.create_task(stream.run(connection.write))
    while stream.writable:
        stream.send(b"x" * 10_000)
    woken = asyncio.Event()
    stream.when_writable(woken.set)
    await asyncio.sleep(0)
    early = woken.is_set()
    connection.room.set()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await woken.wait()
        stream.end()
        await running

    assert not early
    assert len(connection.written) > HIGH_WATER_BYTES


async def test_a_stream_with_too_much_unread_is_closed() -> None:
    stream = EventStream()
    closed = []
    stream.on_closed(lambda: closed.append(True))
    stream.send(bytes(MAX_UNREAD_BYTES))

    assert (stream.closed, closed) == (True, [True])


@pytest.mark.promises("http.stream")
async def test_a_silent_stream_gets_comments() -> None:
    stream, connection = EventStream(comment_seconds=0.01), Connection()
    running = asyncio.create_task(stream.run(connection.write))
    await until(lambda: connection.written.count(OPEN) >= 4)
    stream.close()
    await running

    assert connection.written == OPEN * connection.written.count(OPEN)


async def test_a_connection_that_breaks_closes_the_stream() -> None:
    stream = EventStream()

    async def broken(data: bytes) -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await stream.run(broken)
    called = []
    stream.on_closed(lambda: called.append(True))
    stream.send(b"this is never read")
    stream.when_writable(lambda: called.append(False))
    await asyncio.sleep(0)

    assert (stream.closed, stream.writable, called) == (True, True, [True])


async def test_a_message_in_parts_is_one_event_and_others_wait_for_its_end() -> None:
    stream, connection = EventStream(), Connection()
    running = asyncio.create_task(stream.run(connection.write))
    frame = stream.begin_frame("7")
    frame.write(b'{"a":')
    stream.send(b"{}")
    assert not stream.writable
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await frame.room()
        frame.write(b"1}")
        frame.end()
        stream.end()
        await running

    assert connection.written == OPEN + b'id: 7\ndata: {"a":1}\n\ndata: {}\n\n'


async def test_a_message_in_parts_waits_for_its_client_and_ends_with_the_stream() -> None:
    stream, connection = EventStream(), Connection()
    connection.room.clear()
    running = asyncio.create_task(stream.run(connection.write))
    frame = stream.begin_frame()
    frame.write(bytes(HIGH_WATER_BYTES))
    waiting = asyncio.create_task(frame.room())
    for _ in range(5):
        await asyncio.sleep(0)
    early = waiting.done()
    stream.close()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await waiting
    frame.write(b"this is never read")
    frame.end()
    running.cancel()

    assert (early, frame.closed) == (False, True)

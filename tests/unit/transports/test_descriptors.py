"""A transport over descriptors: the frames that are written together, and the senders that wait and are woken."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from parley.common.os_errors import OUT_OF_MEMORY
from parley.transports.descriptors import HIGH_WATER_BYTES, PIPE_BYTES, DescriptorOutbox, DescriptorTransport
from parley.wire.framing import Overlong

FULL = b"x" * (HIGH_WATER_BYTES + PIPE_BYTES)
"""More bytes than the kernel and the outbox accept before events have to wait."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError:
            pass  # the test has closed the descriptor


async def test_the_frames_of_one_tick_leave_in_one_write(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    outbox = DescriptorOutbox(writing)

    for frame in (b"one", b"two", b"three"):
        outbox.send(frame)
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 100)
    await asyncio.sleep(0)

    assert os.read(reading, 100) == b"one\ntwo\nthree\n"


async def test_a_burst_in_one_tick_does_not_make_a_reading_client_slow(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    outbox = DescriptorOutbox(writing)
    frame = b"x" * 1023
    count = HIGH_WATER_BYTES // 1024 + 100
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(_read(reading, count * 1024)))
    reader.start()

    for _ in range(count):
        outbox.send(frame)
    writable = outbox.writable
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await outbox.flush()
    await asyncio.to_thread(reader.join)

    assert writable
    assert received == [(frame + b"\n") * count]


async def test_a_frame_can_begin_although_the_client_left_in_the_middle_of_another(pipe: tuple[int, int]) -> None:
    _, writing = pipe
    outbox = DescriptorOutbox(writing)
    first = outbox.begin_frame()
    first.write(b"one")
    outbox.close()
    second = outbox.begin_frame()  # a second stream that waited for the end of the first frame

    for frame in (first, second):
        frame.write(b"more")
        await frame.room()
        frame.end()
    assert (first.closed, second.closed) == (True, True)


async def test_a_frame_that_finds_the_client_gone_is_closed(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    outbox = DescriptorOutbox(writing)
    outbox.send(b"unsent")
    os.close(reading)

    assert outbox.begin_frame().closed
    assert outbox.begin_frame().closed


async def test_waiters_for_a_writable_outbox_are_woken_in_turn(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    outbox = DescriptorOutbox(writing)
    woken: list[str] = []
    done = asyncio.Event()

    outbox.send(FULL)
    assert not outbox.writable
    outbox.when_writable(lambda: woken.append("first"))
    outbox.when_writable(lambda: woken.append("second"))
    outbox.when_writable(done.set)
    await asyncio.sleep(0)
    assert woken == []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await asyncio.to_thread(_read, reading, len(FULL) + 1)
        await done.wait()

    assert woken == ["first", "second"]
    assert outbox.writable
    assert outbox.unread == 0


async def test_a_waiter_that_waits_again_is_called_in_the_next_round(pipe: tuple[int, int]) -> None:
    _, writing = pipe
    outbox = DescriptorOutbox(writing)
    rounds: list[str] = []
    done = asyncio.Event()

    def eager() -> None:
        rounds.append("eager")
        if len(rounds) < 5:
            outbox.when_writable(eager)
        else:
            done.set()

    outbox.when_writable(eager)
    outbox.when_writable(lambda: rounds.append("patient"))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await done.wait()

    assert rounds == ["eager", "patient", "eager", "eager", "eager"]


async def test_a_closed_pipe_closes_the_outbox_and_sending_has_no_effect(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    gone = asyncio.Event()
    outbox = DescriptorOutbox(writing, on_closed=gone.set)
    os.close(reading)

    outbox.send(b"hello?")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await gone.wait()
        outbox.send(b"nobody")
        await outbox.flush()

    assert outbox.closed
    assert outbox.writable


async def test_opening_changes_nothing_for_other_users_of_the_descriptor(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    DescriptorTransport(stdin=reading, stdout=writing)

    assert os.get_blocking(reading)
    assert os.get_blocking(writing)


async def test_a_last_line_without_its_end_is_a_frame_too(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    sink = os.open(os.devnull, os.O_WRONLY)
    transport = DescriptorTransport(stdin=reading, stdout=sink)
    frames: list[bytes | Overlong] = []
    os.write(writing, b"one\n\ntwo")
    os.close(writing)

    async with asyncio.timeout(TIMEOUT_SECONDS):
        await transport.read(frames.append)
    os.close(sink)

    assert frames == [b"one", b"", b"two"]


def _read(descriptor: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (more := os.read(descriptor, 65536)):
        data += more
    return bytes(data)


async def test_a_frame_for_which_there_is_no_memory_is_handed_over_later_as_its_outline_and_in_order(
    pipe: tuple[int, int],
) -> None:
    reading, writing = pipe
    sink = os.open(os.devnull, os.O_WRONLY)
    transport = DescriptorTransport(stdin=reading, stdout=sink)
    os.close(sink)
    taken: list[bytes | Overlong] = []
    shortages = 2

    def take(frame: bytes | Overlong) -> None:
        nonlocal shortages
        if len(taken) == 1 and shortages:
            shortages -= 1
            raise MemoryError
        taken.append(frame)
        if len(taken) == 4:
            transport.stop_reading()

    os.write(writing, b"one\ntwo\nthree\n")
    asyncio.get_running_loop().call_later(0.01, os.write, writing, b"four\n")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await transport.read(take)
    transport.close()

    assert taken == [b"one", Overlong(b"two", b"two", OUT_OF_MEMORY), b"three", b"four"]

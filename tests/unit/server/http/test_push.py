"""Messages that belong to no request: the GET streams that carry them, and messages without a stream."""

from __future__ import annotations

import asyncio

import pytest

from parley.server.http.push import MAX_FRAMES, MAX_STREAMS, PushOutbox
from parley.transports.http.event_stream import HIGH_WATER_BYTES, EventStream


def frames(stream: EventStream) -> list[bytes]:
    return [event.removeprefix(b"data: ").strip() for event in stream._events]


async def test_what_cannot_wait_is_kept_for_the_next_stream() -> None:
    push, stream = PushOutbox(), EventStream()
    for number in range(MAX_FRAMES + 1):
        push.send(b"%d" % number)
    push.attach(stream)

    assert frames(stream) == [b"%d" % number for number in range(1, MAX_FRAMES + 1)]


@pytest.mark.promises("http.stream")
async def test_readers_wait_until_there_is_a_stream_with_room() -> None:
    push, full, stream, woken = PushOutbox(), EventStream(), EventStream(), []
    push.when_writable(lambda: woken.append("first"))
    assert not push.writable
    full.send(bytes(HIGH_WATER_BYTES))
    push.attach(full)
    await asyncio.sleep(0)
    assert (push.writable, woken) == (False, [])
    push.attach(stream)
    await asyncio.sleep(0)

    assert (push.writable, woken) == (True, ["first"])


@pytest.mark.promises("http.stream")
async def test_messages_go_to_the_newest_stream_and_then_to_the_one_before() -> None:
    lost: list[bool] = []
    push, older, newer = PushOutbox(on_lost=lambda: lost.append(True)), EventStream(), EventStream()
    push.attach(older)
    push.attach(newer)
    push.send(b"1")
    seen = frames(newer)
    newer.close()
    push.send(b"2")

    assert (seen, frames(older), lost) == ([b"1"], [b"2"], [True])


async def test_a_session_has_few_streams_and_its_end_ends_them() -> None:
    push = PushOutbox()
    streams = [EventStream() for _ in range(MAX_STREAMS + 1)]
    for stream in streams:
        push.attach(stream)
    first = streams[0]._ending
    push.close()
    late = EventStream()
    push.attach(late)

    assert first
    assert all(stream._ending for stream in (*streams, late))

"""The event ids from which an HTTP client continues. An id covers only messages that the client was sent."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.server.http.cursors import StreamCursors
from parley.server.http.event_ids import EventIds, SessionCursors
from parley.server.http.guard import MAX_HEADER_BYTES
from parley.server.http.push import PushOutbox
from parley.server.positions import Position
from parley.transports.http.event_stream import EventStream
from parley.wire.ids import ConversationId

FIRST, SECOND = ConversationId("first"), ConversationId("second")


def last_id(stream: EventStream) -> str:
    (line,) = [line for line in stream._events[-1].split(b"\n") if line.startswith(b"id: ")]
    return line.removeprefix(b"id: ").decode()


@pytest.mark.promises("http.resume")
async def test_after_a_reconnect_an_id_has_only_what_was_received_of_the_other_streams() -> None:
    ids, push, stream = EventIds(b"key"), PushOutbox(), EventStream()
    cursors = StreamCursors(push, ids, "session")
    outboxes = {name: cursors.outbox(name, 7) for name in (FIRST, SECOND)}
    push.attach(stream)
    for name in (FIRST, SECOND):
        outboxes[name].send_at(b"sent, and lost", Position(9))

    cursors.restart({FIRST: Position(3, 0, 7), SECOND: Position(4, 0, 7)})
    outboxes[FIRST].send_at(b"sent again", Position(5))

    decoded = ids.decode("session", last_id(stream))
    assert decoded is not None
    assert decoded.streams == {FIRST: Position(5, 0, 7), SECOND: Position(4, 0, 7)}


@given(
    seqs=st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 100)), min_size=600, max_size=600),
    first=st.integers(1, 2**20),
)
@settings(max_examples=20)
def test_an_id_of_many_streams_fits_into_a_header_and_names_them_all(
    seqs: list[tuple[int, int]], first: int
) -> None:
    streams = {str(uuid4()): Position(seq, messages, first + at) for at, (seq, messages) in enumerate(seqs)}
    ids = EventIds(b"key")
    event_id = ids.encode("session", SessionCursors(streams=streams))

    assert len(event_id) < MAX_HEADER_BYTES - 4096
    assert ids.decode("session", event_id) == SessionCursors(streams=streams)

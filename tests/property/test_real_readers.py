"""The readers, encoders and sessions of the server, with an outbox that is full at random times.

`test_views.py` checks the property for the log and its cursors. This module checks the same property for the frames
that the server sends. A client streams, falls behind, pauses and streams again, in any order. It ends with the same
view as a client that was always connected. An entry becomes durable later, or never, and no client sees it before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    background_event,
    error,
    task_complete,
    task_started,
    user_message,
)
from kit.builders.records import model_asked, turn_ended
from kit.clients.view import View
from parley.conversation.log import Cursor, Delta, ItemKind, Log, LogPayload, encode_delta
from parley.runtime.readers import Reader
from parley.server.encoders import StreamEncoder
from parley.server.hosts import FULL
from parley.wire.ids import START, ConversationId, Seq
from parley.wire.jsonrpc import Message, decode_message
from parley.wire.notifications import ConversationEvent, InitialState

CONVERSATION = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")

_HAPPENED: tuple[tuple[LogPayload, ...], ...] = (
    (task_started(), user_message("go")),
    (model_asked(),),
    (agent_message("A whole sentence."),),
    (agent_reasoning("One."), agent_reasoning("Two.")),
    (background_event("stream error: gone; retrying 1/2 in 200ms…"),),
    (error(" Turn interrupted"), turn_ended("interrupted")),
    (task_complete("Done"), turn_ended("done")),
)

Command = tuple[str, Any]

appends = st.tuples(st.just("append"), st.sampled_from(_HAPPENED))
disks = st.tuples(st.sampled_from(["written", "written", "written", "failed"]), st.none())
deltas = st.tuples(st.just("delta"), st.tuples(st.sampled_from(ItemKind), st.text(min_size=1, max_size=6)))
rooms = st.tuples(st.just("room"), st.tuples(st.integers(0, 2), st.integers(0, 4)))
pauses = st.tuples(st.just("pause"), st.integers(0, 2))
returns = st.tuples(st.just("return"), st.tuples(st.integers(0, 2), st.booleans()))


class FrameList:
    """An outbox with room for a limited number of frames."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self._room = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def writable(self) -> bool:
        return self._room > 0

    def send(self, frame: bytes) -> None:
        assert self.writable, "sent although there was no room"
        self.frames.append(frame)
        self._room -= 1

    def when_writable(self, wake: Callable[[], None]) -> None:
        self._waiting.append(wake)

    def make_room(self, frames: int) -> None:
        self._room = frames
        while self.writable and self._waiting:
            self._waiting.pop(0)()


class Client:
    """A client that sometimes streams, and whose view consists of the messages that it was sent."""

    def __init__(self, log: Log, *, always: bool) -> None:
        self.view = View()
        self.outbox = FrameList()
        self.reader: Reader | None = None
        self._log = log
        if always:
            self.outbox.make_room(1_000_000)
            self.stream(after=START)

    def stream(self, *, after: Seq) -> None:
        encoder = StreamEncoder(CONVERSATION, FULL, event_meta=True)
        events = self._log.events(after=after, hidden=encoder.hidden)
        self.outbox.send(encoder.snapshot(events, self._log.open_deltas(), self._log.durable))
        self.reader = Reader(self._log, Cursor.at_end_of(self._log), self.outbox, encoder)

    def pause(self) -> None:
        self.read()
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def read(self) -> View:
        frames, self.outbox.frames = self.outbox.frames, []
        for frame in frames:
            self._take(decode_message(frame))
        return self.view

    def _take(self, message: Message) -> None:
        params = bytes(message.params) if isinstance(message.params, msgspec.Raw) else b""
        if message.method == InitialState.METHOD:
            state = msgspec.json.decode(params, type=InitialState)
            for one in state.initial_state.events:
                self.view.take(ConversationEvent(meta=one.meta, msg=one.msg))
            assert isinstance(state.meta.seq, int)
            self.view.reached(state.meta.seq)
        else:
            event = msgspec.json.decode(params, type=ConversationEvent)
            assert msgspec.json.decode(event.msg)["type"] == message.method
            self.view.take(event)


class Conversation:
    """A log and its clients: one that is always connected, and three that connect and leave."""

    def __init__(self) -> None:
        self.log = Log()
        self.always = Client(self.log, always=True)
        self.clients = [Client(self.log, always=False) for _ in range(3)]
        self._unwritten: list[Seq] = []
        """The last position of each append that is not durable."""

    def do(self, name: str, argument: Any) -> None:
        readers = [client.reader for client in (self.always, *self.clients) if client.reader is not None]
        match name:
            case "append":
                entries = self.log.append(argument, at=0.0)
                self._unwritten.append(entries[-1].seq)
                for reader in readers:
                    reader.appended(entries[0].seq)
            case "written" if self._unwritten:
                self.log.durable = self._unwritten.pop(0)
                for reader in readers:
                    reader.pump()
            case "failed":
                self.log.truncate(self.log.durable)
                self._unwritten.clear()
                for reader in readers:
                    reader.pump()
            case "delta":
                delta = self.log.extend(*argument)
                for reader in readers:
                    reader.delta(delta, encode_delta(delta))
            case "room":
                self.clients[argument[0]].outbox.make_room(argument[1])
            case "pause":
                self.clients[argument].pause()
            case "return":
                self._come_back(self.clients[argument[0]], goes_on=argument[1])
            case _:
                assert name == "written"

    def _come_back(self, client: Client, *, goes_on: bool) -> None:
        if client.reader is None and client.outbox.writable:
            if not goes_on:
                client.view = View()
            client.stream(after=client.view.resume())

    def end(self) -> None:
        """Make all entries durable."""
        while self._unwritten:
            self.do("written", None)

    def check_that_no_reader_saw_undurable_events(self) -> None:
        for client in (self.always, *self.clients):
            view = client.read()
            assert view.position <= self.log.durable
            assert client is not self.always or list(view.events) == [entry.seq for entry in self.log.events()]


@given(commands=st.lists(st.one_of(appends, disks, deltas, deltas, rooms, pauses, returns), max_size=60))
def test_a_client_of_the_real_readers_ends_with_the_view_of_one_that_was_always_there(
    commands: list[Command],
) -> None:
    conversation = Conversation()
    for name, argument in commands:
        conversation.do(name, argument)
        conversation.check_that_no_reader_saw_undurable_events()
    conversation.end()

    expected = conversation.always.read()
    texts = {delta.item.id: (delta.item.type, delta.text) for delta in text_deltas(conversation.log)}
    assert expected.open == texts
    for client in conversation.clients:
        if client.reader is not None:
            client.outbox.make_room(1_000_000)
            view = client.read()
            assert (view.events, view.open) == (expected.events, expected.open)


def text_deltas(log: Log) -> list[Delta]:
    return [delta for delta in log.open_deltas() if isinstance(delta, Delta)]

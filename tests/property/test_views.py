"""Events in any order: every reader ends with the same view as a reader that was always connected.

An event becomes durable at once, later, or never. An event that never becomes durable is rolled back, and no reader
has seen it.
"""

from __future__ import annotations

import json
from enum import Enum
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec import Raw

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    agent_reasoning_raw_content,
    background_event,
    error,
    exec_command_end,
    task_complete,
    task_started,
    token_count,
    user_message,
)
from kit.builders.logs import AT
from kit.builders.records import model_asked, turn_ended, turn_started
from kit.clients.view import View
from parley.conversation.log import (
    Cursor,
    Delta,
    Earlier,
    Entry,
    ItemKind,
    Log,
    LogPayload,
    encode_piece,
    output_of,
)
from parley.conversation.output import PREVIEW_BYTES, OutputDelta
from parley.wire.events import FOR_FULL_VERSION_ONLY, OutputStream
from parley.wire.ids import CallId, ItemId, Seq
from parley.wire.notifications import ConversationEvent, EventMeta

PLENTY = 1_000_000
"""The capacity of an outbox, in frames, which no example exceeds."""

NOTHING_HIDDEN: frozenset[str] = frozenset()

PAGE = 3
"""The number of entries that a reader is supplied with at a time."""

Piece = tuple[ItemId, int, str | bytes]
"""A delta that was sent: its item, its offset, and its content."""


class Join(Enum):
    """The ways to begin reading."""

    SNAPSHOT = "a snapshot of everything, then live"
    SNAPSHOT_AFTER = "a snapshot of what is newer than the client has, then live"
    FOLLOW = "no snapshot: everything from the client's position on, one by one"


class Reader:
    """One reader of a log and its client, with an outbox that can fill up."""

    def __init__(
        self, log: Log, store: list[Entry], view: View, how: Join, *, hidden: frozenset[str], server: int
    ) -> None:
        """Create a reader. `store` has every durable entry, while the log may have dropped some entries."""
        self._log, self._store, self.view, self.hidden = log, store, view, hidden
        self._server = server
        self.kept_up = True
        """True if no delta was ever held back."""
        self.pieces: list[Piece] = []
        if how is Join.FOLLOW:
            self.cursor = Cursor(view.resume())
            self.catch_up()
        else:
            self._take_snapshot(after=view.resume())
        self.kept_up &= self.cursor.live
        self.pieces_at_join = list(self.pieces)

    @property
    def writable(self) -> bool:
        return self._server > 0

    def appended(self, first: Seq) -> None:
        self.cursor.appended(self._log, first)

    def extended(self, delta: Delta | OutputDelta) -> None:
        if self.cursor.live and self.writable:
            self._send_delta(delta)
        else:
            self.kept_up = False
            self.cursor.missed(self._log, delta)

    def stall(self) -> None:
        self._server = 0

    def make_room(self, frames: int) -> None:
        self._server = frames
        self.catch_up()

    def _take_snapshot(self, *, after: Seq) -> None:
        earlier = Log()
        earlier.append_entries(self._store[: self._log.base])
        earlier.durable = self._log.base
        in_memory = self._log.events(after=Seq(max(after, self._log.base)), hidden=self.hidden)
        for entry in chain(earlier.events(after=after, hidden=self.hidden), in_memory):
            if entry.is_event:
                self._send_entry(entry)
            else:
                for delta in (piece for stream in output_of(entry) for piece in stream.preview()):
                    self._send_delta(delta)
        for open_delta in self._log.open_deltas():
            self._send_delta(open_delta)
        self.view.reached(self._log.durable)
        self.cursor = Cursor.at_end_of(self._log)

    def catch_up(self) -> None:
        while self.writable and (lacking := self.cursor.next(self._log)) is not None:
            if isinstance(lacking, Earlier):
                self.cursor.supply(self._store[self.cursor.seq : self.cursor.seq + PAGE])
            elif not isinstance(lacking, Entry):
                self._send_delta(lacking)
            elif lacking.is_event and lacking.type not in self.hidden:
                self._send_entry(lacking)

    def _send_entry(self, entry: Entry) -> None:
        assert entry.seq <= self._log.durable, "shown before it was durable"
        self._send(ConversationEvent(meta=EventMeta(seq=entry.seq), msg=Raw(entry.encoded)))

    def _send_delta(self, delta: Delta | OutputDelta) -> None:
        assert self._log.is_durable or self._has_ended(delta), "shown in front of what is not durable"
        self.pieces.append((delta.item.id, delta.offset, _said(delta)))
        meta = EventMeta(item=delta.item.id, offset=delta.offset)
        self._send(ConversationEvent(meta=meta, msg=Raw(encode_piece(delta))))

    def _has_ended(self, delta: Delta | OutputDelta) -> bool:
        durable = self._store[: self._log.durable]
        return any(delta.item.id == ended.id for entry in durable for ended in output_of(entry))

    def _send(self, event: ConversationEvent) -> None:
        self._server -= 1
        self.view.take(event)


def _said(delta: Delta | OutputDelta) -> str | bytes:
    return delta.text if isinstance(delta, Delta) else delta.data


Item = ItemKind | tuple[CallId, OutputStream]
"""The key of an open item. At most one item with each key is open at a time."""


class ExpectedLog:
    """The expected view, computed without a log, a cursor or a client."""

    def __init__(self) -> None:
        self._happened: list[Entry | tuple[Item, Piece]] = []
        self.pieces: list[Piece] = []
        """Every delta as it was sent."""
        self._fold()

    def append(self, payloads: list[Entry]) -> None:
        self._happened += payloads
        self._fold()

    def extend(self, item: Item, delta: Delta | OutputDelta) -> None:
        piece = (delta.item.id, delta.offset, _said(delta))
        self.pieces.append(piece)
        self._happened.append((item, piece))
        self._fold()

    def truncate(self, after: Seq) -> None:
        self._happened = [one for one in self._happened if not isinstance(one, Entry) or one.seq <= after]
        self._fold()

    def _fold(self) -> None:
        """Apply the deltas of an item that waited for the end of another item, if that item has ended."""
        self.events: dict[Seq, Any] = {}
        self.output: dict[ItemId, bytes] = {}
        texts: dict[ItemId, str] = {}
        still_open: dict[Item, ItemId] = {}
        for one in self._happened:
            if isinstance(one, Entry):
                if one.is_event:
                    self.events[one.seq] = json.loads(one.encoded)
                still_open = {item: name for item, name in still_open.items() if not _ends(one, item)}
                continue
            item, (name, _, said) = one
            if still_open.setdefault(item, name) != name:
                continue
            if isinstance(said, str):
                texts[name] = texts.get(name, "") + said
            else:
                self.output[name] = self.output.get(name, b"") + said
        self.open = {
            name: (item.value, texts[name])
            for item, name in still_open.items()
            if isinstance(item, ItemKind) and texts[name]
        }


def _ends(entry: Entry, item: Item) -> bool:
    if not isinstance(item, ItemKind):
        return entry.output is not None and item[0] == entry.output.call_id
    return entry.type in ("background_event", "error", "task_complete", item.value.removesuffix("_delta"))


words = st.text(st.sampled_from('abé\U0001f600"\\\n'), max_size=4)

anything = st.one_of(
    st.sampled_from([turn_started(), model_asked(), turn_ended()]),
    st.sampled_from([task_started(), token_count(input_tokens=1, output_tokens=1)]),
    words.map(user_message),
    words.map(agent_message),
    words.map(agent_reasoning),
    words.map(agent_reasoning_raw_content),
    words.map(background_event),
    words.map(task_complete),
)
"""Generates events that do not end a turn while its command is running. `interrupt` ends a turn."""

rooms = st.one_of(st.integers(min_value=0, max_value=4), st.just(PLENTY))
calls = st.sampled_from([CallId("c1"), CallId("c2")])
soon = st.sampled_from([True, True, False])
"""Generates flags: True if an event becomes durable at once."""
sizes = st.one_of(*[st.integers(4, 40)] * 9, st.just(20_000))
hidings = st.sampled_from([NOTHING_HIDDEN, FOR_FULL_VERSION_ONLY])


class AnyInterleaving(RuleBasedStateMachine):
    """Readers connect, fall behind, catch up, leave and come back while a conversation continues."""

    readers = Bundle[Reader]("readers")
    gone = Bundle[Reader]("gone")

    def __init__(self) -> None:
        super().__init__()
        self.log, self.expected = Log(), ExpectedLog()
        self.store: list[Entry] = []
        self.always = Reader(self.log, self.store, View(), Join.FOLLOW, hidden=NOTHING_HIDDEN, server=PLENTY)
        self.present: list[Reader] = [self.always]
        self.pieces_before: dict[Reader, int] = {self.always: 0}
        self.unwritten: list[Seq] = []
        """The last position of each append that is not durable."""
        self.said = 0

    @rule(payloads=st.lists(anything, min_size=1, max_size=3), at_once=soon)
    def append(self, payloads: list[LogPayload], at_once: bool) -> None:
        entries = self.log.append(payloads, at=AT)
        self.expected.append(entries)
        self.unwritten.append(entries[-1].seq)
        for reader in self.present:
            reader.appended(entries[0].seq)
        if at_once:
            self.reach_disk(len(self.unwritten))

    @rule(appends=st.integers(1, 3))
    def reach_disk(self, appends: int) -> None:
        for _ in range(min(appends, len(self.unwritten))):
            before, self.log.durable = self.log.durable, self.unwritten.pop(0)
            self.store += self.log.between(before, self.log.durable)
            for reader in self.present:
                reader.catch_up()

    @rule()
    def fail(self) -> None:
        self.log.truncate(self.log.durable)
        self.expected.truncate(self.log.durable)
        self.unwritten.clear()
        for reader in self.present:
            reader.catch_up()

    @rule(kept=st.integers(0, 4))
    def trim(self, kept: int) -> None:
        self.log.trim(Seq(max(0, self.log.durable - kept)))

    @rule(kind=st.sampled_from(ItemKind), text=words)
    def extend(self, kind: ItemKind, text: str) -> None:
        delta = self.log.extend(kind, text)
        self.expected.extend(kind, delta)
        for reader in self.present:
            reader.extended(delta)

    @rule(call=calls, stream=st.sampled_from(["stdout", "stderr"]), size=sizes)
    def say(self, call: CallId, stream: OutputStream, size: int) -> None:
        self.said += 1
        for delta in self.log.extend_output(call, stream, b"%d " % self.said * (size // len(b"%d " % self.said))):
            self.expected.extend((call, stream), delta)
            for reader in self.present:
                reader.extended(delta)

    @rule(call=calls, at_once=soon)
    def end_command(self, call: CallId, at_once: bool) -> None:
        self.append([*self.log.output_records(call), exec_command_end(call)], at_once)

    @rule(at_once=soon)
    def interrupt(self, at_once: bool) -> None:
        self.append([*self.log.output_records(), error("Turn interrupted"), turn_ended("interrupted")], at_once)

    @rule(target=readers, how=st.sampled_from(Join), hidden=hidings, server=rooms)
    def join(self, how: Join, hidden: frozenset[str], server: int) -> Reader:
        return self._join(View(), how, hidden, server)

    @rule(target=gone, reader=consumes(readers))
    def leave(self, reader: Reader) -> Reader:
        self.present.remove(reader)
        return reader

    @rule(target=readers, reader=consumes(gone), how=st.sampled_from(Join), server=rooms)
    def come_back(self, reader: Reader, how: Join, server: int) -> Reader:
        view = View() if how is Join.SNAPSHOT else reader.view
        return self._join(view, how, reader.hidden, server)

    @rule(reader=readers)
    def stall(self, reader: Reader) -> None:
        reader.stall()

    @rule(reader=readers, frames=rooms)
    def make_room(self, reader: Reader, frames: int) -> None:
        reader.make_room(frames)

    def _join(self, view: View, how: Join, hidden: frozenset[str], server: int) -> Reader:
        reader = Reader(self.log, self.store, view, how, hidden=hidden, server=server)
        self.present.append(reader)
        self.pieces_before[reader] = len(self.expected.pieces)
        if reader.kept_up:
            texts = [piece for piece in reader.pieces_at_join if piece[2] and isinstance(piece[2], str)]
            assert sorted(texts) == sorted((item, 0, text) for item, (_, text) in self.always.view.open.items())
        return reader

    @invariant()
    def the_permanent_reader_saw_the_expected_events(self) -> None:
        shown = {seq: msg for seq, msg in self.expected.events.items() if seq <= self.log.durable}
        assert self.always.view.events == shown
        assert self.always.cursor.live == self.log.is_durable
        if self.log.is_durable:
            assert self.always.view.open == self.expected.open

    @invariant()
    def a_live_reader_sees_the_same_as_the_permanent_reader(self) -> None:
        for reader in self.present:
            if reader.cursor.live:
                self._sees_the_same(reader)

    @invariant()
    def a_reader_that_kept_up_got_every_delta_as_it_was_sent(self) -> None:
        for reader, before in self.pieces_before.items():
            if reader.kept_up and reader in self.present:
                assert reader.pieces[len(reader.pieces_at_join) :] == self.expected.pieces[before:]

    def teardown(self) -> None:
        """Make everything durable, and let all readers read to the end."""
        self.reach_disk(len(self.unwritten))
        for reader in self.present:
            reader.make_room(PLENTY)
            assert reader.cursor.live
            self._sees_the_same(reader)
            self._heard_the_same(reader)

    def _heard_the_same(self, reader: Reader) -> None:
        """Check that a reader has at least the beginning and the end of each output, and nothing else at those
        offsets."""
        assert set(reader.view.output) == set(self.expected.output)
        for item, whole in self.expected.output.items():
            pieces = reader.view.output[item]
            assert pieces == [(at, whole[at : at + len(piece)]) for at, piece in pieces]
            gaps = [
                (at + len(piece), then) for (at, piece), (then, _) in pairwise(pieces) if at + len(piece) < then
            ]
            # There are several gaps if a reader joined in the middle and then fell behind.
            assert all(begin >= PREVIEW_BYTES and end <= len(whole) - PREVIEW_BYTES for begin, end in gaps)
            assert (pieces[0][0], pieces[-1][0] + len(pieces[-1][1])) == (0, len(whole))

    def _sees_the_same(self, reader: Reader) -> None:
        shown = {seq: msg for seq, msg in self.always.view.events.items() if msg["type"] not in reader.hidden}
        assert reader.view.events == shown
        assert reader.view.open == self.always.view.open


@pytest.mark.promises("catchup.no-gap", "catchup.merged", "catchup.void")
def test_every_reader_ends_with_the_view_of_one_that_was_always_there() -> None:
    run_state_machine_as_test(
        AnyInterleaving,
        settings=settings(
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )

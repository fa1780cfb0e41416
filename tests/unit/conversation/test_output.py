"""The stored part of command output, and the part that each reader gets."""

from __future__ import annotations

import json

import pytest

from kit.builders.events import error, exec_command_begin, exec_command_end
from kit.builders.logs import AT, log_of, write
from parley.conversation.log import Cursor, Entry, Log, output_of
from parley.conversation.output import KEPT_BYTES, OpenOutput, OutputDelta, encode_output_delta
from parley.conversation.records import CommandOutput, StreamOutput
from parley.wire.events import OutputStream
from parley.wire.ids import START, CallId, ItemId, Seq

CALL = CallId("c1")


def numbered(size: int) -> bytes:
    """Return this many bytes, each different from its neighbours."""
    return b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]


def said(size: int, *, reads: int = 65_536) -> tuple[OpenOutput, bytes]:
    """Return an open output with this much data, added in pieces of the size of pipe reads."""
    item, data = OpenOutput(ItemId("i1"), CALL, "stdout"), numbered(size)
    for at in range(0, size, reads):
        item.extend(data[at : at + reads])
    return item, data


def pieces_of(item: OpenOutput, offset: int = 0) -> list[tuple[int, bytes]]:
    return [(piece.offset, piece.data) for piece in item.pieces(offset)]


def joined(pieces: list[tuple[int, bytes]], begin: int, end: int) -> bytes:
    """Return the pieces between two offsets, which must have no gap."""
    at, data = begin, b""
    for offset, piece in pieces:
        if begin <= offset < end:
            assert offset == at
            at, data = at + len(piece), data + piece
    return data


@pytest.mark.parametrize("size", [1, 8192, KEPT_BYTES, KEPT_BYTES + 1, 2 * KEPT_BYTES])
def test_up_to_128_kib_of_a_stream_are_kept_whole(size: int) -> None:
    item, data = said(size)

    pieces = pieces_of(item)

    assert joined(pieces, 0, size) == data
    assert max(len(piece) for _, piece in pieces) <= 8192
    assert (item.length, item.lines) == (size, data.count(b"\n"))


@pytest.mark.parametrize("reads", [7, 8192, 65_536, 1_000_000])
def test_of_more_the_first_and_the_last_64_kib_are_kept(reads: int) -> None:
    item, data = said(500_000, reads=reads)

    pieces = pieces_of(item)

    assert joined(pieces, 0, KEPT_BYTES) == data[:KEPT_BYTES]
    assert joined(pieces, 500_000 - KEPT_BYTES, 500_000) == data[-KEPT_BYTES:]
    assert sum(len(piece) for _, piece in pieces) == 2 * KEPT_BYTES
    assert item.to_record() == StreamOutput(
        item=ItemId("i1"),
        stream="stdout",
        head=data[:KEPT_BYTES],
        tail=data[-KEPT_BYTES:],
        size=500_000,
        lines=62_500,
    )


def test_a_reader_that_has_the_beginning_gets_the_rest() -> None:
    item, data = said(100_000)

    assert joined(pieces_of(item, 30_000), 30_000, 100_000) == data[30_000:]


def test_a_reader_with_a_part_of_the_middle_continues_at_the_stored_end() -> None:
    item, data = said(500_000)

    assert pieces_of(item, 200_000)[0][0] == 500_000 - KEPT_BYTES
    assert joined(pieces_of(item, 499_000), 499_000, 500_000) == data[499_000:]


@pytest.mark.parametrize("size", [10, 16_384, 16_385, 100_000, 500_000])
def test_a_snapshot_shows_the_first_and_the_last_8_kib(size: int) -> None:
    item, data = said(size)

    shown = [(piece.offset, piece.data) for piece in item.preview()]

    if size <= 16_384:
        assert b"".join(piece for _, piece in shown) == data
    else:
        assert shown == [(0, data[:8192]), (size - 8192, data[-8192:])]


@pytest.mark.parametrize(
    ("size", "begins"), [(1, [0]), (2 * KEPT_BYTES, [0]), (500_000, [0, 500_000 - KEPT_BYTES])]
)
def test_the_stored_output_is_one_range_or_two(size: int, begins: list[int]) -> None:
    item, data = said(size)

    runs = item.kept_ranges()

    assert [at for at, _ in runs] == begins
    assert all(data[at : at + len(run)] == run for at, run in runs)
    assert runs[-1][0] + len(runs[-1][1]) == size


def test_a_piece_is_a_list_of_bytes_on_the_wire() -> None:
    delta = OutputDelta(OpenOutput(ItemId("i1"), CallId('"'), "stderr"), 0, b"\x00\xff\n")

    assert json.loads(encode_output_delta(delta)) == {
        "type": "exec_command_output_delta",
        "call_id": '"',
        "stream": "stderr",
        "chunk": [0, 255, 10],
    }


# --- in a log ----------------------------------------------------------------------------


def say(log: Log, data: bytes, *, stream: OutputStream = "stdout", call: CallId = CALL) -> list[OutputDelta]:
    return list(log.extend_output(call, stream, data))


def end(log: Log, call: CallId = CALL) -> Seq:
    return write(log, *log.output_records(call), exec_command_end(call))[0].seq


def handed(log: Log, cursor: Cursor) -> list[str]:
    shown: list[str] = []
    while (step := cursor.next(log)) is not None:
        if isinstance(step, Entry):
            shown.append(step.type)
        else:
            assert isinstance(step, OutputDelta)
            shown.append(f"{step.item.id}@{step.offset}:{step.data.decode()}")
    return shown


def running() -> Log:
    return log_of(exec_command_begin(CALL, "make"))


def test_each_stream_of_each_command_is_an_item_of_its_own() -> None:
    log = running()

    say(log, b"a")
    say(log, b"b", stream="stderr")
    say(log, b"c")
    say(log, b"d", call=CallId("c2"))

    assert handed(log, Cursor()) == ["exec_command_begin", "i1@0:ac", "i2@0:b", "i3@0:d"]


def test_the_record_of_what_is_kept_ends_the_items_of_its_command() -> None:
    log = running()
    say(log, b"one\n")
    say(log, b"two\n", stream="stderr")
    say(log, b"other", call=CallId("c2"))

    end(log)

    assert [item.call_id for item in log.outputs.values()] == [CallId("c2")]
    assert handed(log, Cursor()) == [
        "exec_command_begin",
        "command_output",
        "i1@0:one\n",
        "i2@0:two\n",
        "exec_command_end",
        "i3@0:other",
    ]


def test_a_command_that_said_nothing_leaves_no_record() -> None:
    log = running()

    assert list(log.output_records()) == []


def test_a_live_reader_does_not_get_the_same_output_twice() -> None:
    log = running()
    cursor = Cursor.at_end_of(log)
    say(log, b"heard")

    cursor.appended(log, end(log))

    assert handed(log, cursor) == ["command_output", "exec_command_end"]


def test_a_reader_that_missed_the_end_is_handed_it_from_the_record() -> None:
    log = running()
    cursor = Cursor.at_end_of(log)
    say(log, b"heard ")
    (delta,) = say(log, b"missed ")
    cursor.missed(log, delta)
    say(log, b"missed too")

    cursor.appended(log, end(log))

    assert handed(log, cursor) == ["command_output", "i1@6:missed missed too", "exec_command_end"]


def test_a_reader_that_fell_behind_while_it_ran_continues_after_what_it_has() -> None:
    log = running()
    cursor = Cursor.at_end_of(log)
    (delta,) = say(log, b"ab")
    cursor.missed(log, delta)

    assert handed(log, cursor) == ["i1@0:ab"]
    assert cursor.live


def test_a_call_id_used_twice_is_two_items() -> None:
    log = running()
    say(log, b"first")
    end(log)
    say(log, b"second")
    end(log)

    assert [step for step in handed(log, Cursor()) if "@" in step] == ["i1@0:first", "i2@0:second"]


def test_an_interrupt_ends_all_of_them_and_keeps_what_was_said() -> None:
    log = running()
    say(log, b"so far")
    write(log, *log.output_records(), error("Turn interrupted"))

    record = next(entry for entry in log.entries if entry.output is not None)

    assert log.outputs == {}
    assert [(item.id, item.call_id, item.to_record().head) for item in output_of(record)] == [
        (ItemId("i1"), CALL, b"so far")
    ]
    assert list(log.events(after=START)) == log.entries


def test_output_that_is_not_utf_8_survives_the_record() -> None:
    log = running()
    say(log, bytes(range(256)))

    (record,) = log.output_records()
    write(log, record)

    assert isinstance(record, CommandOutput)
    assert output_of(log.entries[-1])[0].to_record() == record.streams[0]


def test_a_rolled_back_end_leaves_the_command_running_and_repeats_nothing() -> None:
    log = running()
    cursor = Cursor.at_end_of(log)
    say(log, b"heard ")
    ended = log.append([*log.output_records(CALL), exec_command_end(CALL)], at=AT)
    cursor.appended(log, ended[0].seq)

    log.truncate(log.durable)
    say(log, b"more")
    end(log)

    assert handed(log, cursor) == ["command_output", "i1@6:more", "exec_command_end"]
    assert handed(log, Cursor()) == ["exec_command_begin", "command_output", "i1@0:heard more", "exec_command_end"]


def test_a_slow_reader_gets_the_output_of_the_next_command_after_a_rollback() -> None:
    log = running()
    cursor = Cursor.at_end_of(log)
    say(log, b"first")
    ended = log.append([*log.output_records(CALL), exec_command_end(CALL)], at=AT)
    cursor.appended(log, ended[0].seq)
    log.truncate(log.durable)

    end(log)
    say(log, b"second")
    end(log)

    assert [step for step in handed(log, cursor) if "@" in step] == ["i2@0:second"]


@pytest.mark.parametrize("kept", [b"", b"ok", bytes(range(256))])
def test_command_output_is_stored_exactly(kept: bytes) -> None:
    log = running()
    say(log, kept)
    end(log)

    for entry in log.entries:
        again = Entry.stored(entry.seq, entry.at, entry.type, is_event=entry.is_event, body=entry.body)

        assert again == entry

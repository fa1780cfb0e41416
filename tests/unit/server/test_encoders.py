"""Encoders concatenate bytes. The tests compare the frames with the structs that clients decode."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from kit.builders.events import agent_message, task_started, user_message
from kit.builders.json import as_json
from kit.builders.logs import log_of
from kit.builders.records import model_asked, turn_started
from parley.conversation.log import ItemKind, Log, encode_piece
from parley.server.encoders import CodexEncoder, StreamEncoder, hidden_events
from parley.server.hosts import FULL, PLAIN
from parley.testing import check_message
from parley.wire.ids import ConversationId, EventId, Seq
from parley.wire.jsonrpc import RequestId, encode
from parley.wire.mcp import LogMessage
from parley.wire.notifications import (
    CONVERSATION_LOGGER,
    CodexEvent,
    CodexMeta,
    ConversationEvent,
    EventMeta,
    InitialState,
    LoggedNotification,
    SnapshotEvent,
    SnapshotMeta,
    StreamDisconnected,
)

UUID = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")
ODD = 'a %s %% %b {} \\ "quoted" \n ü \U0001f642 </script>'
ODD_IDS = ("", ODD, "%", "%b", '"', "\\", 0, -1, 2**63 - 1)


def _log() -> Log:
    """Return a log with two events, a record between them, and two open texts, with unusual characters."""
    log = log_of(turn_started(), task_started(), model_asked(), agent_message(ODD))
    log.extend(ItemKind.MESSAGE, ODD)
    log.extend(ItemKind.REASONING, "hm")
    return log


def _notification(method: str, params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": as_json(params)}


def sent(encode_and_send: Callable[..., None], *arguments: object) -> list[bytes]:
    """Return the messages that an encoder sends."""
    frames: list[bytes] = []
    encode_and_send(*arguments, frames.append)
    return frames


def _read(frame: bytes) -> Any:
    check_message(frame)
    assert b"\n" not in frame
    return json.loads(frame)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("event_meta", [False, True])
def test_a_live_event_of_a_stream_is_the_struct(event_meta: bool, named: bool) -> None:
    log = _log()
    encoder = StreamEncoder(UUID, FULL, event_meta=event_meta)
    encoder.name_conversation(named)
    for entry in log.events():
        meta = EventMeta(conversation_id=UUID, seq=entry.seq) if event_meta else EventMeta(conversation_id=UUID)
        event = ConversationEvent(msg=Raw(entry.encoded))
        if event_meta or named:
            event = ConversationEvent(meta=meta, msg=Raw(entry.encoded))

        assert _read(*sent(encoder.entry, entry)) == _notification(entry.type, event)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("event_meta", [False, True])
def test_a_live_delta_of_a_stream_is_the_struct(event_meta: bool, named: bool) -> None:
    log = _log()
    encoder = StreamEncoder(UUID, FULL, event_meta=event_meta)
    encoder.name_conversation(named)
    for kind, text, offset in ((ItemKind.MESSAGE, "more", len(ODD)), (ItemKind.REASONING, ODD, 2)):
        delta = log.extend(kind, text)
        msg = {"type": kind.value, "delta": text}
        meta = EventMeta(conversation_id=UUID, item=delta.item.id, offset=offset)
        if not event_meta:
            meta = EventMeta(conversation_id=UUID)
        event = ConversationEvent(msg=Raw(encode(msg)))
        if event_meta or named:
            event = ConversationEvent(meta=meta, msg=Raw(encode(msg)))

        assert _read(*sent(encoder.delta, delta, encode_piece(delta))) == _notification(kind.value, event)


@pytest.mark.parametrize("event_meta", [False, True])
def test_naming_the_conversation_holds_from_the_next_event_on_and_can_end(event_meta: bool) -> None:
    log = _log()
    entry = next(log.events())
    encoder, never, always = (StreamEncoder(UUID, FULL, event_meta=event_meta) for _ in range(3))
    always.name_conversation(True)
    said: list[bytes] = []
    for is_named in (False, True, True, False):
        encoder.name_conversation(is_named)
        said += sent(encoder.entry, entry)

    without, named = sent(never.entry, entry), sent(always.entry, entry)
    assert said == [*without, *named, *named, *without]


@pytest.mark.parametrize("event_meta", [False, True])
@pytest.mark.parametrize(
    "log", [Log(), _log(), log_of(task_started())], ids=["nothing", "open texts", "events alone"]
)
def test_a_snapshot_is_the_struct(log: Log, event_meta: bool) -> None:
    encoder = StreamEncoder(UUID, FULL, event_meta=event_meta)
    events = [
        SnapshotEvent(meta=EventMeta(seq=entry.seq), msg=Raw(entry.encoded))
        if event_meta
        else SnapshotEvent(msg=Raw(entry.encoded))
        for entry in log.events()
    ]
    events += [
        SnapshotEvent(meta=EventMeta(item=delta.item.id, offset=0), msg=Raw(encode_piece(delta)))
        if event_meta
        else SnapshotEvent(msg=Raw(encode_piece(delta)))
        for delta in log.open_deltas()
    ]
    here = SnapshotMeta(conversation_id=UUID, seq=log.last) if event_meta else SnapshotMeta(conversation_id=UUID)
    state = msgspec.convert(
        {"_meta": here, "initial_state": {"events": events}}, InitialState, from_attributes=True
    )

    frame = encoder.snapshot(log.events(), log.open_deltas(), log.last)
    assert _read(frame) == _notification(InitialState.METHOD, state)


@pytest.mark.parametrize("event_meta", [False, True])
def test_a_snapshot_of_the_last_events_names_the_position_of_earlier_ones(event_meta: bool) -> None:
    encoder = StreamEncoder(UUID, FULL, event_meta=event_meta, before=Seq(7))
    state = msgspec.convert(_read(encoder.snapshot((), (), Seq(9)))["params"], InitialState)

    assert state.meta == SnapshotMeta(conversation_id=UUID, seq=Seq(9) if event_meta else UNSET, before=Seq(7))


def test_a_snapshot_after_a_position_has_only_what_is_newer() -> None:
    log = _log()
    encoder = StreamEncoder(UUID, FULL, event_meta=True)
    frame = encoder.snapshot(log.events(after=Seq(2)), [], log.last)

    assert _read(frame)["params"] == {
        "_meta": {"conversationId": UUID, "seq": 4},
        "initial_state": {
            "events": [{"_meta": {"seq": 4}, "msg": {"type": "agent_message", "message": ODD}}],
        },
    }


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("event_meta", [False, True])
def test_a_stream_as_log_messages_is_the_stream_in_the_struct(event_meta: bool, named: bool) -> None:
    log = _log()
    plain, logged = (StreamEncoder(UUID, FULL, event_meta=event_meta, as_log=as_log) for as_log in (False, True))
    delta = log.extend(ItemKind.MESSAGE, ODD)
    for encoder in (plain, logged):
        encoder.name_conversation(named)
    frames = [
        [
            *(frame for entry in log.events() for frame in sent(encoder.entry, entry)),
            *sent(encoder.delta, delta, encode_piece(delta)),
            encoder.snapshot(log.events(), log.open_deltas(), log.last),
            encoder.disconnected(ODD, "odd"),
        ]
        for encoder in (plain, logged)
    ]

    for replaced, frame in zip(*map(_read_all, frames), strict=True):
        data = LoggedNotification(method=replaced["method"], params=Raw(encode(replaced["params"])))
        message = LogMessage(level="info", logger=CONVERSATION_LOGGER, data=as_json(data))
        assert frame == _notification(LogMessage.METHOD, message)


def _read_all(frames: list[bytes]) -> list[Any]:
    return [_read(frame) for frame in frames]


def test_the_end_of_a_stream_is_the_struct() -> None:
    meta = EventMeta(conversation_id=UUID)
    ended = StreamDisconnected(meta=meta, reason=ODD, code="odd")
    plain = StreamDisconnected(meta=meta, reason=ODD)

    for features, expected in ((FULL, ended), (PLAIN, plain)):
        encoder = StreamEncoder(UUID, features, event_meta=True)
        assert _read(encoder.disconnected(ODD, "odd")) == _notification(StreamDisconnected.METHOD, expected)


@pytest.mark.parametrize("request_id", ODD_IDS)
@pytest.mark.parametrize("event_id", ["0", "", ODD, "%d"])
def test_an_event_of_a_call_is_the_struct_twice(request_id: RequestId, event_id: str) -> None:
    log = _log()
    encoder = CodexEncoder(request_id, FULL, event_id=EventId(event_id))
    delta = log.extend(ItemKind.MESSAGE, ODD)
    for kind, encoded, frames in (
        *((entry.type, entry.encoded, sent(encoder.entry, entry)) for entry in log.events()),
        (delta.item.type, encode_piece(delta), sent(encoder.delta, delta, encode_piece(delta))),
    ):
        event = CodexEvent(meta=CodexMeta(request_id=request_id), id=EventId(event_id), msg=Raw(encoded))
        first, second = frames

        assert _read(first) == _notification(CodexEvent.METHOD, event)
        assert _read(second) == _notification(kind, event)


def test_a_new_turn_changes_the_event_id_of_events_seen_before() -> None:
    (entry,) = log_of(task_started()).events()
    encoder = CodexEncoder(ODD, FULL, event_id=EventId("0"))
    before = sent(encoder.entry, entry)
    encoder.change_event_id(EventId(ODD))

    assert before == sent(CodexEncoder(ODD, FULL, event_id=EventId("0")).entry, entry)
    assert sent(encoder.entry, entry) == sent(CodexEncoder(ODD, FULL, event_id=EventId(ODD)).entry, entry)


def test_only_the_full_version_is_sent_messages_of_the_user() -> None:
    said = next(log_of(user_message("hi")).events())

    assert said.type in hidden_events(PLAIN)
    assert hidden_events(FULL) == frozenset()
    assert StreamEncoder(UUID, PLAIN, event_meta=True).hidden == hidden_events(PLAIN)
    assert CodexEncoder(1, PLAIN, event_id=EventId("1")).hidden == hidden_events(PLAIN)

"""Notifications of the server, including which members are absent."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET, Raw

from kit.builders.events import agent_message, task_started
from kit.builders.json import as_json, from_json
from parley.wire.events import AgentMessageDelta
from parley.wire.ids import ConversationId, EventId, ItemId, Seq
from parley.wire.jsonrpc import RequestId, encode
from parley.wire.notifications import (
    CodexEvent,
    CodexMeta,
    ConversationEvent,
    EventMeta,
    InitialState,
    SnapshotEvent,
    SnapshotMeta,
    StreamDisconnected,
)

UUID = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")
HERE = EventMeta(conversation_id=UUID)
BEGUN = SnapshotMeta(conversation_id=UUID)
STARTED = Raw(encode(task_started()))
SAID = Raw(encode(agent_message("Hello")))
PIECE = Raw(encode(AgentMessageDelta(delta="He")))


def initial_state(meta: SnapshotMeta, *events: SnapshotEvent) -> InitialState:
    return msgspec.convert({"_meta": meta, "initial_state": {"events": events}}, InitialState, from_attributes=True)


def test_the_state_of_a_conversation_in_which_nothing_happened_has_no_events() -> None:
    assert as_json(initial_state(BEGUN)) == {"_meta": {"conversationId": UUID}, "initial_state": {"events": []}}


def test_events_of_the_initial_state_have_nothing_but_their_msg() -> None:
    state = initial_state(BEGUN, SnapshotEvent(msg=STARTED), SnapshotEvent(msg=SAID))

    assert as_json(state) == {
        "_meta": {"conversationId": UUID},
        "initial_state": {
            "events": [{"msg": {"type": "task_started"}}, {"msg": {"type": "agent_message", "message": "Hello"}}]
        },
    }


def test_with_event_meta_the_initial_state_says_where_each_event_stands() -> None:
    state = initial_state(
        SnapshotMeta(conversation_id=UUID, seq=Seq(41)),
        SnapshotEvent(meta=EventMeta(seq=Seq(3)), msg=STARTED),
        SnapshotEvent(meta=EventMeta(item=ItemId("i7"), offset=0), msg=PIECE),
    )

    assert as_json(state) == {
        "_meta": {"conversationId": UUID, "seq": 41},
        "initial_state": {
            "events": [
                {"_meta": {"seq": 3}, "msg": {"type": "task_started"}},
                {"_meta": {"item": "i7", "offset": 0}, "msg": {"type": "agent_message_delta", "delta": "He"}},
            ]
        },
    }


def test_a_live_event_is_its_msg_alone() -> None:
    assert as_json(ConversationEvent(msg=SAID)) == {"msg": {"type": "agent_message", "message": "Hello"}}


def test_a_live_event_names_its_conversation_while_several_are_streamed() -> None:
    assert as_json(ConversationEvent(meta=HERE, msg=STARTED)) == {
        "_meta": {"conversationId": UUID},
        "msg": {"type": "task_started"},
    }


def test_with_event_meta_a_live_event_has_its_position() -> None:
    event = ConversationEvent(meta=EventMeta(conversation_id=UUID, seq=Seq(41)), msg=SAID)

    assert as_json(event) == {
        "_meta": {"conversationId": UUID, "seq": 41},
        "msg": {"type": "agent_message", "message": "Hello"},
    }


def test_with_event_meta_a_live_delta_has_its_item_and_the_place_where_it_begins() -> None:
    meta = EventMeta(conversation_id=UUID, item=ItemId("i7"), offset=120)

    assert as_json(ConversationEvent(meta=meta, msg=PIECE)) == {
        "_meta": {"conversationId": UUID, "item": "i7", "offset": 120},
        "msg": {"type": "agent_message_delta", "delta": "He"},
    }


@pytest.mark.parametrize("request_id", [0, -1, 2**63 - 1, "7", ""])
def test_an_event_of_a_codex_call_names_the_call_with_an_id_of_the_same_type(request_id: RequestId) -> None:
    event = CodexEvent(meta=CodexMeta(request_id=request_id), id=EventId("0"), msg=STARTED)

    assert as_json(event) == {"_meta": {"requestId": request_id}, "id": "0", "msg": {"type": "task_started"}}


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (StreamDisconnected.TAKEN_OVER, "New stream() took over"),
        (StreamDisconnected.DELETED, "Conversation deleted"),
        (StreamDisconnected.SHUTTING_DOWN, "Server is shutting down"),
    ],
)
def test_a_stream_that_the_server_ends_says_why(reason: str, text: str) -> None:
    assert as_json(StreamDisconnected(meta=HERE, reason=reason)) == {
        "_meta": {"conversationId": UUID},
        "reason": text,
    }


def test_methods_are_those_of_the_protocol() -> None:
    assert (CodexEvent.METHOD, InitialState.METHOD, StreamDisconnected.METHOD) == (
        "codex/event",
        "notifications/initial_state",
        "notifications/stream_disconnected",
    )


def test_a_client_reads_a_live_event_back_with_its_place() -> None:
    event = from_json(ConversationEvent, {"_meta": {"seq": 41}, "msg": {"type": "task_started"}})

    assert (event.meta, bytes(event.msg)) == (EventMeta(seq=Seq(41)), b'{"type": "task_started"}')


def test_a_client_reads_a_plain_initial_state_back() -> None:
    state = from_json(
        InitialState,
        {"_meta": {"conversationId": UUID}, "initial_state": {"events": [{"msg": {"type": "task_started"}}]}},
    )

    [event] = state.initial_state.events
    assert state.meta == BEGUN
    assert (event.meta, bytes(event.msg)) == (UNSET, b'{"type": "task_started"}')

"""Merging the changes of several nodes to one session (`parley.server.http.session_state`)."""

from __future__ import annotations

from msgspec.structs import replace

from parley.server.http.session_state import SessionState, merge_states
from parley.server.session import StreamState
from parley.wire.ids import ConversationId
from parley.wire.mcp import ClientCapabilities, Implementation, InitializeParams

A, B, C = (
    StreamState(ConversationId(name), request=number, number=number, after=0, event_meta=True, as_log=False)
    for number, name in enumerate("abc", 1)
)
BEGUN = InitializeParams(
    protocol_version="2025-11-25",
    capabilities=ClientCapabilities(),
    client_info=Implementation(name="test", version="1"),
)
BASE = SessionState(initialize=BEGUN, streams=(A,), last_stream=1, resources=("x", "y"))


def test_changes_of_both_sides_are_kept() -> None:
    own = replace(BASE, streams=(A, B), last_stream=2, resources=("y", "z"), log_level="error")
    stored = replace(BASE, streams=(C,), last_stream=3, resources=("x", "y", "w"), has_listed_resources=True)

    assert merge_states(own, base=BASE, stored=stored) == replace(
        BASE,
        streams=(C, B),
        last_stream=3,
        resources=("y", "w", "z"),
        log_level="error",
        has_listed_resources=True,
    )


def test_without_changes_of_others_the_own_state_is_stored() -> None:
    own = replace(BASE, streams=(B,), last_stream=2, resources=())

    assert merge_states(own, base=BASE, stored=BASE) == own


def test_two_streams_with_the_same_number_cannot_be_merged() -> None:
    other = replace(BASE, streams=(A, replace(C, number=2)), last_stream=2)

    assert merge_states(replace(BASE, streams=(A, B), last_stream=2), base=BASE, stored=other) is None


def test_an_own_stream_that_was_perhaps_stored_and_has_ended_is_removed() -> None:
    stored = replace(BASE, streams=(A, B), last_stream=2)

    merged = merge_states(BASE, base=BASE, stored=stored, own_streams={B.conversation})

    assert merged is not None
    assert merged.streams == (A,)

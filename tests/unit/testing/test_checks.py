"""The messages that `check_message` accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parley.testing import check_message

ID = "11111111-1111-4111-8111-111111111111"
STARTED = {"type": "task_started"}


def frame(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


GOOD: dict[str, dict[str, Any]] = {
    "an answer to ping": {"id": 1, "result": {}},
    "an error": {"id": "x", "error": {"code": -32601, "message": "Method not found"}},
    "an answer to initialize": {
        "id": 0,
        "result": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "parley", "title": "Parley", "version": "1"},
        },
    },
    "a list of tools": {
        "id": 1,
        "result": {"tools": [{"name": "codex", "title": "Codex", "inputSchema": {"type": "object"}}]},
    },
    "a result": {"id": 1, "result": {"content": [{"type": "text", "text": "Done"}]}},
    "a failed turn": {
        "id": 1,
        "result": {"error": "no", "content": [{"type": "text", "text": "no"}], "isError": True},
    },
    "a live event": {"method": "task_started", "params": {"msg": STARTED}},
    "a live event with its place": {
        "method": "task_started",
        "params": {"_meta": {"conversationId": ID, "seq": 4}, "msg": STARTED},
    },
    "the first of a pair": {
        "method": "codex/event",
        "params": {"_meta": {"requestId": 1}, "id": "1", "msg": STARTED},
    },
    "the second of a pair": {
        "method": "task_started",
        "params": {"_meta": {"requestId": 1}, "id": "1", "msg": STARTED},
    },
    "a snapshot": {
        "method": "notifications/initial_state",
        "params": {
            "_meta": {"conversationId": ID, "seq": 4},
            "initial_state": {"events": [{"_meta": {"seq": 2}, "msg": STARTED}]},
        },
    },
    "the end of a stream": {
        "method": "notifications/stream_disconnected",
        "params": {"_meta": {"conversationId": ID}, "reason": "New stream() took over"},
    },
    "a question": {
        "id": 0,
        "method": "elicitation/create",
        "params": {
            "message": "May I?",
            "requestedSchema": {"type": "object", "properties": {}},
            "codex_elicitation": "exec-approval",
        },
    },
    "progress": {"method": "notifications/progress", "params": {"progressToken": "p", "progress": 1}},
    "a cancelled question": {"method": "notifications/cancelled", "params": {"requestId": 0}},
}

BAD: dict[str, dict[str, Any]] = {
    "a result that is no object": {"id": 1, "result": []},
    "content of no known kind": {"id": 1, "result": {"content": [{"type": "smell"}]}},
    "an event without its fields": {"method": "agent_message", "params": {"msg": {"type": "agent_message"}}},
    "an event with a field too many": {"method": "task_started", "params": {"msg": {**STARTED, "extra": 1}}},
    "an event under another's name": {"method": "task_complete", "params": {"msg": STARTED}},
    "an event of an unknown type": {"method": "task_started", "params": {"msg": {"type": "novelty"}}},
    "params with a member too many": {"method": "task_started", "params": {"msg": STARTED, "seq": 1}},
    "a broken event in a snapshot": {
        "method": "notifications/initial_state",
        "params": {"_meta": {"conversationId": ID}, "initial_state": {"events": [{"msg": {"type": "error"}}]}},
    },
    "a notification with an unknown method": {"method": "notifications/novelty", "params": {}},
    "a request with an unknown method": {"id": 1, "method": "novelty", "params": {}},
    "progress without its token": {"method": "notifications/progress", "params": {"progress": 1}},
}


@pytest.mark.parametrize("message", GOOD.values(), ids=GOOD)
def test_a_good_message_passes(message: dict[str, Any]) -> None:
    check_message(frame(**message))


@pytest.mark.parametrize("message", BAD.values(), ids=BAD)
def test_a_bad_message_does_not_pass_and_is_shown(message: dict[str, Any]) -> None:
    bad = frame(**message)
    with pytest.raises(AssertionError) as failure:
        check_message(bad)
    assert bad.decode() in str(failure.value)


@pytest.mark.parametrize("bad", [b"", b"nonsense", b"[]", b'{"id": 1, "result": {}}'], ids=repr)
def test_a_line_that_is_no_message_does_not_pass(bad: bytes) -> None:
    with pytest.raises(AssertionError):
        check_message(bad)

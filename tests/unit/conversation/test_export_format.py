"""An exported conversation is imported byte for byte, and an incomplete file is refused with a line number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from kit.builders.events import agent_message, task_complete, task_started, text, user_message
from kit.builders.logs import AT, log_of
from kit.builders.records import (
    call,
    call_output,
    command_output,
    model_asked,
    model_said,
    opaque,
    settings_chosen,
    turn_ended,
    turn_started,
)
from parley.conversation.export_format import ExportHead, entry_line, head_line, read_entries, read_head
from parley.conversation.history import OutputItem, UserItem
from parley.conversation.log import Entry, Log, LogPayload
from parley.conversation.projections import Projections
from parley.conversation.state import Phase
from parley.errors import BadFile
from parley.wire.ids import CallId, ConversationId, Seq

ID = ConversationId(str(UUID(int=7)))

ONE_TURN: Sequence[LogPayload] = (
    settings_chosen(),
    turn_started(),
    task_started(),
    user_message("go"),
    model_asked(),
    model_said(opaque('{"type": "reasoning",\n "encrypted_content": "x"}')),
    model_said(call("c", '{"command": ["ls"]}')),
    command_output("c", bytes(range(256)) * 40),
    call_output("c", "seven files"),
    agent_message("Done"),
    task_complete("Done"),
    turn_ended(),
)


def head(last: int) -> ExportHead:
    return ExportHead(
        conversation_id=ID,
        last=Seq(last),
        exported_at=AT,
        archived=True,
        title="go",
        cwd="/project",
        model="mock-model",
    )


def written(log: Log) -> list[bytes]:
    return [head_line(head(log.last)), *map(entry_line, log.entries)]


def read(lines: Sequence[bytes]) -> tuple[list[Entry], Projections]:
    projections = Projections()
    entries = read_entries(read_head(lines[0]), enumerate(lines[1:], start=2), projections)
    return list(entries), projections


def refusal(lines: Sequence[bytes]) -> str:
    with pytest.raises(BadFile) as caught:
        read(lines)
    return str(caught.value)


def changed(line: bytes, **members: Any) -> bytes:
    return json.dumps({**json.loads(line), **members}).encode() + b"\n"


# --- export and import ---------------------------------------------------------------------------


def test_a_log_comes_back_as_the_same_lines() -> None:
    lines = written(log_of(*ONE_TURN))

    entries, _ = read(lines)

    assert [entry_line(entry) for entry in entries] == lines[1:]
    assert all(line.count(b"\n") == 1 for line in lines)


def test_command_output_is_exported_byte_for_byte() -> None:
    log = log_of(*ONE_TURN)

    entries, _ = read(written(log))

    assert [entry.output for entry in entries] == [entry.output for entry in log.entries]


def test_an_imported_log_has_the_same_projections() -> None:
    _, projections = read(written(log_of(*ONE_TURN)))

    assert (projections.state.phase, projections.state.title, projections.state.cwd) == (
        Phase.IDLE,
        "go",
        "/project",
    )
    items = projections.history.items
    assert (items[0], items[-1]) == (UserItem((text("go"),)), OutputItem(CallId("c"), "seven files"))


def test_the_first_line_says_what_the_file_is() -> None:
    line = head_line(head(12))

    assert json.loads(line) == {
        "parley_export": 1,
        "conversation_id": ID,
        "last": 12,
        "exported_at": AT,
        "archived": True,
        "title": "go",
        "cwd": "/project",
        "model": "mock-model",
    }
    assert read_head(line) == head(12)


def test_a_turn_may_be_running_at_the_end() -> None:
    _, projections = read(written(log_of(*ONE_TURN[:8])))

    assert projections.state.phase is Phase.RUNNING


def test_an_event_of_a_newer_version_is_kept_as_it_came() -> None:
    lines = written(log_of(*ONE_TURN))
    lines[10] = changed(lines[10], type="agent_smiled", body={"type": "agent_smiled", "how": "broadly"})

    entries, _ = read(lines)

    assert (entries[9].type, json.loads(entries[9].body)) == (
        "agent_smiled",
        {"type": "agent_smiled", "how": "broadly"},
    )


def test_the_last_line_end_may_be_missing() -> None:
    lines = written(log_of(*ONE_TURN))

    entries, _ = read([*lines[:-1], lines[-1].rstrip(b"\n")])

    assert len(entries) == len(ONE_TURN)


# --- refused files -------------------------------------------------------------------------------


def test_a_line_of_brackets_is_refused() -> None:
    lines = written(log_of(*ONE_TURN))

    assert refusal([*lines[:3], b"[" * 100_000 + b"\n"]).startswith("line 4: not an entry: ")


def test_a_file_that_ends_between_two_lines_is_refused() -> None:
    assert refusal(written(log_of(*ONE_TURN))[:5]) == "line 5: the file ends here, after 4 of 12 entries"


def test_a_file_that_has_only_its_head_is_refused() -> None:
    assert refusal(written(log_of(*ONE_TURN))[:1]) == "line 1: the file ends here, after 0 of 12 entries"


def test_a_file_that_ends_within_a_line_is_refused() -> None:
    lines = written(log_of(*ONE_TURN))[:5]
    said = refusal([*lines[:-1], lines[-1][:20]])

    assert said.startswith("line 5: not an entry: ")
    assert said.endswith(", and the file ends within the line")


def test_a_position_that_was_not_to_come_is_refused() -> None:
    lines = written(log_of(*ONE_TURN))

    assert refusal([*lines[:3], *lines[4:]]) == "line 4: expected position 3, found 4"
    assert refusal([*lines[:3], *lines[2:]]) == "line 4: expected position 3, found 2"


def test_more_entries_than_were_announced_are_refused() -> None:
    lines = written(log_of(*ONE_TURN))

    said = refusal([head_line(head(3)), *lines[1:]])

    assert said == "line 5: more entries than the 3 that the first line announces"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "not the header of a Parley export"),
        (b"[1]\n", "not the header of a Parley export"),
        (b'{"id": "x", "timestamp": "y"}\n', "not the header of a Parley export"),
        (b"\xff\xfe\n", "not the header of a Parley export"),
        (b'{"parley_export": 2, "new": true}\n', "an export in format 2; this version of Parley reads format 1"),
        (b'{"parley_export": 1}\n', "invalid header: Object missing required field `conversation_id`"),
        (changed(head_line(head(1)), conversation_id="../x"), "'../x' is not the id of a conversation"),
        (changed(head_line(head(1)), last=0), "the export has no entries"),
    ],
)
def test_a_head_that_cannot_be_read_is_refused(line: bytes, why: str) -> None:
    assert refusal([line]) == f"line 1: {why}"


@pytest.mark.parametrize(
    ("place", "members", "why"),
    [
        (
            2,
            {"type": "turn_dreamt", "body": {"record": "turn_dreamt"}},
            "invalid body of 'turn_dreamt': a newer version of Parley wrote it",
        ),
        (
            2,
            {"body": {"record": "turn_started"}},
            "invalid body of 'turn_started': Object missing required field `event_id`",
        ),
        (
            2,
            {"body": {"record": "turn_ended", "why": "done", "message": None}},
            "invalid body of 'turn_started': it is of type 'turn_ended'",
        ),
        (
            3,
            {"body": {"type": "task_complete", "last_agent_message": None}},
            "invalid body of 'task_started': it is of type 'task_complete'",
        ),
        (3, {"type": "hm", "body": {"type": "ha"}}, "invalid body of 'hm': it is of type 'ha'"),
        (
            8,
            {"body": {"record": "command_output", "call_id": "c", "streams": 1}},
            "invalid body of 'command_output': Expected `array`, got `int` - at `$.streams`",
        ),
        (
            4,
            {"type": "turn_started", "is_event": False, "body": {"record": "turn_started", "event_id": "2"}},
            "contradicts earlier lines: TurnStarted while running",
        ),
        (
            9,
            {"body": {"record": "call_output", "call_id": "d", "output": ""}},
            "contradicts earlier lines: no open call 'd'",
        ),
        (
            9,
            {"type": "turn_ended", "body": {"record": "turn_ended", "why": "done", "message": None}},
            "contradicts earlier lines: the turn ends without an output of the call 'c'",
        ),
    ],
)
def test_an_entry_that_does_not_fit_is_refused(place: int, members: dict[str, Any], why: str) -> None:
    lines = written(log_of(*ONE_TURN))
    lines[place] = changed(lines[place], **members)

    assert refusal(lines) == f"line {place + 1}: {why}"

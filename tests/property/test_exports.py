"""Any file is either refused with a line number, or imported as a valid log."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kit.builders.events import agent_message, task_complete, task_started, user_message
from kit.builders.logs import AT
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
from kit.builders.rollouts import (
    assistant,
    function_call,
    function_call_output,
    local_shell_call,
    reasoning,
    rollout,
    user,
)
from parley.conversation.export_format import ExportHead, entry_line, head_line, read_entries, read_head
from parley.conversation.log import Entry, Log, LogPayload
from parley.conversation.projections import Projections
from parley.conversation.rollout import RolloutReader, read_session
from parley.conversation.state import Phase
from parley.errors import BadFile
from parley.wire.ids import ConversationId

texts = st.text(st.characters(codec="utf-8"), max_size=8)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Generate logs of some turns, the last of which may be running."""
    payloads: list[LogPayload] = [settings_chosen()]
    turns = draw(st.integers(1, 3))
    for number in range(turns):
        payloads += [
            turn_started(str(number + 1)),
            task_started(),
            user_message(draw(texts), message_id=f"m{number}"),
        ]
        payloads.append(model_asked())
        payloads.append(model_said(opaque(json.dumps({"type": "reasoning", "x": draw(texts)}, indent=1))))
        payloads.append(model_said(call("c", draw(texts))))
        payloads.append(command_output("c", draw(st.binary(max_size=40))))
        payloads.append(call_output("c", draw(texts)))
        payloads.append(agent_message(draw(texts)))
        payloads += [task_complete(None), turn_ended()]
    log = Log()
    kept = draw(st.integers(1, len(payloads)))
    for one in payloads[:kept]:
        log.append((one,), at=AT + draw(st.floats(0, 1e6)))
    return log


def written(log: Log) -> list[bytes]:
    head = ExportHead(
        conversation_id=ConversationId(str(UUID(int=1))),
        last=log.last,
        exported_at=AT,
        archived=False,
        title="",
        cwd="",
        model="",
    )
    return [head_line(head), *map(entry_line, log.entries)]


def read(data: bytes) -> tuple[list[Entry], Projections]:
    lines = BytesIO(data).readlines() or [b""]
    projections = Projections()
    return list(read_entries(read_head(lines[0]), enumerate(lines[1:], start=2), projections)), projections


@given(logs())
def test_a_log_comes_back_as_the_same_lines(log: Log) -> None:
    lines = written(log)

    entries, _ = read(b"".join(lines))

    assert [entry_line(entry) for entry in entries] == lines[1:]


@given(logs(), st.data())
def test_a_file_that_was_tampered_with_is_refused_or_is_a_log(log: Log, data: st.DataObject) -> None:
    whole = b"".join(written(log))
    place = data.draw(st.integers(0, len(whole)))
    inserted = data.draw(st.one_of(st.binary(max_size=3), st.sampled_from([b"0", b"}", b'"', b"\n", b"null"])))
    tampered = whole[:place] + inserted + whole[place + data.draw(st.integers(0, 60)) :]

    try:
        entries, projections = read(tampered)
    except BadFile as error:
        refused_at = error.line
        entries, projections = [], Projections()
    else:
        refused_at = 1
    again = Projections()
    again.replay(entries)

    assert 1 <= refused_at <= tampered.count(b"\n") + 1
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert again.history.items == projections.history.items


ids = st.sampled_from(["a", "b", "c"])
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
items: st.SearchStrategy[Any] = st.one_of(
    st.builds(user, texts),
    st.builds(assistant, texts),
    st.builds(reasoning, texts),
    st.builds(function_call, ids, texts),
    st.builds(local_shell_call, st.none() | ids, st.none() | ids),
    st.builds(function_call_output, ids, texts),
    st.just({"record_type": "state"}),
    anything,
)


@st.composite
def mangled(draw: st.DrawFn, item: st.SearchStrategy[Any] = items) -> Any:
    """Generate an item, possibly with another value in one of its members."""
    one = draw(item)
    if isinstance(one, dict) and one and draw(st.integers(0, 3)) == 0:
        return {**one, draw(st.sampled_from(sorted(one))): draw(anything)}
    return one


@given(st.lists(mangled(), max_size=12))
def test_whatever_was_recorded_becomes_a_log_in_which_every_call_has_its_output(recorded: list[Any]) -> None:
    lines = rollout(*recorded)
    reader = RolloutReader(read_session(lines[0]))
    log = Log()
    log.append((settings_chosen(), *reader.read(enumerate(lines[1:], start=2))), at=AT)

    entries, projections = read(b"".join(written(log)))

    assert len(entries) == log.last
    assert (projections.state.phase, projections.history.unanswered, projections.history.waiting) == (
        Phase.IDLE,
        (),
        [],
    )


@given(st.lists(items, max_size=4), st.binary(max_size=12), st.booleans())
def test_bytes_in_a_recording_are_refused_or_left_out(recorded: list[Any], noise: bytes, ends: bool) -> None:
    lines = [*rollout(*recorded), noise.replace(b"\n", b"") + (b"\n" if ends else b"")]
    reader = RolloutReader(read_session(lines[0]))

    projections, refused_at = Projections(), 0
    try:
        payloads = list(reader.read(enumerate(lines[1:], start=2)))
    except BadFile as error:
        payloads, refused_at = [], error.line
    for one in payloads:
        projections.apply(one, at=AT)

    assert refused_at in (0, len(lines))
    assert projections.state.phase is Phase.IDLE

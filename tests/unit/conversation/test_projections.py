"""Projections that are computed from a stored log are equal to the original projections, at every position."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.builders.approvals import approval_settlement, command_approval, limit_approval, patch_approval
from kit.builders.events import (
    agent_message,
    error,
    exec_command_begin,
    exec_command_end,
    task_complete,
    task_started,
    text,
    token_count,
    user_message,
)
from kit.builders.logs import AT
from kit.builders.records import (
    call,
    call_output,
    command_output,
    history_compacted,
    input_read,
    input_refused,
    message,
    message_joined,
    message_queued,
    model_asked,
    model_said,
    opaque,
    queued_message_edited,
    queued_message_removed,
    renamed,
    response_used,
    session_granted,
    settings_chosen,
    tokens_estimated,
    turn_ended,
    turn_started,
)
from parley.conversation.errors import EarlierEntriesNeeded
from parley.conversation.log import Entry, Log, LogPayload
from parley.conversation.projections import Projections
from parley.conversation.records import RECORD_TYPES, QueuePaused, QueueResumed, record_type
from parley.conversation.settings_history import SettingsChange
from parley.conversation.state import Phase
from parley.wire.events import EventBase, UserMessage
from parley.wire.ids import ConversationId, MessageId, Seq
from parley.wire.items import ImageItem
from parley.wire.principals import PrincipalRef

CONVERSATION = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")

steps = st.one_of(
    st.tuples(st.just("say"), st.booleans(), st.booleans(), st.integers(-1, 3)),
    st.tuples(st.just("call"), st.sampled_from("ab")),
    st.tuples(st.just("output")),
    st.tuples(st.just("ask"), st.sampled_from(["command", "patch", "limit"])),
    st.tuples(st.just("settle"), st.sampled_from(["approved", "denied", "timed_out", "dropped"])),
    st.tuples(st.just("end"), st.sampled_from(["done", "failed", "interrupted", "restarted", "stopped"])),
    st.tuples(st.just("other"), st.integers(0, 18)),
)


class Scribe:
    """Writes a valid log. An entry that would be invalid at its position is left out."""

    def __init__(self) -> None:
        self.log: list[LogPayload] = [settings_chosen(model="m0")]
        self._live = Projections()
        self._live.apply(self.log[0], at=AT)
        self._said = self._asked = 0

    def do(self, step: tuple[Any, ...]) -> None:
        phase = self._live.state.phase
        match step:
            case ("say", reads, chooses, parent):
                self._say(reads=reads, chooses=chooses, parent=parent)
            case ("call", call_id) if phase is Phase.RUNNING:
                self._write(model_said(message("Hm")), model_said(call(call_id)), model_said(opaque()))
            case ("output",) if self._live.history.unanswered:
                self._write(call_output(self._live.history.unanswered[-1], "ok"))
            case ("ask", what) if phase is Phase.RUNNING:
                self._asked += 1
                self._write(*_approval(what, self._asked))
            case ("settle", decision) if phase is Phase.ASKING:
                self._write(approval_settlement(self._asked, decision))
            case ("end", why) if phase is Phase.RUNNING and not self._live.history.unanswered:
                self._write(error("so"), turn_ended(why, "so"))
            case ("other", number):
                self._other(number)
            case _:
                pass

    def _say(self, *, reads: bool, chooses: bool, parent: int) -> None:
        idle = self._live.state.phase is Phase.IDLE
        self._said += 1
        name = f"m{self._said}"
        started = turn_started(str(self._said), PrincipalRef(name="ada", token_id=name))
        entries: list[LogPayload] = [started, task_started()] if idle else [message_joined(name)]
        before = (
            [CONVERSATION, *self._live.state.messages][parent] if idle and parent >= 0 and self._said > 3 else None
        )
        entries.append(user_message(f"input {self._said}", message_id=name, parent=before))
        if reads:
            entries.append(input_read(text("read"), ImageItem(file_id="f"), message_id=name))
        if chooses:
            entries.append(settings_chosen(model=name, asked_by=name))
        self._write(*entries)

    def _other(self, number: int) -> None:
        others: tuple[tuple[LogPayload, ...], ...] = (
            (renamed(f"title {self._said}"),),
            (token_count(input_tokens=3, output_tokens=2, cached=1),),
            (agent_message("Hello"),),
            (exec_command_begin("a", "make"),),
            (command_output("a", b"\x00\xff"), exec_command_end("a", "out")),
            (task_complete("Hello"),),
            (model_asked(),),
            (input_read(text("the picture")),),
            (input_refused(),),
            (tokens_estimated(5),),
            (session_granted(),),
            (response_used(token_count(input_tokens=3, output_tokens=2, cached=1)),),
            (message_queued(f"m{self._said + 1}"),),
            (message_queued("q"), queued_message_edited("q")),
            (queued_message_removed("q"),),
            (QueuePaused(),),
            (QueueResumed(),),
        )
        if number < len(others):
            if others[number] == (model_asked(),) and self._live.history.unanswered:
                return  # the model is asked again only when each call has its output
            self._write(*others[number])
        elif cuts := self._live.history.cuts:
            self._write(history_compacted("before", replaced=cuts[-1]))

    def _write(self, *payloads: LogPayload) -> None:
        for one in payloads:
            self._live.apply(one, at=AT)
        self.log += payloads


def _approval(what: str, number: int) -> tuple[LogPayload, LogPayload]:
    match what:
        case "command":
            return command_approval(number, "make")
        case "patch":
            return patch_approval(number)
        case _:
            return limit_approval(number)


def contents_of(projections: Projections) -> dict[str, Any]:
    """Return everything that can be read from the projections."""
    state, history, approvals, settings_history = (
        projections.state,
        projections.history,
        projections.approvals,
        projections.settings_history,
    )
    names = [None, MessageId(CONVERSATION), *state.messages]
    return {
        "state": {name: getattr(state, name) for name in state.__slots__},
        "history": (history.items, history.waiting, history.open_calls, history.cuts, history.has_new_attachments),
        "questions": (approvals.open, approvals.settled),
        "usage": {name: getattr(projections.usage, name) for name in projections.usage.__slots__},
        "wanted": [chain(settings_history.after(name, CONVERSATION)) for name in names]
        + [chain(settings_history.of_turn)],
        "queue": projections.queue.saved(),
    }


def chain(change: SettingsChange | None) -> list[tuple[str | None, dict[str, Any]]]:
    return [] if change is None else [*chain(change.before), (change.by, change.asked)]


def stored(entry: Entry) -> Entry:
    """Return the entries as a store returns them."""
    return Entry.stored(entry.seq, entry.at, entry.type, is_event=entry.is_event, body=entry.body)


@given(script=st.lists(steps, max_size=40), stop=st.integers(0, 120))
def test_replaying_a_stored_log_gives_the_same_projections(script: list[tuple[Any, ...]], stop: int) -> None:
    builder = Scribe()
    for step in script:
        builder.do(step)
    live, log = Projections(), Log()
    for number, one in enumerate(builder.log[:stop]):
        live.apply(one, at=AT + number)
        log.append([one], at=AT + number)

    again = Projections()
    again.replay(stored(entry) for entry in log.entries)

    assert contents_of(again) == contents_of(live)


def contents_after_checkpoint(projections: Projections) -> dict[str, Any]:
    """Return the result of `contents_of` without the messages and settlements before the checkpoint.

    The store finds those.
    """
    state, settings_history = projections.state, projections.settings_history
    by_key = ("inputs", "messages")
    return contents_of(projections) | {
        "state": {name: getattr(state, name) for name in state.__slots__ if name not in by_key},
        "questions": projections.approvals.open,
        "wanted": [chain(one) for one in (settings_history.first, settings_history.now, settings_history.of_turn)],
        "position": projections.position,
    }


@given(script=st.lists(steps, max_size=40), at=st.integers(0, 120))
def test_a_checkpoint_and_later_entries_say_what_the_whole_log_says(script: list[tuple[Any, ...]], at: int) -> None:
    builder = Scribe()
    for step in script:
        builder.do(step)
    log, live = Log(), Projections()
    log.append(builder.log, at=AT)
    live.replay(log.entries[:at])
    data = live.checkpoint()
    assert (data is not None) == live.is_settled
    if data is None:
        return

    restored = Projections.restored(data)
    try:
        restored.replay(log.entries[at:])
    except EarlierEntriesNeeded:  # a later message begins a branch at a message before the checkpoint
        assert any(isinstance(one, UserMessage) and one.parent_message_id for one in builder.log[at:])
        return
    for seq in restored.history.missing:
        restored.supply(log.entries[seq - 1])
    live.replay(log.entries[at:])

    assert contents_after_checkpoint(restored) == contents_after_checkpoint(live)


def test_dropped_texts_can_be_supplied_again() -> None:
    builder = Scribe()
    for step in (("say", True, True, -1), ("call", "a"), ("output",), ("end", "done"), ("say", False, False, -1)):
        builder.do(step)
    projections, log = Projections(), Log()
    log.append(builder.log, at=AT)
    projections.replay(log.entries)
    before = contents_of(projections)
    projections.history.drop_texts()
    for seq in projections.history.missing:
        projections.supply(log.entries[seq - 1])

    assert (contents_of(projections), projections.history.missing) == (before, [])


@pytest.mark.parametrize("data", [b"", b"garbage", zlib.compress(b"\x90"), zlib.compress(b"\x91\x02")])
def test_invalid_checkpoints_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Projections.restored(data)


def test_a_checkpoint_of_a_long_conversation_is_small() -> None:
    """The log has 100,000 entries, and no summary has replaced any of them."""
    projections, number = Projections(), 0
    projections.apply(settings_chosen(), at=AT)
    while projections.position < 100_000:
        number += 1
        started = (turn_started(str(number)), user_message("Hello?", message_id=f"m{number}"), model_asked())
        for one in (*started, model_said(message("Hello.")), turn_ended()):
            projections.apply(one, at=AT)
    data = projections.checkpoint()

    assert data is not None
    assert len(data) < 64 * 1024
    assert Projections.restored(data).state.next_event_id() == str(number + 1)


@given(script=st.lists(steps, max_size=40), at=st.integers(0, 120), forgotten=st.integers(0, 120))
def test_a_copy_is_independent_and_says_the_same(script: list[tuple[Any, ...]], at: int, forgotten: int) -> None:
    builder = Scribe()
    for step in script:
        builder.do(step)
    log, live, whole = Log(), Projections(), Projections()
    log.append(builder.log, at=AT)
    live.replay(log.entries[:at])
    if not live.is_settled:
        return
    copied, before = live.copy(), live.checkpoint()

    live.forget(Seq(min(at, forgotten)))
    try:
        live.replay(log.entries[at:])
    except EarlierEntriesNeeded:
        assert any(isinstance(one, UserMessage) and one.parent_message_id for one in builder.log[at:])
    else:
        whole.replay(log.entries)
        assert contents_after_checkpoint(live) == contents_after_checkpoint(whole)
    assert copied.checkpoint() == before
    copied.replay(log.entries[at:])
    for seq in copied.history.missing:
        copied.supply(log.entries[seq - 1])
    whole = Projections()
    whole.replay(log.entries)
    assert contents_of(copied) == contents_of(whole)


@pytest.mark.parametrize("is_event", [True, False])
def test_entries_of_a_newer_version_change_no_projection(is_event: bool) -> None:
    log = Log()
    log.append([turn_started(), task_started(), user_message("go")], at=AT)
    before = Projections()
    before.replay(log.entries)
    projections = Projections()
    projections.replay([*log.entries, Entry(Seq(4), AT + 9, "of_tomorrow", is_event, b'{"why":[1,2]}')])

    assert projections.state.updated_at == AT + 9
    projections.state.skip(Seq(3), at=AT)
    assert contents_of(projections) == contents_of(before)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"record":"turn_ended"}'])
def test_unreadable_lines_are_refused(body: bytes) -> None:
    projections = Projections()
    with pytest.raises(ValueError):
        projections.replay([Entry(Seq(1), AT, "turn_ended", False, body)])


def test_every_record_is_read_again() -> None:
    """Records that no projection depends on are exempt, such as the output of commands."""
    written = {record_type(one) for one in _everything() if not isinstance(one, EventBase)}

    assert written == set(RECORD_TYPES)


def _everything() -> list[LogPayload]:
    builder = Scribe()
    says = ("say", True, True, -1)
    for step in (says, says, ("call", "a"), ("output",), ("ask", "command"), ("settle", "denied")):
        builder.do(step)
    for number in range(18):
        builder.do(("other", number))
    builder.do(("end", "done"))
    return builder.log

"""The queue of a conversation, as a projection of its log."""

from __future__ import annotations

import pytest

from kit.builders.events import task_started, user_message
from kit.builders.records import (
    message_queued,
    queued_message_edited,
    queued_message_removed,
    turn_ended,
    turn_started,
)
from parley.conversation.log import LogPayload
from parley.conversation.projections import Projections
from parley.conversation.queue import QueuedMessage
from parley.conversation.records import QueuePaused, QueueResumed
from parley.wire.events import QueueChanged, TurnEndReason
from parley.wire.ids import MessageId, Seq


def projected(*payloads: LogPayload) -> Projections:
    projections = Projections()
    for one in payloads:
        projections.apply(one, at=1.0)
    return projections


RUNS = (turn_started("1"), task_started())


def test_messages_wait_in_order_until_their_turn_begins() -> None:
    queued = projected(*RUNS, message_queued("a"), message_queued("b"), turn_ended())
    begun = projected(
        *RUNS,
        message_queued("a"),
        message_queued("b"),
        turn_ended(),
        turn_started("2"),
        user_message("go", message_id="a"),
    )

    assert list(queued.queue.waiting) == ["a", "b"]
    assert queued.is_queue_pending
    assert list(begun.queue.waiting) == ["b"]
    assert not begun.is_queue_pending


def test_an_edit_moves_the_content_and_not_the_place() -> None:
    queue = projected(*RUNS, message_queued("a"), message_queued("b"), queued_message_edited("a")).queue

    assert queue.waiting == {
        MessageId("a"): QueuedMessage(Seq(3), Seq(5)),
        MessageId("b"): QueuedMessage(Seq(4), Seq(4)),
    }


def test_a_removed_message_stays_known() -> None:
    queue = projected(*RUNS, message_queued("a"), queued_message_removed("a")).queue

    assert (queue.waiting, list(queue.known)) == ({}, ["a"])


@pytest.mark.parametrize(
    ("why", "is_paused"),
    [("done", False), ("failed", True), ("interrupted", True), ("stopped", True), ("restarted", True)],
)
def test_only_a_complete_turn_lets_the_queue_go_on(why: TurnEndReason, is_paused: bool) -> None:
    projections = projected(*RUNS, message_queued("a"), turn_ended(why))

    assert (projections.queue.is_paused, projections.is_queue_pending) == (is_paused, not is_paused)


@pytest.mark.parametrize("after", [message_queued("b"), QueueResumed(), turn_started("2")])
def test_a_paused_queue_goes_on_after_a_message_a_resume_or_a_turn(after: LogPayload) -> None:
    before = (*RUNS, message_queued("a"), turn_ended("interrupted"), QueuePaused())

    assert projected(*before).queue.is_paused
    assert not projected(*before, after).queue.is_paused


def test_the_event_shows_the_queue_after_the_change() -> None:
    queue = projected(*RUNS, message_queued("a"), message_queued("b"), turn_ended("failed")).queue

    assert queue.changed() == QueueChanged(messages=(MessageId("a"), MessageId("b")), paused=True)
    assert queue.changed(removed=MessageId("a")) == QueueChanged(messages=(MessageId("b"),), paused=True)
    assert queue.changed(added=MessageId("c")).messages == ("a", "b", "c")
    assert not queue.changed(added=MessageId("c")).paused


def test_a_copy_of_the_conversation_has_no_queue() -> None:
    assert projected(message_queued("")).queue.waiting == {}

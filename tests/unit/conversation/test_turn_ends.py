"""The last entries of a turn are the same for every way in which a turn can end, and in the same order."""

from __future__ import annotations

from typing import get_args

import pytest

from kit.builders.records import call_output, command_output, turn_ended
from parley.conversation.history import ABORTED
from parley.conversation.records import TurnEnded
from parley.conversation.turn_ends import INTERRUPTED, LOST, limit_message, turn_end
from parley.wire.events import ErrorEvent, QueueChanged, TaskComplete, TokenCount, TurnEndReason
from parley.wire.ids import CallId, MessageId

USAGE = TokenCount(
    input_tokens=2, cached_input_tokens=None, output_tokens=1, reasoning_output_tokens=None, total_tokens=3
)
REASONS = get_args(TurnEndReason)
OUTPUT = {"failed": ABORTED, "interrupted": ABORTED, "stopped": LOST, "restarted": LOST}


def test_a_completed_turn_ends_with_its_last_message() -> None:
    assert turn_end("done", last_message="Done") == (TaskComplete(last_agent_message="Done"), turn_ended())


@pytest.mark.parametrize("why", ["failed", "interrupted", "restarted", "stopped"])
def test_a_turn_that_is_not_completed_leaves_nothing_open(why: TurnEndReason) -> None:
    running = command_output("c1")
    entries = turn_end(
        why,
        "no model" if why == "failed" else None,
        outputs=(running,),
        unanswered=(CallId("c1"), CallId("c2")),
        unreported=USAGE,
        queued=(MessageId("m"),),
    )
    message = "no model" if why == "failed" or why == "done" else INTERRUPTED[why]

    assert entries == (
        running,
        call_output("c1", OUTPUT[why]),
        call_output("c2", OUTPUT[why]),
        USAGE,
        QueueChanged(messages=(MessageId("m"),), paused=True),
        ErrorEvent(message=message, reason=why),
        *((TaskComplete(last_agent_message=None),) if why == "failed" else ()),
        turn_ended(why, message),
    )


@pytest.mark.parametrize("why", REASONS)
def test_every_turn_ends_once_and_with_its_reason(why: TurnEndReason) -> None:
    message = None if why == "done" or why == "failed" else INTERRUPTED[why]

    assert [entry for entry in turn_end(why) if isinstance(entry, TurnEnded)] == [turn_ended(why, message)]
    assert turn_end(why)[-1] == turn_ended(why, message)


def test_a_completed_turn_does_not_pause_the_queue() -> None:
    assert turn_end("done", queued=(MessageId("m"),)) == turn_end("done")


def test_the_message_of_a_limit_names_the_limit() -> None:
    assert limit_message("turn_tokens (10)") == "Limit reached: turn_tokens (10)"

"""The pauses of `parley replay` (`parley.cli.replay`)."""

from __future__ import annotations

import pytest

from parley.cli.replay import Pace
from parley.wire.events import AgentMessage, EventMsg, TaskComplete, TaskStarted

EVENTS: list[tuple[EventMsg, str]] = [
    (TaskStarted(), "2026-01-31T12:00:00.000Z"),
    (AgentMessage(message="One"), "2026-01-31T12:00:01.500Z"),
    (AgentMessage(message="Two"), "2026-01-31T12:01:01.500Z"),
    (TaskComplete(last_agent_message="Two"), "2026-01-31T12:01:01.000Z"),  # the clock was set back
    (TaskStarted(), "2026-02-01T08:00:00.000Z"),
    (AgentMessage(message="Three"), "2026-02-01T08:00:00.250Z"),
]


@pytest.mark.parametrize(
    ("speed", "pauses"),
    [
        (1.0, [0.0, 1.5, 60.0, 0.0, 3.0, 0.25]),
        (10.0, [0.0, 0.15, 6.0, 0.0, 0.3, 0.025]),
        (0.5, [0.0, 3.0, 120.0, 0.0, 6.0, 0.5]),
        (0.0, [0.0] * 6),
    ],
)
def test_the_pauses_are_those_of_the_events_divided_by_the_speed(speed: float, pauses: list[float]) -> None:
    pace = Pace(speed)

    assert [pace.pause_before(event, at) for event, at in EVENTS] == pytest.approx(pauses)


def test_a_time_that_cannot_be_read_makes_no_pause() -> None:
    pace, event = Pace(1), AgentMessage(message="One")
    times = ["2026-01-31T12:00:00Z", "soon", "0001-01-01T00:00:00+23:00", "2026-01-31T12:00:01Z", "2026-01-31"]

    assert [pace.pause_before(event, at) for at in times] == [0.0, 0.0, 0.0, 1.0, 0.0]

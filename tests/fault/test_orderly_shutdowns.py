"""Orderly shutdowns at any point: a running turn ends as stopped, and an open approval stays open."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from kit.clients.crash_story import AGAIN, RUN, STOPPED, RepeatingClient, Story, ends_in, events_in
from parley.testing import RawParley
from parley.wire.notifications import InitialState

Way = Literal["SIGTERM", "end of stdin"]


class Stopped:
    """A server that is stopped at the first matching message, and the next server, which continues."""

    def __init__(self, way: Way, at: Callable[[Any], bool]) -> None:
        self._way, self._at = way, at
        self.has_come = False
        """True if a matching message has arrived."""

    async def run(self, directory: Path) -> list[str]:
        """Run the first server, and return the reasons for the ends of its turns."""
        async with Story(directory) as story:
            raw = RawParley(story.model, home=story.home)
            exit_code = await story.live(raw, RUN, AGAIN, react=self._react)
            found = await story.found()
            assert exit_code == 0
            if any(InitialState.METHOD.encode() in frame for frame in raw.frames):
                assert story.sent == events_in(found)  # a client with a stream gets every event
            await story.goes_on(STOPPED)
        return ends_in(found)

    def _react(self, recorder: RepeatingClient, message: Any) -> None:
        if self.has_come:
            return
        if not self._at(message):
            recorder.react(message)
            return
        self.has_come = recorder.is_leaving = True
        if self._way == "SIGTERM":
            recorder.raw.terminate()
        else:
            recorder.raw.close_stdin()


def the(number: int) -> Callable[[Any], bool]:
    """Return a function that matches the message with this number, counted from 0."""
    read = count()
    return lambda message: next(read) == number


@pytest.mark.promises("lifecycle.stopped-turn", "keeping.asking")
@pytest.mark.parametrize(
    ("way", "method", "ends"),
    [
        ("SIGTERM", "exec_command_output_delta", ["stopped"]),
        ("end of stdin", "elicitation/create", []),
        pytest.param("end of stdin", "exec_command_output_delta", ["stopped"], marks=pytest.mark.long),
        pytest.param("SIGTERM", "elicitation/create", [], marks=pytest.mark.long),
    ],
)
async def test_a_turn_is_reported_as_stopped_and_an_approval_stays_open(
    tmp_path: Path, way: Way, method: str, ends: list[str]
) -> None:
    stopped = Stopped(way, lambda message: bool(message.get("method") == method))

    assert await stopped.run(tmp_path) == ends


@pytest.mark.long
@pytest.mark.parametrize("way", ["SIGTERM", "end of stdin"])
async def test_a_server_can_be_stopped_after_every_message(tmp_path: Path, way: Way) -> None:
    stops = 0
    for number in count():
        stopped = Stopped(way, the(number))
        await stopped.run(tmp_path / str(number))
        if not stopped.has_come:
            break
        stops += 1
    assert stops > 20

"""A server that is killed at any write: the next server has everything that clients were sent."""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path

import pytest

from kit.clients.crash_story import AGAIN, RESTARTED, RUN, Story
from kit.servers.self_killing import MOMENTS, KillPoint, Moment, SelfKillingParley


async def killed(directory: Path, moment: Moment, number: int) -> bool:
    """Return whether a server reached the write with this number. In any case, check that the next server
    continues."""
    kill_point = KillPoint(moment, number, directory / "notes")
    async with Story(directory) as story:
        exit_code = await story.live(SelfKillingParley(story.model, kill_point, home=story.home), RUN, AGAIN)
        await story.goes_on(RESTARTED)
    assert exit_code in (0, -signal.SIGKILL)
    return exit_code != 0


@pytest.mark.promises("keeping.durable", "keeping.restarted", "keeping.asking")
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("after a commit", 5),  # a message has been stored
        ("after a commit", 7),  # an approval has been stored
        ("in a write", 11),  # the approval is being sent
        ("in a write", 17),  # the command is running
        ("before a commit", 10),  # the command has ended
    ],
)
async def test_everything_that_clients_were_sent_survives_a_kill(
    tmp_path: Path, moment: Moment, number: int
) -> None:
    assert await killed(tmp_path, moment, number)


@pytest.mark.long
@pytest.mark.promises("keeping.durable", "keeping.restarted", "keeping.asking")
@pytest.mark.parametrize("moment", MOMENTS)
async def test_everything_that_clients_were_sent_survives_a_kill_at_every_write(
    tmp_path: Path, moment: Moment
) -> None:
    kills = 0
    for number in count(1):
        if not await killed(tmp_path / str(number), moment, number):
            break
        kills += 1
    assert kills >= 14  # the story has at least this many writes

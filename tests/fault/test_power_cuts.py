"""Power cuts: the synced part of the write-ahead log is on disk, followed by arbitrary data."""

from __future__ import annotations

import signal
from itertools import count
from pathlib import Path
from random import Random

import pytest

from kit.clients.crash_story import AGAIN, RESTARTED, RUN, Story
from kit.servers.self_killing import KillPoint, SelfKillingParley

MAX_RUBBISH_BYTES = 9000
"""The maximum number of arbitrary bytes after the synced part.

It is slightly more than two pages of the database.
"""


async def loses_power(directory: Path, commit: int) -> bool:
    """Cut the power at a commit, and check that the next server continues.

    Return False if the run has no commit with this number.
    """
    kill_point = KillPoint("after a commit", commit, directory / "notes")
    async with Story(directory) as story:
        exit_code = await story.live(SelfKillingParley(story.model, kill_point, home=story.home), RUN, AGAIN)
        if exit_code == 0:
            return False
        assert exit_code == -signal.SIGKILL
        forget_what_was_not_synced(story.home, kill_point.lengths(), Random(commit))
        await story.goes_on(RESTARTED)
    return True


def forget_what_was_not_synced(home: Path, acknowledged: list[int], chance: Random) -> None:
    log = home / "parley.db-wal"
    written = log.read_bytes()
    synced = acknowledged[-1] if acknowledged else 0
    torn = written[synced : chance.randint(synced, len(written))]
    log.write_bytes(written[:synced] + torn + chance.randbytes(chance.randrange(MAX_RUBBISH_BYTES)))
    (home / "parley.db-shm").unlink()


@pytest.mark.parametrize("commit", [1, 11])
async def test_a_power_cut_loses_nothing_that_clients_were_sent(tmp_path: Path, commit: int) -> None:
    assert await loses_power(tmp_path, commit)


@pytest.mark.long
async def test_a_power_cut_at_any_commit_loses_nothing_that_clients_were_sent(tmp_path: Path) -> None:
    cuts = 0
    for commit in count(1):
        if not await loses_power(tmp_path / str(commit), commit):
            break
        cuts += 1
    assert cuts > 10

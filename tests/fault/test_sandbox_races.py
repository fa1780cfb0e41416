"""Another process replaces the root of a command with a link, before or during the start of the command."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Final

import pytest

from kit.attacks.nobody import as_nobody
from kit.attacks.swaps import ENOUGH, PATTERNS, WITHOUT_PAUSE, Pattern, Swapping, Ways, escapes, survey
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.needs import BUBBLEWRAP, LANDLOCK
from parley.errors import SandboxUnavailable
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor


@pytest.fixture
def ways(tmp_path: Path) -> Ways:
    return Ways.within(tmp_path)


@LANDLOCK
async def test_a_link_that_comes_between_the_look_and_the_start_opens_nothing(ways: Ways) -> None:
    starter, victim = Swapping(ways), ways.victim("landlock")
    commands = Sandboxed(lambda: starter)
    async with asyncio.timeout(3 * TIMEOUT_SECONDS):
        before = await commands.run(victim, output=lambda stream, data: None)
        starter.swaps_next = True
        meanwhile = await commands.run(victim, output=lambda stream, data: None)
        with pytest.raises(SandboxUnavailable):
            await commands.run(victim, output=lambda stream, data: None)
        await commands.close()

    assert (0 in (before.exit_code, meanwhile.exit_code), starter.swaps_next) == (False, False)
    assert os.listdir(ways.outside / "project") == [".git"]


@BUBBLEWRAP
async def test_a_link_that_comes_between_the_look_and_the_mounts_lets_nothing_run(ways: Ways) -> None:
    starter, victim = Swapping(ways), ways.victim("bubblewrap")
    commands = Sandboxed(lambda: starter)
    async with asyncio.timeout(3 * TIMEOUT_SECONDS):
        before = await commands.run(victim, output=lambda stream, data: None)
        starter.swaps_next = True
        with pytest.raises(SandboxUnavailable) as refused:
            await commands.run(victim, output=lambda stream, data: None)
        found = os.listdir(ways.outside / "project")
        control = await starter.start_last_without_a_look()
        await commands.close()

    assert (before.exit_code == 0, found) == (False, [".git"])
    assert refused.value.detail == f"{ways.project} was replaced while the sandbox was set up"
    assert (control.exit_code, ways.escaped.exists()) == (0, True)


@BUBBLEWRAP
async def test_links_that_come_and_go_while_mounts_are_made_open_nothing(ways: Ways) -> None:
    async with asyncio.timeout(3 * TIMEOUT_SECONDS):
        control = await survey(ways, WITHOUT_PAUSE, looks=False, starts=ENOUGH)
        found = await survey(ways, WITHOUT_PAUSE, looks=True, starts=20)

    assert (control["escaped"], found["escaped"]) == (1, 0)


@pytest.mark.long
@BUBBLEWRAP
async def test_links_that_come_and_go_in_any_way_open_nothing() -> None:
    assert await escapes(250) == dict.fromkeys(PATTERNS, (1, 0))


@pytest.mark.long
@BUBBLEWRAP
def test_links_that_come_and_go_open_nothing_to_an_ordinary_user() -> None:
    assert json.loads(as_nobody("-m", "kit.attacks.swaps", "150")) == {name: [1, 0] for name in PATTERNS}


UNSEEN: Final = """
import asyncio, json
from parley.ports.commands import SandboxPolicy
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor

async def main():
    commands = Sandboxed(Executor)
    report = await commands.report(SandboxPolicy())
    await commands.close()
    print(json.dumps([report.used, report.tried[0].fault]))

asyncio.run(main())
"""


@BUBBLEWRAP
@LANDLOCK
def test_bubblewrap_is_not_used_where_its_mounts_cannot_be_read(tmp_path: Path) -> None:
    launcher = tmp_path / "bwrap"
    prepared = f"""
        cp /usr/bin/bwrap {launcher}; chmod 4755 {launcher}; mount --bind {launcher} /usr/bin/bwrap
        mount -t proc -o hidepid=2 proc /proc
    """

    used, fault = json.loads(as_nobody("-c", UNSEEN, prepared=prepared))

    assert (used, fault) == ("landlock", "checking the mounts failed: No such file or directory (os error 2)")


STARTS: Final = 60
"""The minimum number of starts.

The test continues until at least one command was started and one was refused. If links were followed, one start in
ten would reach the directory outside.
"""


@pytest.mark.long
@LANDLOCK
async def test_a_link_that_comes_and_goes_while_a_command_starts_opens_nothing(ways: Ways) -> None:
    victim = ways.victim("landlock")
    commands, outcomes = Sandboxed(Executor), list[str]()
    # The pause is long enough for the command to find the directory in some starts and the link in others.
    with ways.swapped(Pattern(1, 0.002)):
        async with asyncio.timeout(3 * TIMEOUT_SECONDS):
            while len(outcomes) < STARTS or len(set(outcomes)) < 2:
                try:
                    await commands.run(victim, output=lambda stream, data: None)
                    outcomes.append("started")
                except SandboxUnavailable:
                    outcomes.append("refused")
            await commands.close()

    assert os.listdir(ways.outside / "project") == [".git"]

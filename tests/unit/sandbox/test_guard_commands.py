"""Several commands in one repository, and what is told of them to whom."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import tracemalloc
from pathlib import Path

import pytest

from kit.builders.bounds import bounds
from kit.builders.trees import tree
from kit.system.git_guard import as_told, command, enter, furnish, put_back, without_refused
from parley.ports.commands import Ended, Output, Start, Starter
from parley.sandbox.guard import Guard, Watch
from parley.sandbox.places import Places, find

PATIENCE_SECONDS = 20.0


def test_commands_at_the_same_time_are_measured_by_what_was_before_the_first(project: Path) -> None:
    guard = Guard()
    first: list[str] = []
    second: list[str] = []
    with command(bounds(project), first, guard):
        (project / ".git/config").write_text("evil")
        with command(bounds(project), second, guard):
            (project / ".git/hooks/pre-commit").write_text("evil")
        (project / ".git/config").write_text("evil again")

    assert (project / ".git/config").read_text() == "config\n"
    kept = f"{project}/.git/.refused-X-config"
    both = f"{kept}, {project}/.git/.refused-X-pre-commit"
    assert second == put_back(project / ".git", "config, hooks/pre-commit", kept=both)
    assert first == put_back(project / ".git", "config", kept=kept)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_command_of_wider_roots_is_watched_all_the_way_whoever_else_runs(project: Path, is_first: bool) -> None:
    guard = Guard()
    told: list[str] = []
    narrow, wide = bounds(project), bounds(project, project.parent)
    before = tree(project)
    with command(narrow if is_first else wide, told, guard), command(wide if is_first else narrow, told, guard):
        project.rename(project.parent / "own")
        shutil.copytree(project.parent / "own", project, symlinks=True)
        (project / ".git/config").write_text("evil")

    assert tree(project) == before
    assert told == put_back(project / ".git", "it", kept=f"{project.parent}/.refused-X-project")


@pytest.mark.parametrize("name", [".git", ".git/modules/a/b", ".git/config"])
def test_who_comes_later_from_other_roots_is_measured_by_what_was_before_the_first(
    project: Path, name: str
) -> None:
    guard = Guard()
    told: list[str] = []
    first: list[Watch] = []
    before, inode = tree(project), (project / ".git/modules/a/b").stat().st_ino
    enter(guard, find(bounds(project)), first)
    if name.endswith("config"):
        (project / name).write_text("evil")
    else:
        (project / name).rename(project / "own")
        shutil.copytree(project / "own", project / name, symlinks=True)
    with command(bounds(project, project.parent), told, guard):
        told_first = guard.leave(first)

    assert (without_refused(tree(project)), (project / ".git/modules/a/b").stat().st_ino) == (before, inode)
    assert (len(told_first), told) == (2, [])


def test_a_git_that_another_command_has_made_is_not_taken_for_a_repository(tmp_path: Path) -> None:
    (tmp_path / "wide/project").mkdir(parents=True)
    guard = Guard()
    told: list[str] = []
    within = bounds(tmp_path / "wide/project")
    with command(within, told, guard):
        (tmp_path / "wide/project/.git/hooks").mkdir(parents=True)
        with command(bounds(tmp_path / "wide/project", tmp_path / "wide"), told, guard):
            pass

    assert without_refused(tree(tmp_path / "wide/project")) == {}
    place = tmp_path / "wide/project"
    assert told == put_back(place / ".git", "it", kept=f"{place}/.refused-X-.git")


def test_who_comes_while_another_has_moved_something_away_is_held_to_it_as_well(project: Path) -> None:
    (project / ".claude").mkdir()
    (project / ".claude/settings.json").write_text("{}")
    guard, told, first = Guard(), list[str](), list[Watch]()
    enter(guard, find(bounds(project)), first)
    (project / ".claude").rename(project / "away")
    with command(bounds(project), told, guard):
        guard.leave(first)
        (project / ".claude/settings.json").write_text("evil")

    assert (project / ".claude/settings.json").read_text() == "{}"
    assert told == put_back(project / ".claude", "it", kept=f"{project}/.refused-X-settings.json")


def test_who_comes_from_a_root_around_is_not_held_to_what_others_watch(project: Path) -> None:
    guard, told, first = Guard(), list[str](), list[Watch]()
    enter(guard, find(bounds(project)), first)
    with command(bounds(project.parent), told, guard):
        guard.leave(first)
        (project / ".git/config").write_text("own")

    assert ((project / ".git/config").read_text(), told) == ("own", [])


class Late(Starter):
    """Runs nothing: something is planted after another command has ended."""

    def __init__(self, place: Path, other: threading.Thread) -> None:
        self.place, self.other = place, other

    async def start(self, start: Start, *, output: Output) -> Ended:
        await asyncio.to_thread(self.other.join)
        self.place.write_text("evil")
        return Ended(exit_code=0, seconds=0.0)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("name", [".claude/settings.json", ".git/config"])
async def test_what_another_command_had_moved_away_is_watched_also_if_that_ends_before_the_watch_begins(
    project: Path, name: str
) -> None:
    settings = project / name
    settings.parent.mkdir(exist_ok=True)
    settings.write_text("{}")
    guard, first, told = Guard(), list[Watch](), list[bytes]()
    enter(guard, find(bounds(project)), first)
    settings.parent.rename(project / "away")
    leaving = threading.Thread(target=guard.leave, args=(first,))

    def prepare(watches: list[Watch]) -> Start:
        places = find(bounds(project))
        leaving.start()
        leaving.join(PATIENCE_SECONDS)
        enter(guard, places, watches)
        return Start(argv=("true",), cwd=str(project), env={}, timeout_seconds=1.0)

    async with asyncio.timeout(PATIENCE_SECONDS):
        ended = await guard.run(Late(settings, leaving), prepare, output=lambda stream, data: told.append(data))

    assert (settings.read_text(), ended.exit_code, len(told)) == ("{}", 1, 2)


class HeldUp:
    """The first directory that is listed by another thread takes until somebody lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on, self.listed = threading.Event(), threading.Event(), 0
        self._scandir = os.scandir
        monkeypatch.setattr(os, "scandir", self._held_up)

    def _held_up(self, folder: int) -> object:
        if threading.current_thread() is not threading.main_thread():
            self.listed += 1
            if not self.begun.is_set():
                self.begun.set()
                assert self.go_on.wait(PATIENCE_SECONDS)
        return self._scandir(folder)


def test_a_repository_that_takes_long_to_look_at_holds_up_nobody_elsewhere(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    guard, first, told = Guard(), list[Watch](), list[str]()
    places = find(bounds(project))
    held_up = HeldUp(monkeypatch)
    looking = threading.Thread(target=enter, args=(guard, places, first))
    looking.start()
    assert held_up.begun.wait(PATIENCE_SECONDS)

    with command(bounds(tmp_path / "other"), told, guard):
        (tmp_path / "other/.git").write_text("evil")
    assert (len(told), first) == (2, [])
    held_up.go_on.set()
    looking.join(PATIENCE_SECONDS)

    assert guard.leave(first) == []


class Never(Starter):
    """Is not asked to start anything."""

    async def start(self, start: Start, *, output: Output) -> Ended:
        raise AssertionError

    async def close(self) -> None:
        pass


def cancelled_later(guard: Guard, places: Places) -> asyncio.Task[Ended]:
    def prepare(watches: list[Watch]) -> Start:
        enter(guard, places, watches)
        raise AssertionError

    return asyncio.create_task(guard.run(Never(), prepare, output=lambda stream, data: None))


async def test_cancelling_ends_the_look_before_a_command(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places, held_up = find(bounds(project)), HeldUp(monkeypatch)
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = cancelled_later(Guard(), places)
        await asyncio.to_thread(held_up.begun.wait)
        running.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        held_up.go_on.set()
        await asyncio.wait([running])

    assert (running.cancelled(), held_up.listed) == (True, 1)


async def test_cancelling_ends_the_wait_for_others_who_look(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, places, held_up = Guard(), find(bounds(project)), HeldUp(monkeypatch)
    async with asyncio.timeout(PATIENCE_SECONDS):
        first = cancelled_later(guard, places)
        await asyncio.to_thread(held_up.begun.wait)
        second = cancelled_later(guard, places)
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        assert (second.cancelled(), first.done()) == (True, False)
        first.cancel()
        held_up.go_on.set()
        await asyncio.wait([first])


class Interrupted(Starter):
    """Runs nothing: something is planted, and whoever waits is interrupted before that is looked for."""

    def __init__(self, place: Path) -> None:
        self.place = place

    async def start(self, start: Start, *, output: Output) -> Ended:
        self.place.write_text("evil")
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return Ended(exit_code=0, seconds=0.0)

    async def close(self) -> None:
        pass


async def test_what_an_interrupt_keeps_from_being_told_is_logged(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard()

    def prepare(watches: list[Watch]) -> Start:
        enter(guard, find(bounds(project)), watches)
        return Start(argv=("true",), cwd=str(project), env={}, timeout_seconds=1.0)

    starter = Interrupted(project / ".git/config")
    running = asyncio.create_task(guard.run(starter, prepare, output=lambda stream, data: None))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait([running])

    assert running.cancelled()
    kept = f"{project}/.git/.refused-X-config"
    assert [as_told(each) for each in caplog.messages] == put_back(project / ".git", "config", kept=kept)


class OutOfTime(Starter):
    """Runs nothing: something is planted by a command whose time is over."""

    def __init__(self, place: Path) -> None:
        self.place = place

    async def start(self, start: Start, *, output: Output) -> Ended:
        self.place.write_text("evil")
        return Ended(timed_out=True, seconds=1.0)

    async def close(self) -> None:
        pass


async def test_how_a_command_ended_says_what_it_did_to_something_protected(project: Path) -> None:
    guard, said = Guard(), list[bytes]()

    def prepare(watches: list[Watch]) -> Start:
        enter(guard, find(bounds(project)), watches)
        return Start(argv=("true",), cwd=str(project), env={}, timeout_seconds=1.0)

    starter = OutOfTime(project / ".git/config")
    async with asyncio.timeout(PATIENCE_SECONDS):
        ended = await guard.run(starter, prepare, output=lambda stream, data: said.append(data))

    kept = f"{project}/.git/.refused-X-config"
    assert (ended.exit_code, ended.timed_out) == (None, True)
    assert list(map(as_told, ended.remarks)) == put_back(project / ".git", "config", kept=kept)
    assert [f"{remark}\n".encode() for remark in ended.remarks] == said


def test_what_is_remembered_of_places_does_not_fill_the_memory(tmp_path: Path) -> None:
    guard, told = Guard(), list[str]()
    tracemalloc.start()
    try:
        for number in range(6):
            furnish(tmp_path / f"{number}/.git")
            (tmp_path / f"{number}/.git/hooks/large").write_bytes(bytes(6 << 20))
            with command(bounds(tmp_path / str(number)), told, guard):
                pass
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (held < 17 << 20, told) == (True, [])


def test_what_somebody_changes_between_commands_stays(project: Path) -> None:
    guard = Guard()
    told: list[str] = []
    for content in ("one", "two"):
        (project / ".git/config").write_text(content)
        with command(bounds(project), told, guard):
            pass

    assert ((project / ".git/config").read_text(), told) == ("two", [])

"""What the guard of `.git` sees and tells: what is done within `command` a command could have done."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.builders.trees import Tree
from parley.ports.commands import Bounds
from parley.sandbox.guard import Guard, Watch
from parley.sandbox.places import Places, find

__all__ = ["as_told", "command", "enter", "furnish", "grow_old", "put_back", "without_refused"]


def furnish(git: Path) -> None:
    """Make a directory of git, with submodules and another working tree."""
    for folder in (
        "hooks/sub",
        "info",
        "objects/info",
        "refs/heads",
        "modules/a/b/hooks",
        "modules/a/b/modules/c",
        "modules/a/b/worktrees/tree",
        "modules/1/2/3/4/5/6/7/8/9",
        "sequencer",
        "worktrees/tree/modules/d",
    ):
        (git / folder).mkdir(parents=True)
    for name in ("HEAD", "config", "hooks/update", "hooks/sub/x", "info/exclude", "packed-refs"):
        (git / name).write_text(f"{name}\n")
    (git / "modules/a/b/config").write_text("part\n")
    for part in ("modules/a/b", "modules/a/b/modules/c", "modules/1/2/3/4/5/6/7/8/9", "worktrees/tree/modules/d"):
        (git / part / "HEAD").write_text("another part\n")
    for working in ("worktrees/tree", "modules/a/b/worktrees/tree"):
        (git / working / "HEAD").write_text("a tree\n")
        (git / working / "commondir").write_text("../..\n")
    (git / "hooks/link").symlink_to("update")


def enter(guard: Guard, places: Places, watches: list[Watch]) -> None:
    guard.enter(places, places.git_folders + places.protected + places.vacant + places.links, watches)


@contextmanager
def command(bounds: Bounds, told: list[str], guard: Guard | None = None) -> Iterator[None]:
    """A command runs meanwhile; what is told of it afterwards."""
    guard = Guard() if guard is None else guard
    watches: list[Watch] = []
    enter(guard, find(bounds), watches)
    yield
    told += (as_told(sentence.text) for sentence in guard.leave(watches))


def grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything have been there for longer than it takes to tell one change from the next by their times."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 10_000_000_000)


def as_told(sentence: str) -> str:
    """What is told, with one name for all that was moved aside."""
    return re.sub(r"\.refused-[0-9a-f]{8}-", ".refused-X-", sentence)


def put_back(place: Path, what: str, *, kept: str | None = None) -> list[str]:
    """What is told of something that was put back, and of where that is now which was found in its place."""
    found = [f"{place} is protected: what was found there is now {kept}"] if kept else []
    return [f"{place} is protected: what was done to {what} while the command ran was put back", *found]


def without_refused(found: Tree) -> Tree:
    """The tree without what was moved aside."""
    return {path: item for path, item in found.items() if ".refused-" not in path}

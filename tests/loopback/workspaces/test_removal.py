"""The removal of unused worktrees (`parley.workspaces.removal`, `parley.workspaces.worktrees`), and removals that
were interrupted.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from kit.servers.git_nodes import Origin
from kit.servers.worktree_node import WorktreeNode as Node
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.sandbox import Sandboxed
from parley.wire.events import WorkspaceUpdated
from parley.workspaces.worktree import Worktree

FILES = {"README": "hello\n", "big-0": "0\n", "big-1": "1\n", "big-2": "2\n"}
OPERATIONS = ("rename", "unlink", "rmdir", "mkdir")


class _Killed(BaseException):
    """Raised by all file operations of the removal after the point at which a test ends the process."""


async def unused(node: Node) -> WorkspaceUpdated:
    """Run a turn in a worktree, and make the worktree old. Return the event at the end of the turn."""
    begun = await node.prepared()
    await node.run("for i in 0 1 2; do echo $i > big-$i; done")
    ended = await node.saved(begun)
    make_old(node)
    return ended


def make_old(node: Node) -> None:
    os.utime(node.clone / "worktrees" / node.id / "parley-used", (0, 0))


def restarted(node: Node, path: Path, origin: Origin, *, other: bool = False) -> Node:
    """Return the node after a restart, with the same conversation or another one."""
    return Node(node.sandboxed, path, str(origin.path), conversation=None if other else node.id)


def files_of(node: Node) -> dict[str, str]:
    return {path.name: path.read_text() for path in node.tree.iterdir() if path.name != ".git"}


def left_by_removals(node: Node) -> list[Path]:
    """Return the files and directories of the worktree and of its interrupted removals."""
    places = [node.tree, node.clone / "worktrees" / node.id]
    return [path for path in (*places, *node.clone.parent.glob("*.removed-*")) if path.exists()]


def _excepthook(args: threading.ExceptHookArgs) -> None:
    assert args.exc_type is _Killed


def intercept(monkeypatch: pytest.MonkeyPatch, node: Node, before: Callable[[str], None]) -> None:
    """Call `before` with the name of each file operation that removes the worktree, before the operation runs."""
    move_away, is_removing = Worktree.move_away, False

    def removing(tree: Worktree) -> None:
        nonlocal is_removing
        is_removing = True
        move_away(tree)

    def intercepted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(path: Any, *arguments: Any, dir_fd: int | None = None, **keywords: Any) -> Any:
            folder = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
            if is_removing and node.id in os.path.join(folder, os.fspath(path)):
                before(name)
            return real(path, *arguments, **({} if dir_fd is None else {"dir_fd": dir_fd}), **keywords)

        return call

    monkeypatch.setattr(threading, "excepthook", _excepthook)
    monkeypatch.setattr(Worktree, "move_away", removing)
    for name in OPERATIONS:
        monkeypatch.setattr(os, name, intercepted(name))


async def removal_ended() -> None:
    """Wait until no thread deletes files of removed worktrees."""
    await until(lambda: not [one for one in threading.enumerate() if one.name == "removal"])


async def kill_during_removal(
    node: Node, path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Begin a turn that removes the unused worktree, and end the process before file operation `step` of the
    removal. The operations are counted from 1.
    """
    steps = 0

    def kill(_: str) -> None:
        nonlocal steps
        steps += 1
        if steps >= step:
            raise _Killed

    with monkeypatch.context() as patch:
        intercept(patch, node, kill)
        with suppress(_Killed):
            await restarted(node, path, origin, other=True).prepare()
        await removal_ended()
    assert steps


@pytest.mark.promises("nodes.git")
@pytest.mark.parametrize("step", [1, *(pytest.param(step, marks=pytest.mark.long) for step in (*range(2, 12), 20))])
async def test_a_removal_that_was_killed_pushes_no_deletion(
    node: Node, tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    ended = await unused(node)
    await kill_during_removal(node, tmp_path, origin, monkeypatch, step)
    again = restarted(node, tmp_path, origin)
    prepared = await again.prepare(ended)

    assert prepared is None
    assert files_of(again) == FILES
    assert await again.save(ended) is None
    assert origin.branches()[ended.branch] == ended.commit


@pytest.mark.parametrize("step", [2, *(pytest.param(step, marks=pytest.mark.long) for step in range(3, 9))])
async def test_a_removal_that_was_killed_is_finished_after_a_restart(
    node: Node, tmp_path: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    await unused(node)
    await kill_during_removal(node, tmp_path, origin, monkeypatch, step)
    assert left_by_removals(node)
    await restarted(node, tmp_path, origin, other=True).prepare()
    await removal_ended()

    assert left_by_removals(node) == []


@pytest.mark.promises("nodes.git")
@pytest.mark.parametrize("operation", ["unlink", pytest.param("rename", marks=pytest.mark.long)])
async def test_a_turn_during_a_cancelled_removal_has_all_files(
    node: Node,
    sandboxed: Sandboxed,
    tmp_path: Path,
    origin: Origin,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    """The turn that removes the worktree is interrupted, and the conversation of the worktree continues."""
    ended = await unused(node)
    begun, released = threading.Event(), threading.Event()
    calls = 0

    def wait(name: str) -> None:
        nonlocal calls
        if name == operation:
            calls += 1
            if calls == 2:  # one file is gone, or the worktree was moved
                begun.set()
                assert released.wait(TIMEOUT_SECONDS)

    with monkeypatch.context() as patch:
        intercept(patch, node, wait)
        interrupted = asyncio.ensure_future(restarted(node, tmp_path, origin, other=True).prepare())
        await until(begun.is_set)
        interrupted.cancel()
        next_turn = asyncio.ensure_future(node.prepare(ended))
        if operation == "unlink":  # the next turn does not wait for the deletion of the files
            assert await next_turn is None
            assert files_of(node) == FILES
        else:
            await asyncio.wait((next_turn,), timeout=0.1)
            assert not next_turn.done()
        released.set()
        with suppress(asyncio.CancelledError):
            await interrupted
        assert await next_turn is None
        await removal_ended()

    assert files_of(node) == FILES
    assert await node.save(ended) is None
    assert origin.branches()[ended.branch] == ended.commit


@pytest.mark.long
async def test_a_worktree_beside_an_unfinished_one_is_removed(node: Node, tmp_path: Path, origin: Origin) -> None:
    ended = await unused(node)
    (node.clone / "worktrees" / node.id / "tree").mkdir()

    await restarted(node, tmp_path, origin, other=True).prepare()
    await removal_ended()

    assert left_by_removals(node) == []
    assert (await node.prepare(ended), files_of(node)) == (None, FILES)
    assert ended.code is UNSET

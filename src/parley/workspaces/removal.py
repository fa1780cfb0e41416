"""Removes worktrees in two steps, so that no turn ever begins in a worktree of which some files are deleted.

The first step renames the worktree and its administrative directory together, to a path that no conversation uses.
The second step deletes the renamed directories in a thread. If the process exits before the thread has finished, a
later process deletes the rest.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from itertools import count
from typing import Final

from parley.common.threads import start_thread
from parley.workspaces.paths import WorktreePaths

__all__ = ["begin_deletion", "move_away"]

log: Final = logging.getLogger(__name__)

_REMOVED_NAME: Final = re.compile(r".+\.removed-[0-9]+")
"""A pattern that matches the names of removed worktrees, but not the names of clones and of their lock files."""


def move_away(paths: WorktreePaths) -> None:
    """Rename a worktree and its administrative directory, so that `begin_deletion` deletes them.

    The worktree is first moved into its administrative directory. If the process is killed after that, the next use
    of the worktree moves the worktree back, with all its files (`Checkout.finish`).

    Raises:
        OSError: the directories cannot be renamed.
    """
    if os.path.lexists(paths.tree):
        if os.path.lexists(paths.inside):
            os.rename(paths.inside, _new_path(paths))
        os.rename(paths.tree, paths.inside)
    os.rename(paths.admin, _new_path(paths))


def begin_deletion(repositories: str) -> None:
    """Begin to delete all removed worktrees in the directory `repositories`. The deletion runs in a daemon thread,
    so that neither a turn nor the exit of the process waits for it.
    """
    try:
        start_thread(_delete, repositories, name="removal")
    except (MemoryError, RuntimeError) as error:
        log.warning("the files of removed worktrees are not deleted: %s", error)


def _delete(repositories: str) -> None:
    try:
        names = os.listdir(repositories)
    except OSError:
        return
    for name in names:
        if _REMOVED_NAME.fullmatch(name):
            try:
                shutil.rmtree(os.path.join(repositories, name), ignore_errors=True)
            except RecursionError:
                log.warning("the removed worktree %s is not deleted: its directories are nested too deeply", name)


def _new_path(paths: WorktreePaths) -> str:
    for number in count(int(time.time())):
        path = os.path.join(paths.repositories, f"{paths.conversation_id}.removed-{number}")
        if not os.path.lexists(path):
            return path
    raise AssertionError

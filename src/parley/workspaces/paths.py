"""Defines the directories of one worktree, and creates and checks the directories that contain all worktrees."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from itertools import count
from typing import Final

from msgspec import Struct

from parley.common.paths import is_below_any
from parley.wire.ids import ConversationId
from parley.workspaces.git import GitFailed

__all__ = ["CHECKOUT", "USED", "WorktreePaths", "make_directories"]

USED: Final = "parley-used"
"""The name of a file in the administrative directory of a worktree. Its modification time is the time of the last
use of the worktree.
"""
CHECKOUT: Final = "parley-checkout"
"""The name of a file in the administrative directory of a worktree. The file contains the commit and the branch
that are being checked out, and is removed when the checkout is complete.
"""


class WorktreePaths(Struct, frozen=True, kw_only=True):
    """The directories of the worktree of one conversation."""

    conversation_id: ConversationId
    repositories: str
    """The directory that contains the clones."""
    clone: str
    """The bare clone of the repository."""
    tree: str
    """The worktree, to which commands of the model can write."""
    admin: str
    """The administrative directory of the worktree in the clone. Commands of the model cannot write to it."""

    @classmethod
    def of(cls, conversation_id: ConversationId, repository: str, tree: str) -> WorktreePaths:
        """Return the directories of the worktree of a conversation. `repository` is the name of the repository, and
        `tree` is the path of the worktree.
        """
        repositories = os.path.join(os.path.dirname(os.path.dirname(tree)), "repositories")
        clone = os.path.join(repositories, f"{repository}.git")
        return cls(
            conversation_id=conversation_id,
            repositories=repositories,
            clone=clone,
            tree=tree,
            admin=os.path.join(clone, "worktrees", conversation_id),
        )

    @property
    def objects(self) -> str:
        """The directory in which Git stores new objects when a command uses the files of the worktree."""
        return os.path.join(self.admin, "objects")

    @property
    def inside(self) -> str:
        """The path to which the worktree is moved while Git changes the files of the worktree."""
        return os.path.join(self.admin, "tree")

    def new_kept(self) -> str:
        """Return an unused path to which files of the worktree can be moved."""
        for number in count(int(time.time())):
            if not os.path.lexists(kept := f"{self.tree}.kept-{number}"):
                return kept
        raise AssertionError

    def note_use(self) -> None:
        """Set the time of the last use of the worktree to the current time."""
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(os.path.join(self.admin, USED), flags, 0o600)
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)


def make_directories(directory: str, hidden: tuple[str, ...]) -> None:
    """Create the directories for clones and worktrees in `directory`. `hidden` contains the paths that commands
    cannot read.

    Raises:
        GitFailed: `directory` is in a hidden path; one of the directories is not a directory of this user; or other
            users can write to one of the directories.
        OSError: a directory cannot be created.
    """
    real = os.path.realpath(directory)
    if is_below_any(real, hidden) or is_below_any(directory, hidden):
        raise GitFailed("workspace.directory is in a directory that commands cannot read, such as Parley's home")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    for name in ("repositories", "worktrees"):
        path = os.path.join(directory, name)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            why = "is not a directory to which only the user of the server can write"
            raise GitFailed(f"{name} in workspace.directory {why}")

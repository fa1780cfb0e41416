"""Removes lock files of Git commands that were killed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from glob import glob
from typing import Final

from parley.workspaces.names import branch_of
from parley.workspaces.paths import WorktreePaths

__all__ = ["remove_locks"]

STALE_LOCK_SECONDS: Final = 600.0
"""The age, in seconds, at which a Git lock file that several conversations share is removed. Git normally holds a
lock only for a moment.
"""


def remove_locks(paths: WorktreePaths) -> None:
    """Remove the lock files of Git commands that were killed.

    Call this function only when no Git command uses the files of this conversation, because the locks of these
    files are always removed. A lock of files that several conversations share is removed only if it is older than
    `STALE_LOCK_SECONDS`.
    """
    branch = branch_of(paths.conversation_id)
    own = (f"worktrees/{paths.conversation_id}/*.lock", f"refs/*/{branch}*.lock", f"refs/*/*/{branch}*.lock")
    shared = ("*.lock", "refs/**/*.lock")
    before = time.time() - STALE_LOCK_SECONDS
    for path in {found for pattern in own for found in glob(pattern, root_dir=paths.clone)}:
        with suppress(OSError):
            os.unlink(os.path.join(paths.clone, path))
    for path in {found for pattern in shared for found in glob(pattern, root_dir=paths.clone, recursive=True)}:
        with suppress(OSError):
            if os.lstat(os.path.join(paths.clone, path)).st_mtime < before:
                os.unlink(os.path.join(paths.clone, path))

"""Runs the Git commands of one worktree, each with the least access that it needs."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from parley.workspaces.clone import check_clone
from parley.workspaces.git import LOCAL_SECONDS, NETWORK_SECONDS, Git, GitFailed
from parley.workspaces.paths import WorktreePaths

__all__ = ["MAX_LIST_BYTES", "WorktreeGit"]

MAX_LIST_BYTES: Final = 256 * 1024 * 1024
"""The maximum number of bytes in a list of files. A longer list is rejected."""


class WorktreeGit:
    """Runs Git commands for one worktree and its clone. The clone is checked before each command."""

    def __init__(self, git: Git, paths: WorktreePaths) -> None:
        self._git, self._paths = git, paths

    async def head(self) -> str:
        """Return the id of the commit that the worktree has checked out."""
        return await self._run("rev-parse", "--verify", "HEAD^{commit}", variables=self._variables)

    async def has(self, commit: str) -> bool:
        try:
            await self.on_clone("cat-file", "-e", f"{commit}^{{commit}}")
        except GitFailed:
            return False
        return True

    async def is_ancestor(self, one: str, other: str) -> bool:
        if one == other:
            return True
        return not await self.on_clone("rev-list", "--max-count=1", one, "--not", other)

    async def is_in_repository(self, commit: str) -> bool:
        """Return whether a branch in the repository contains a commit, according to the last fetch of this
        clone.
        """
        containing = ("for-each-ref", "--count=1", f"--contains={commit}", "refs/remotes/origin/")
        return bool(await self.on_clone(*containing))

    async def network(
        self,
        *arguments: str,
        writes: tuple[str, ...] = (),
        seconds: float = NETWORK_SECONDS,
        stdout_on_error: bool = False,
    ) -> str:
        """Run a Git command that contacts the repository, and return its stdout. The command may write to the
        directories `writes` of the clone. The other parameters are the same as those of `Git.run`.
        """
        return await self._run(
            *arguments,
            variables={"GIT_DIR": self._paths.clone},
            writable=[os.path.join(self._paths.clone, one) for one in writes],
            network=True,
            seconds=seconds,
            stdout_on_error=stdout_on_error,
        )

    async def on_clone(self, *arguments: str, writes: tuple[str, ...] = (), seconds: float = LOCAL_SECONDS) -> str:
        """Run a Git command that does not use the files of the worktree, and return its stdout. The command may
        write to the directories `writes` of the clone. `seconds` is its timeout.
        """
        writable = [os.path.join(self._paths.clone, one) for one in writes]
        return await self._run(
            *arguments, variables={"GIT_DIR": self._paths.clone}, writable=writable, seconds=seconds
        )

    async def on_tree(
        self,
        *arguments: str,
        work_tree: str | None = None,
        index: str | None = None,
        seconds: float = LOCAL_SECONDS,
        stdin: bytes | None = None,
        is_list: bool = False,
        exit_codes: tuple[int, ...] = (0,),
    ) -> str:
        """Run a Git command in the worktree, and return its stdout.

        The command may write only to the administrative directory of the worktree, where new objects are stored
        too. If the worktree was moved, `work_tree` is its current directory. If `index` is given, it is the path of
        an index that the command uses instead of the index of the worktree. If `is_list` is True, stdout
        with more than `MAX_LIST_BYTES` bytes is an error. The other parameters are the same as those of `Git.run`.

        Raises:
            GitFailed: the command failed, or a list is too long.
        """
        await asyncio.to_thread(os.makedirs, self._paths.objects, exist_ok=True)
        more = {} if index is None else {"GIT_INDEX_FILE": index}
        options = {"max_output": MAX_LIST_BYTES, "must_be_complete": True} if is_list else {}
        return await self._run(
            *arguments,
            variables={**self._variables, "GIT_OBJECT_DIRECTORY": self._paths.objects, **more},
            work_tree=work_tree or self._paths.tree,
            writable=[self._paths.admin],
            seconds=seconds,
            stdin=stdin,
            exit_codes=exit_codes,
            **options,
        )

    @property
    def _variables(self) -> dict[str, str]:
        """The environment variables that name the directories of the worktree.

        In Git, these variables take precedence over the files in the administrative directory.
        """
        objects = os.path.join(self._paths.clone, "objects").replace("\\", "\\\\").replace('"', '\\"')
        return {
            "GIT_DIR": self._paths.admin,
            "GIT_COMMON_DIR": self._paths.clone,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{objects}"',
        }

    async def _run(self, *arguments: str, **options: Any) -> str:
        """Check the clone with `check_clone`, and then call `Git.run` and return its result."""
        await asyncio.to_thread(check_clone, self._paths.clone)
        return await self._git.run(*arguments, **options)

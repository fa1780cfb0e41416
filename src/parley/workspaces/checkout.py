"""Creates a worktree, and changes its files to the files of another commit. Repeats a checkout that was
interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

from parley.common.os_errors import os_detail
from parley.common.shield import run_to_completion
from parley.wire.text import quoted
from parley.workspaces.clone import check_worktree, read_small_file, write_new_file
from parley.workspaces.git import GitFailed
from parley.workspaces.inspection import nested_repositories
from parley.workspaces.listings import (
    LIST_INDEX,
    LIST_MODIFIED,
    files_in_tree,
    index_files,
    list_tree,
    unsaved_paths,
)
from parley.workspaces.locks import remove_locks
from parley.workspaces.names import is_from_parley
from parley.workspaces.paths import CHECKOUT, USED, WorktreePaths
from parley.workspaces.start import Start
from parley.workspaces.worktree_git import WorktreeGit

__all__ = ["Checkout"]

log: Final = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")


class Checkout:
    """Creates one worktree, and checks out commits in it."""

    def __init__(self, git: WorktreeGit, paths: WorktreePaths) -> None:
        self._git, self._paths = git, paths

    async def create(self, start: Start) -> str | None:
        """Create the worktree with the commit and the branch of `start`.

        If a file or directory exists at the path of the worktree, rename it, and return its new path. Otherwise
        return None.
        """
        kept = await completed(self._clear)
        await completed(self._make_admin, start.branch)
        await self.point(start)
        await self._git.on_tree("read-tree", "--reset", "-u", start.commit, work_tree=self._paths.inside)
        await completed(self.restore_pointer, self._paths.inside)
        await completed(os.rename, self._paths.inside, self._paths.tree)
        return kept

    def _clear(self) -> str | None:
        """Rename any file or directory at the path of the worktree, and remove the administrative directory of the
        worktree. Return the new path; None if there was nothing to rename.
        """
        kept = None
        if os.path.lexists(self._paths.tree):  # this is an unfinished, unsafe or foreign worktree
            kept = self._paths.new_kept()
            os.rename(self._paths.tree, kept)
        shutil.rmtree(self._paths.admin, ignore_errors=True)
        return kept

    def _make_admin(self, branch: str) -> None:
        os.makedirs(self._paths.inside, mode=0o755)
        write_new_file(self._paths.admin, "commondir", b"../..\n")
        write_new_file(self._paths.admin, "gitdir", f"{self._paths.tree}/.git\n".encode())
        write_new_file(self._paths.admin, "HEAD", f"ref: refs/heads/{branch}\n".encode())

    def branch(self) -> str:
        """Return the name of the branch of the worktree."""
        found = read_small_file(os.path.join(self._paths.admin, "HEAD")) or b""
        return found.decode(errors="replace").strip().removeprefix("ref: refs/heads/")

    async def point(self, start: Start) -> None:
        """Make the worktree use the branch of `start`, and make this branch point to the commit of `start`."""
        await self._git.on_clone("update-ref", f"refs/heads/{start.branch}", start.commit, writes=("refs",))
        head = f"ref: refs/heads/{start.branch}\n".encode()
        await completed(write_new_file, self._paths.admin, "HEAD", head)

    async def check_out(self, start: Start) -> str | None:
        """Change the files of the worktree to the files of the commit in `start`. Files that are neither in the
        commit nor in the index stay in the worktree, unless they prevent the checkout.

        A file that would be overwritten or removed, and whose content is neither in the commit nor in the index, is
        first moved out of the worktree. Return the directory to which files were moved; None if no file was moved.

        If the call does not complete, nothing is committed from the worktree until the checkout has been repeated.

        Raises:
            GitFailed, OSError: the files cannot be changed.
        """
        await completed(write_new_file, self._paths.admin, CHECKOUT, f"{start.commit} {start.branch}".encode())
        await self.point(start)
        await completed(self._take_worktree)
        inside = self._paths.inside
        index = index_files(await self._git.on_tree(*LIST_INDEX, work_tree=inside, is_list=True))
        target = files_in_tree(await self._git.on_tree(*list_tree(start.commit), work_tree=inside, is_list=True))
        submodules = {path for files in (index, target) for path, file in files.items() if file.is_submodule}
        for path in await asyncio.to_thread(nested_repositories, inside):
            if path in submodules:  # Git would read the repository in this directory
                raise GitFailed(f"{quoted(path)} is a submodule, and the worktree contains a repository there")
        listed = await self._git.on_tree(*LIST_MODIFIED, work_tree=inside, is_list=True)
        modified = filter(None, listed.split("\0"))
        unsaved = await asyncio.to_thread(unsaved_paths, inside, index, modified, target)
        kept = await completed(self._move_aside, unsaved) if unsaved else None
        await self._git.on_tree("read-tree", "--reset", "-u", start.commit, work_tree=inside)
        await completed(self.return_worktree)
        await completed(os.unlink, os.path.join(self._paths.admin, CHECKOUT))
        return kept

    def _move_aside(self, paths: tuple[str, ...]) -> str:
        kept = self._paths.new_kept()
        for path in paths:
            place = os.path.join(kept, path)
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            os.rename(os.path.join(self._paths.inside, path), place)
        log.warning("%d files of %s were moved to %s", len(paths), self._paths.conversation_id, kept)
        return kept

    async def finish(self) -> str | None:
        """If the last checkout did not complete, repeat it. Return the directory to which the repetition moved the
        files that it would have overwritten; None if it moved no file. If the repetition fails, log the reason.

        An incomplete checkout leaves files of two commits in the worktree. Without the repetition, these files
        would be committed as work of the conversation.
        """
        kept = None
        if (start := await asyncio.to_thread(self._unfinished_checkout)) is not None:
            await asyncio.to_thread(remove_locks, self._paths)
            try:
                if not is_from_parley(start.branch, start.commit):
                    raise GitFailed(f"the file {CHECKOUT} is damaged")
                kept = await self.check_out(start)
            except (GitFailed, OSError) as error:
                why = error if isinstance(error, GitFailed) else os_detail(error)
                name = self._paths.conversation_id
                log.warning("the checkout in the worktree of %s cannot be repeated: %s", name, why)
        await completed(self.return_worktree)
        return kept

    def _unfinished_checkout(self) -> Start | None:
        """Return the commit and the branch of the last checkout if it did not complete; otherwise None."""
        path = os.path.join(self._paths.admin, CHECKOUT)
        if (content := read_small_file(path)) is None and not os.path.lexists(path):
            return None
        commit, _, branch = (content or b"").decode(errors="replace").partition(" ")
        return Start(commit=commit, branch=branch)

    def _take_worktree(self) -> None:
        """Move the worktree into its administrative directory, where commands of the model cannot change it. Do
        nothing if the worktree is already there.

        Raises:
            GitFailed: a command has replaced the worktree; the replacement stays at the path of the worktree.
            OSError: the worktree cannot be moved.
        """
        if os.path.isdir(self._paths.inside) and not os.path.lexists(self._paths.tree):
            return
        shutil.rmtree(self._paths.inside, ignore_errors=True)
        self._paths.note_use()
        os.rename(self._paths.tree, self._paths.inside)
        try:
            check_worktree(self._paths.inside)
        except GitFailed:
            os.rename(self._paths.inside, self._paths.tree)
            raise

    def restore_pointer(self, path: str) -> None:
        """If a command has removed or changed the file `.git` of the worktree, write the file again. `path` is the
        current path of the worktree.

        Git commands that the model runs read this file.
        """
        expected = f"gitdir: {self._paths.admin}\n".encode()
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                found = os.open(".git", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                try:
                    if stat.S_ISREG(os.fstat(found).st_mode) and os.read(found, len(expected) + 1) == expected:
                        return
                finally:
                    os.close(found)
            with suppress(FileNotFoundError):
                os.unlink(".git", dir_fd=folder)  # this raises an error if `.git` is a directory
            made = os.open(".git", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
            try:
                os.write(made, expected)
            finally:
                os.close(made)
        finally:
            os.close(folder)

    def exists(self) -> bool:
        """Return whether the worktree exists and its last checkout is complete. A symbolic link or a file at its
        path does not count as a worktree.
        """
        try:
            check_worktree(self._paths.tree)
        except (GitFailed, OSError):
            return False
        if self._unfinished_checkout() is not None:
            return False
        return all(os.path.isfile(os.path.join(self._paths.admin, name)) for name in ("HEAD", "index"))

    def return_worktree(self) -> None:
        """If `_take_worktree` has moved the worktree, move it back to its path. Do nothing if a file or directory
        exists at this path.
        """
        was_used = os.path.isfile(os.path.join(self._paths.admin, USED))
        if was_used and os.path.isdir(self._paths.inside) and not os.path.lexists(self._paths.tree):
            os.rename(self._paths.inside, self._paths.tree)


async def completed(function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call a function in a thread, and return its result.

    If the task is cancelled, raise `CancelledError` only after the call has completed. Otherwise, the function
    could change files during the next turn.
    """
    return await run_to_completion(asyncio.ensure_future(asyncio.to_thread(function, *arguments, **keywords)))

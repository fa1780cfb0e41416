"""Creates a Git worktree of a repository on this computer, for one conversation.

The repository may be hostile. All Git commands run in the sandbox, without hooks and helpers. Each Git command can
write only to the directory that the command needs. The worktree is complete before it appears at its path.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from typing import Final
from uuid import uuid4

from msgspec import Struct

from parley.app.commands import sandboxed_commands
from parley.common.git_addresses import GitAddress
from parley.common.git_files import git_dirs
from parley.common.os_errors import os_detail
from parley.common.paths import is_below
from parley.common.shield import run_to_completion
from parley.config.types import Settings
from parley.workspaces.clone import write_new_file
from parley.workspaces.git import Git, GitFailed, Remote

__all__ = ["LocalWorktree", "WorktreeFailed", "create_worktree"]

ID_LENGTH: Final = 8
FIND_SECONDS: Final = 60.0
"""The timeout, in seconds, for each Git command that only reads the paths or the current commit of a repository."""


class WorktreeFailed(Exception):
    """Raised when a worktree cannot be created. The message gives the reason."""


class LocalWorktree(Struct, frozen=True, kw_only=True):
    path: str
    branch: str
    """The new branch, which begins at the current commit of the repository."""
    cwd: str
    """The directory in the worktree that corresponds to the working directory of the settings."""


async def create_worktree(settings: Settings) -> LocalWorktree:
    """Create a worktree of the repository that contains the working directory of the settings, and return the
    worktree. The worktree is next to the repository.

    Raises:
        WorktreeFailed: the directory is not in a repository with a commit, or the worktree cannot be created.
    """
    commands = sandboxed_commands(lambda: settings.home)
    try:
        remote = Remote(
            name="repository",
            address=GitAddress("", "file", None),
            password=None,
            ssh_key=None,
            ssh_known_hosts=None,
        )
        await asyncio.to_thread(_check_files, settings.cwd)
        repository = await _find(Git(commands, settings, remote, settings.cwd))
        return await repository.add_worktree(uuid4().hex[:ID_LENGTH])
    except GitFailed as error:
        raise WorktreeFailed(str(error)) from None
    except OSError as error:
        raise WorktreeFailed(os_detail(error)) from None
    finally:
        await commands.close()


def _check_files(directory: str) -> None:
    """Check that the repository that contains `directory` has no named pipe and no device among its Git files. Git
    could wait for the pipe, or read from the device, without end.

    Raises:
        GitFailed: the repository contains a named pipe or a device. The message names the file.
    """
    folder = os.path.realpath(directory)
    while True:
        _check_type(os.path.join(folder, "HEAD"))  # Git also examines whether the directory is a bare repository
        git = os.path.join(folder, ".git")
        if os.path.lexists(git):
            break
        if folder == (folder := os.path.dirname(folder)):
            return
    known: set[tuple[int, int]] = set()
    left = [git] if os.path.isdir(git) else list(git_dirs(git))
    while left:
        try:
            found = os.stat(path := left.pop())
            if (found.st_dev, found.st_ino) in known:
                continue
            known.add((found.st_dev, found.st_ino))
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir():
                        left.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        _check_type(entry.path)
        except OSError:
            pass  # Git reports what it cannot read


def _check_type(path: str) -> None:
    try:
        found = os.stat(path)
    except OSError:
        return
    if stat.S_ISFIFO(found.st_mode):
        raise GitFailed(f"{path} is a named pipe")
    if stat.S_ISBLK(found.st_mode) or (stat.S_ISCHR(found.st_mode) and not os.path.samefile(path, os.devnull)):
        raise GitFailed(f"{path} is a device")


async def _find(git: Git) -> _Repository:
    """Return the repository that contains the working directory of `git`."""
    top, common = [
        await git.run("rev-parse", "--path-format=absolute", place, seconds=FIND_SECONDS)
        for place in ("--show-toplevel", "--git-common-dir")
    ]
    prefix = await git.run("rev-parse", "--show-prefix", seconds=FIND_SECONDS)
    try:
        commit = await git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", seconds=FIND_SECONDS)
    except GitFailed:
        raise GitFailed("the repository has no commit") from None
    return _Repository(git, top, common, prefix, commit)


class _Repository:
    def __init__(self, git: Git, top: str, common: str, prefix: str, commit: str) -> None:
        """Describe the repository that contains the working directory of the settings. `git` runs Git commands in
        this directory. `top` is the worktree that contains the directory, `common` is the Git directory of the
        repository, `prefix` is the path of the working directory below `top`, and `commit` is the current commit.
        """
        self._git, self._top, self._common, self._prefix, self._commit = git, top, common, prefix, commit

    async def add_worktree(self, name: str) -> LocalWorktree:
        path, branch = f"{self._top}-parley-{name}", f"parley/{name}"
        admin = os.path.join(self._common, "worktrees", f"parley-{name}")
        inside = os.path.join(admin, "tree")
        ref = f"refs/heads/{branch}"
        try:
            await asyncio.to_thread(self._make_admin, admin, path, branch)
            await self._git.run(
                *("read-tree", "--reset", "-u", self._commit),
                variables={"GIT_DIR": admin},
                work_tree=inside,
                writable=[admin],
            )
            await asyncio.to_thread(write_new_file, inside, ".git", f"gitdir: {admin}\n".encode())
            directory = await asyncio.to_thread(self._directory_in, inside, path)
            # Git cannot delete the branch without write access to the whole repository, so the branch comes last.
            await self._update_ref(ref, self._commit, "")
            await asyncio.to_thread(os.rename, inside, path)
        except BaseException:
            await run_to_completion(asyncio.ensure_future(self._remove(admin, ref)))
            raise
        return LocalWorktree(path=path, branch=branch, cwd=directory)

    def _directory_in(self, tree: str, path: str) -> str:
        """Return the directory in the worktree that corresponds to the working directory of the settings. The files
        of the worktree are in `tree`, which will be renamed to `path`.

        Create the directory if the commit does not contain it. If a symbolic link in the commit leads out of the
        worktree, return `path`.
        """
        tree = os.path.realpath(tree)
        directory = os.path.realpath(os.path.join(tree, self._prefix))
        if not is_below(directory, tree):
            return path
        os.makedirs(directory, exist_ok=True)
        return os.path.normpath(os.path.join(path, os.path.relpath(directory, tree)))

    @staticmethod
    def _make_admin(admin: str, path: str, branch: str) -> None:
        """Create the administrative directory `admin` of the worktree, with the same files that `git worktree add`
        creates. `path` is the path of the worktree, and `branch` is its branch.

        Raises:
            GitFailed: a file exists at `path`, or the parent of `admin` is not a directory.
        """
        if os.path.lexists(path):
            raise GitFailed(f"{path} already exists")
        parent = os.path.dirname(admin)
        if not os.path.lexists(parent):
            os.mkdir(parent)
        if not stat.S_ISDIR(os.lstat(parent).st_mode):
            raise GitFailed(f"{parent} is not a directory")
        os.makedirs(os.path.join(admin, "tree"))
        write_new_file(admin, "commondir", b"../..\n")
        write_new_file(admin, "gitdir", f"{path}/.git\n".encode())
        write_new_file(admin, "HEAD", f"ref: refs/heads/{branch}\n".encode())

    async def _remove(self, admin: str, ref: str) -> None:
        await asyncio.to_thread(shutil.rmtree, admin, ignore_errors=True)
        try:
            await self._update_ref("-d", ref)
        except GitFailed:
            pass  # the branch does not exist

    async def _update_ref(self, *arguments: str) -> None:
        refs = os.path.join(self._common, "refs")
        await self._git.run("update-ref", *arguments, variables={"GIT_DIR": self._common}, writable=[refs])

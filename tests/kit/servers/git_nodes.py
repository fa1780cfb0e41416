"""A bare Git repository, and nodes that work in worktrees of the repository."""

from __future__ import annotations

import os
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from kit.servers.node_process import NodeProcess
from parley.testing import ScriptedModel

__all__ = ["GitCluster", "Origin", "git_settings"]

_ENV: Final = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
}


_FIRST_COMMIT: Final = """\
commit refs/heads/main
committer Ada <ada@example.com> 1700000000 +0000
data 12
By a person
M 100644 inline README
data 6
hello
"""


class Origin:
    """A bare repository with one commit on the branch `main`."""

    def __init__(self, path: Path) -> None:
        self.path = path / "origin.git"
        self._work = path / "author"
        self.git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(self.path), cwd=path)
        self.git("fast-import", "--quiet", text=_FIRST_COMMIT)

    def git(self, *arguments: str, cwd: Path | None = None, text: str | None = None) -> str:
        """Run Git in the repository, as its owner. `text` is the input of the command."""
        env = {**os.environ, **_ENV}
        where = self.path if cwd is None else cwd
        return subprocess.run(
            ("git", *arguments), cwd=where, env=env, check=True, capture_output=True, text=True, input=text
        ).stdout.strip()

    def commit(self, branch: str, files: dict[str, str]) -> str:
        """Commit files to a branch, push the branch, and return the commit."""
        if not self._work.exists():
            self.git("clone", "--quiet", str(self.path), str(self._work), cwd=self.path.parent)
        self.git("fetch", "--quiet", "origin", cwd=self._work)
        known = self.git("for-each-ref", "--format=%(refname)", f"refs/heads/{branch}")
        start = (f"origin/{branch}",) if known else ()
        self.git("checkout", "--quiet", "-B", branch, *start, cwd=self._work)
        for name, content in files.items():
            (self._work / name).parent.mkdir(exist_ok=True)
            (self._work / name).write_text(content)
        self.git("add", "--all", cwd=self._work)
        self.git("commit", "--quiet", "--message", "By a person", cwd=self._work)
        self.git("push", "--quiet", "origin", f"HEAD:refs/heads/{branch}", cwd=self._work)
        return self.git("rev-parse", "HEAD", cwd=self._work)

    def hook(self, script: str) -> Path:
        """Make the repository run a shell script before it accepts a push. Return the path of the script."""
        path = self.path / "hooks" / "pre-receive"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def branches(self) -> dict[str, str]:
        """Return the commits of all branches, by branch."""
        listed = self.git("for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads/")
        return dict(line.split(" ") for line in listed.splitlines())

    def text(self, commit: str, name: str) -> str:
        return self.git("show", f"{commit}:{name}")

    def subjects(self, branch: str) -> list[str]:
        """Return the subjects of the commits of a branch, the newest first."""
        return self.git("log", "--format=%s", branch).splitlines()


def git_settings(url: str, directory: Path, more: str = "") -> str:
    """Return the table `[workspace]` for the mode `git`, without its first line."""
    return f'mode = "git"\ndirectory = "{directory}"\n[workspace.repositories.app]\nurl = "{url}"\n{more}'


class GitCluster:
    """Nodes that share a database and an `Origin`. Each node has a directory of its own for worktrees."""

    def __init__(self, model: ScriptedModel, path: Path, store_url: str) -> None:
        self.origin = Origin(path)
        self._model, self._path, self._store_url = model, path, store_url
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> GitCluster:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def directory(self, name: str) -> Path:
        """Return the directory with the clones and the worktrees of a node."""
        return self._path / f"git-{name}"

    async def start(self, name: str, *, config: str = "", more: str = "", url: str | None = None) -> NodeProcess:
        node = NodeProcess(
            self._model,
            self._path,
            name,
            self._store_url,
            config=config or "[serve]\ndrain_seconds = 0",
            workspace=git_settings(url or str(self.origin.path), self.directory(name), more),
        )
        return await self._stack.enter_async_context(node)

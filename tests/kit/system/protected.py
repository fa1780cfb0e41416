"""Git directories for tests of protected files, and commands that change them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from kit.builders.trees import Tree
from parley.ports.commands import SandboxPolicy
from parley.sandbox.protected_files import ProtectedFiles, Running
from parley.sandbox.resolved_policy import resolve
from parley.sandbox.snapshot import Restored

__all__ = ["Result", "command", "without_moved", "write_files_of_git"]


def write_files_of_git(git: Path) -> None:
    """Create a Git directory with submodules and a linked working tree."""
    for folder in (
        "hooks/sub",
        "info",
        "remotes",
        "branches",
        "objects/info",
        "refs/heads",
        "modules/a/b/hooks",
        "modules/a/b/modules/c",
        "modules/a/b/worktrees/tree",
        "worktrees/tree/modules/d",
    ):
        (git / folder).mkdir(parents=True)
    for name in ("HEAD", "config", "hooks/update", "hooks/sub/x", "info/exclude", "packed-refs"):
        (git / name).write_text(f"{name}\n")
    (git / "modules/a/b/config").write_text("part\n")
    for part in ("modules/a/b", "modules/a/b/modules/c", "worktrees/tree/modules/d"):
        (git / part / "HEAD").write_text("another part\n")
    for working in ("worktrees/tree", "modules/a/b/worktrees/tree"):
        (git / working / "HEAD").write_text("a tree\n")
        (git / working / "commondir").write_text("../..\n")
    (git / "hooks/link").symlink_to("update")


class Result(Struct):
    """The files that were restored or moved after a command, by path."""

    restored: set[str]
    moved: set[str]
    left: set[str]
    new: dict[str, str]
    """The new paths of files that were moved aside."""


@contextmanager
def command(policy: SandboxPolicy, protected: ProtectedFiles | None = None) -> Iterator[Result]:
    """Run the block as a command that may change protected files; fill the result when it has ended."""
    protected = ProtectedFiles() if protected is None else protected
    result = Result(set(), set(), set(), {})
    running = Running([root.path for root in policy.writable])
    protected.register(running)
    resolved = resolve(policy)
    protected.protect(
        resolved, resolved.git_directories + resolved.protected + resolved.missing_git + resolved.links
    )
    yield result
    results: list[Restored] = []
    protected.restore(protected.unregister(running), results)
    for each in results:
        result.restored |= set(each.restored)
        result.moved |= set(each.moved)
        result.left |= set(each.left)
        result.new |= each.moved


def without_moved(found: Tree) -> Tree:
    """Return the tree without files that were moved aside."""
    return {path: item for path, item in found.items() if ".refused-" not in path}

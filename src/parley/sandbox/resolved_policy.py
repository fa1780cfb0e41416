"""Resolves a sandbox policy against the existing files, into writable, protected and hidden paths.

The module examines files and changes nothing. The sandbox mechanisms enforce the resolved policy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from parley.common.paths import is_below, is_below_any
from parley.errors import SandboxUnavailable
from parley.ports.commands import SandboxPolicy
from parley.sandbox.paths import innermost, real_cwd, sorted_by_depth
from parley.sandbox.resolve_agents import find_agents
from parley.sandbox.resolve_git import find_git
from parley.sandbox.resolve_hidden import find_hidden, refuse_creatable
from parley.sandbox.resolve_roots import find_installed, find_roots
from parley.wire.text import quoted

__all__ = ["ResolvedPolicy", "refuse_hidden_cwd", "resolve"]

_MAX_LINKS: Final = 40
"""The maximum number of symbolic links that the kernel follows in one path."""


class ResolvedPolicy(Struct, frozen=True, kw_only=True):
    """A sandbox policy as absolute paths without symbolic links. Each tuple is sorted by depth. If several entries
    contain a path, the deepest entry applies to the path.
    """

    roots: tuple[str, ...] = ()
    """The directories that commands may write to."""
    git_directories: tuple[str, ...] = ()
    """The Git directories in the roots. These directories are read-only, or the files in them that control Git are
    restored after a command.
    """
    protected: tuple[str, ...] = ()
    """Files and directories in the roots, other than Git directories, that must not change."""
    missing_git: tuple[str, ...] = ()
    """Paths in the roots at which a `.git` directory is missing or empty. Commands must not create a Git directory
    there.
    """
    installed: tuple[str, ...] = ()
    """Files and directories in the roots where Parley itself is installed."""
    refused: tuple[str, ...] = ()
    """Roots of the policy that are not writable, because Parley is installed in them and cannot be protected there.
    """
    links: tuple[str, ...] = ()
    """Symbolic links in the roots that lead to a protected or hidden path. No mount can cover a symbolic link, so a
    change to it is detected only after the command.
    """
    hidden_directories: tuple[str, ...] = ()
    hidden_files: tuple[str, ...] = ()

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.hidden_directories + self.hidden_files

    @property
    def read_only(self) -> tuple[str, ...]:
        """The read-only paths inside the writable roots."""
        return self.git_directories + self.protected + self.missing_git + self.installed

    def hides(self, path: str) -> bool:
        """Return whether this policy hides a path from commands."""
        return innermost(path, self.roots + self.hidden) in self.hidden

    def conceals(self, path: str) -> bool:
        """Return whether a path leads through a hidden directory, so that a command cannot use the path."""
        return any(
            self.hides(os.path.dirname(place)) and not any(is_below(root, place) for root in self.roots)
            for place, _ in _steps(path)
        )

    def is_writable(self, path: str) -> bool:
        """Return whether commands may write to a path."""
        return innermost(path, self.roots + self.read_only + self.hidden) in self.roots


def resolve(policy: SandboxPolicy, *, protects_installed: bool = True) -> ResolvedPolicy:
    """Resolve a policy against the existing files, and return the resolved policy. `protects_installed` states
    whether the sandbox mechanism can make single paths in a writable root read-only. If it is True, only the paths
    where Parley is installed become read-only. If it is False, each root that contains such a path becomes
    read-only (`ResolvedPolicy.refused`).

    Raises:
        SandboxUnavailable: a root was replaced after the policy was created, or a path in a root cannot be
            protected.
    """
    hidden = find_hidden(policy.hidden)
    roots = find_roots(policy.writable, hidden.modes)
    refuse_creatable(policy.hidden, roots)
    installed = find_installed(policy.installed, roots)
    refused = () if protects_installed else tuple(r for r in roots if any(is_below(p, r) for p in installed))
    roots = tuple(root for root in roots if root not in refused)
    hidden_directories, hidden_files = hidden.outermost(roots)
    git, agents = find_git(roots), find_agents(roots)
    resolved = ResolvedPolicy(
        roots=roots, refused=refused, hidden_directories=hidden_directories, hidden_files=hidden_files
    )
    protected = git.files | agents.paths
    covering = git.directories | protected
    marks = (*roots, *covering, *git.missing)

    def outermost(paths: Iterable[str]) -> Iterator[str]:
        """Yield those of the `paths` that are not hidden and do not lie in a directory that is itself protected."""
        for path in paths:
            if not resolved.hides(path) and innermost(os.path.dirname(path), marks) not in covering:
                yield path

    # Targets inside a Git directory are included, because only certain files of a Git directory are restored.
    targets = {path for path in git.targets if not resolved.hides(path)}
    resolved = replace(
        resolved,
        git_directories=sorted_by_depth(outermost(git.directories)),
        protected=sorted_by_depth({*outermost(protected), *targets} - git.directories),
        missing_git=sorted_by_depth(outermost(git.missing)),
        installed=sorted_by_depth(p for p in installed if is_below_any(p, roots) and not resolved.hides(p)),
    )
    named = (
        *hidden.links,
        *(path for path in policy.installed if is_below_any(path, roots)),
        *agents.links,
        *git.links,
    )
    links = {link for path in named for link in _links_in(path)} if roots else set[str]()
    return replace(
        resolved, links=sorted_by_depth(link for link in links if resolved.is_writable(os.path.dirname(link)))
    )


def refuse_hidden_cwd(resolved: ResolvedPolicy, cwd: str) -> None:
    """Check that a command's working directory is not hidden.

    Raises:
        SandboxUnavailable: the directory is hidden, or cannot be examined.
    """
    if (real := real_cwd(cwd)) is None:
        return
    if resolved.hides(real) or resolved.conceals(cwd):
        raise SandboxUnavailable(f"the working directory {quoted(cwd)} is hidden from commands")


def _links_in(path: str) -> Iterator[str]:
    """Yield the paths of the symbolic links that the kernel follows to resolve `path`. Only the last part of each
    yielded path is a symbolic link.
    """
    return (place for place, is_link in _steps(path) if is_link)


def _steps(path: str) -> Iterator[tuple[str, bool]]:
    """Yield the path of each directory entry that the kernel looks up to resolve `path`, and whether the entry is a
    symbolic link. No other part of the yielded path is a symbolic link.
    """
    here, waiting, followed = "/", path.split("/")[::-1], 0
    while waiting and followed < _MAX_LINKS:
        part = waiting.pop()
        if part == "..":
            here = os.path.dirname(here)
        if part in ("", ".", ".."):
            continue
        place = os.path.join(here, part)
        try:
            target = os.readlink(place)
        except (OSError, ValueError):
            yield place, False
            here = place
            continue
        yield place, True
        followed += 1
        waiting += target.split("/")[::-1]
        here = "/" if target.startswith("/") else here

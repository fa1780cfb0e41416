"""Creates the sandbox policy of a conversation, and resolves the directories that the commands of the conversation
may write to.

A command that can write to one directory must not be able to choose another writable directory. Therefore, a
symbolic link in a path is not followed if a command could have created it. After a path has been resolved, it
refers to the same directory for the rest of the conversation.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from parley.config.installation import installed_paths
from parley.config.types import Settings
from parley.ports.commands import SandboxPolicy, WritableRoot

__all__ = ["Roots", "policy_for", "read_only"]

log = logging.getLogger(__name__)

MAX_LINKS: Final = 40
"""The maximum number of symbolic links that are followed in one path. Linux has the same limit."""


def read_only(settings: Settings) -> SandboxPolicy:
    """Return the policy for read-only commands, which forbids writing and network access."""
    return SandboxPolicy(hidden=settings.withheld_paths, mechanism=settings.sandbox.mechanism)


def policy_for(settings: Settings, roots: Roots) -> SandboxPolicy | None:
    """Return the sandbox policy that the settings require; None if they require no sandbox. `roots` are the
    writable directories of the conversation.
    """
    if settings.sandbox_mode == "danger-full-access":
        return None
    chosen = settings.sandbox
    writable = roots.of(settings) if settings.sandbox_mode == "workspace-write" else ()
    if writable:
        _make_clones(settings)
    return SandboxPolicy(
        writable=writable,
        network=settings.network_access,
        unix_sockets=chosen.allow_unix_sockets,
        hidden=settings.withheld_paths,
        installed=(*installed_paths(root.path for root in writable), *settings.clones) if writable else (),
        mechanism=chosen.mechanism,
    )


def _make_clones(settings: Settings) -> None:
    """Create the directory that contains the clones of the configured repositories, before the first command runs.
    The sandbox must protect this directory. If a protected directory is missing, commands that could create the
    missing directory are not started.
    """
    for path in settings.clones[:1]:
        with suppress(OSError):
            os.makedirs(path, mode=0o700, exist_ok=True)


class Roots:
    """The writable directories of one conversation. Each path in the settings keeps referring to the directory to
    which it was first resolved.
    """

    def __init__(
        self, granted: set[str] | None = None, *, chosen: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create an object that has not resolved any directories yet.

        `granted` is the set of the writable directories of all conversations. This object adds the directories of
        its conversation to `granted`. `chosen` maps each working directory to the path without symbolic links to
        which it was resolved when it was first chosen, possibly in an earlier process.
        """
        self._chosen = chosen
        self._granted = set() if granted is None else granted
        self._found: dict[str, WritableRoot] = {}
        """Maps each path in the settings to the directory to which the path was first resolved."""
        self._missed: set[str] = set()
        """The paths in the settings that did not exist when they were first resolved. If such a path exists later
        and leads through a symbolic link, it is not writable, because a command may have created the link.
        """

    @property
    def is_empty(self) -> bool:
        """True if none of the directories in the settings has been resolved yet."""
        return not self._found and not self._missed

    def of(self, settings: Settings) -> tuple[WritableRoot, ...]:
        """Return the directories that exist and that the settings make writable. The `workdir` of a tool call does
        not become writable.
        """
        names = settings.writable_directories
        real = {name: path for name in names if (path := _real(name)) is not None}
        # A worktree is never a symbolic link, even if no command can write to the directory of the worktrees.
        worktrees = {os.path.join(os.path.dirname(clones), "worktrees") for clones in settings.clones}
        self._missed.update(name for name in names if name not in real and name not in self._found)
        for name, path in real.items():
            if (chosen := self._chosen.get(name, path)) != path:
                # The path now leads to another directory, so store a root whose identity no directory has.
                self._found.setdefault(name, WritableRoot(path=chosen, device=0, inode=0))
            if name in self._found and self._found[name].path != path:
                continue  # the directory was replaced, and the sandbox reports this
            # A command may have created a symbolic link where nothing existed before.
            others = {"/"} if name in self._missed else self._granted | set(real.values()) | worktrees
            if (link := _link_in(others, name)) is not None:
                log.warning("%s is not writable: a command may have created the symbolic link %s", name, link)
            elif (root := _root(path)) is not None:
                self._found[name] = root
        roots = {root.path: root for name in names if (root := self._found.get(name)) is not None}
        self._granted.update(roots)
        return tuple(roots.values())


def _real(path: str) -> str | None:
    try:
        return os.path.realpath(path, strict=True)
    except (OSError, ValueError):
        return None


def _root(path: str) -> WritableRoot | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return WritableRoot(path=path, device=found.st_dev, inode=found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _link_in(roots: Iterable[str], path: str) -> str | None:
    """Return the first symbolic link inside a directory in `roots` that is followed when `path` is resolved; None
    if no such link is followed. The targets of symbolic links are checked as well.
    """
    from pathlib import PurePath  # imported here: the start of a server does not need this module

    left = list(reversed(PurePath(path).parts[1:]))
    reached, links = "/", 0
    while left:
        part = left.pop()
        if part == "..":
            reached = os.path.dirname(reached)
            continue
        place = os.path.join(reached, part)
        try:
            target = os.readlink(place)
        except OSError:
            reached = place  # the path is not a symbolic link
            continue
        links += 1
        if links > MAX_LINKS or any(PurePath(reached).is_relative_to(root) for root in roots):
            return place
        left += reversed([each for each in target.split("/") if each not in ("", ".")])
        if target.startswith("/"):
            reached = "/"
    return None

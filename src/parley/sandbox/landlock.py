"""Confinement by Landlock: a command gives up all rights to files except those that rules grant.

A rule grants a right to a directory and everything in it, without exceptions. To hide a path, each directory that
leads to it is listed, and its other entries are granted one by one; no new file can be created in such a directory.
So `.git` cannot be excluded from a root: the files in it that Git obeys are restored after the command instead
(`protected_files`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from parley.common.paths import is_below
from parley.errors import SandboxUnavailable
from parley.ports.commands import (
    Command,
    CommandResult,
    LaunchSpec,
    Output,
    Restriction,
    Rule,
    SandboxPolicy,
    Starter,
)
from parley.sandbox.installed import Denials, refuse_installed
from parley.sandbox.paths import depth, parents
from parley.sandbox.protected_files import ProtectedFiles
from parley.sandbox.resolved_policy import ResolvedPolicy, refuse_hidden_cwd, resolve
from parley.sandbox.rights import OLDEST, READ, WRITE, WRITE_TO_FILE, Files, Scope, files_of, network_of, scopes_of
from parley.sandbox.seccomp import program

__all__ = ["Entry", "Landlock", "confine_thread", "entries", "read_rules", "restriction", "write_rules"]

_DEVICES: Final = ("full", "null", "random", "tty", "urandom", "zero")
"""Devices that programs need. No other device is granted, because for root it could be the disk that holds the
hidden files. Pseudo-terminals are not granted, because the right to `/dev/pts` would include the terminals of
the user.
"""

_LIST: Final = int(Files.READ_DIR)
_USE_DEVICE: Final = int(Files.READ_FILE | Files.WRITE_FILE | Files.TRUNCATE | Files.IOCTL_DEV)

_MOST_RULES: Final = 20_000
"""Limit of rules. Each costs some microseconds when a command starts."""


class Entry(Struct, frozen=True):
    """An entry of a directory."""

    path: str
    is_folder: bool


Listing = Callable[[str], Iterable[Entry]]
"""Lists a directory without its links: a right is granted to the target of a link, not to the link."""


def entries(folder: str) -> Iterator[Entry]:
    """Yield the entries of a directory, without links; none if the server cannot list it."""
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if not entry.is_symlink():
                    yield Entry(entry.path, entry.is_dir(follow_symlinks=False))
    except OSError:
        return


# --- rules -------------------------------------------------------------------------------


def read_rules(policy: ResolvedPolicy, listing: Listing = entries) -> Iterator[Rule]:
    """Yield rules to read everything except hidden paths and devices. Names of hidden files can still be listed."""
    yield Rule("/", _LIST)
    closed = _closed(policy)
    ways = _ways(closed)
    for way in ways:
        if not policy.hides(way):
            for entry in listing(way):
                if entry.path not in closed and entry.path not in ways:
                    yield Rule(entry.path, READ)
    for root in policy.roots:
        if root not in ways:
            yield Rule(root, READ)


def write_rules(policy: ResolvedPolicy, listing: Listing = entries) -> Iterator[Rule]:
    """Yield rules to write to the roots, except to hidden paths and the directories that lead to them."""
    closed = _closed(policy)
    ways = _ways(closed)
    for root in policy.roots:
        if root not in ways:
            yield Rule(root, WRITE)
            continue
        for way in ways:
            if is_below(way, root) and not policy.hides(way):
                for entry in listing(way):
                    if entry.path not in closed and entry.path not in ways:
                        yield Rule(entry.path, WRITE if entry.is_folder else WRITE_TO_FILE)


def _device_rules() -> Iterator[Rule]:
    for name in _DEVICES:
        yield Rule(f"/dev/{name}", _USE_DEVICE)


def _closed(policy: ResolvedPolicy) -> set[str]:
    """Return the paths that no rule for a directory may include."""
    return {*policy.hidden, "/dev"}


def _ways(closed: Iterable[str]) -> dict[str, None]:
    """Return all directories that contain a closed path, at any depth, outer ones first."""
    return dict.fromkeys(sorted({folder for path in closed for folder in parents(path)}, key=depth))


def restriction(
    policy: ResolvedPolicy, bounds: SandboxPolicy, *, abi: int, machine: str, listing: Listing = entries
) -> Restriction:
    """Return the restriction for a command.

    Raises:
        SandboxUnavailable: there would be too many rules, or the machine is not supported.
    """
    handled = files_of(abi)
    scoped = scopes_of(abi)
    if bounds.unix_sockets:
        handled &= ~int(Files.RESOLVE_UNIX)
        scoped &= ~int(Scope.ABSTRACT_UNIX_SOCKET)
    granted: dict[str, int] = {}
    for rules in (read_rules(policy, listing), write_rules(policy, listing), _device_rules()):
        for rule in rules:
            granted[rule.path] = granted.get(rule.path, 0) | rule.rights
            if len(granted) > _MOST_RULES:
                raise SandboxUnavailable(
                    "the directories in which something is hidden hold too many files for Landlock"
                )
    return Restriction(
        handled_files=handled,
        handled_network=0 if bounds.network else network_of(abi),
        scoped=scoped,
        rules=tuple(Rule(path, rights & handled) for path, rights in granted.items()),
        seccomp=program(
            machine,
            writable=bool(policy.roots),
            network=bounds.network,
            unix_sockets=bounds.unix_sockets,
            namespaces=False,
        ),
    )


# --- running a command -------------------------------------------------------------------


class Landlock:
    """Starts commands with a restriction. Protected files that they change are restored afterwards."""

    def __init__(self, starter: Starter, protected: ProtectedFiles, *, abi: int) -> None:
        self._starter = starter
        self._protected = protected
        self._abi = abi

    async def run(self, command: Command, bounds: SandboxPolicy, *, output: Output) -> CommandResult:
        """Run a command as `CommandRunner.run` does. A command that changed protected files counts as failed."""
        denials = Denials(output)
        ended = await self._protected.run(
            self._starter,
            lambda: self._prepared(command, bounds, denials),
            output=denials,
            roots=[root.path for root in bounds.writable],
            accepted=command.accepted,
        )
        return denials.explained(ended)

    def _prepared(self, command: Command, bounds: SandboxPolicy, denials: Denials) -> LaunchSpec:
        policy = resolve(bounds, protects_installed=False)
        refuse_hidden_cwd(policy, command.cwd)
        refuse_installed(policy, command.cwd)
        denials.begin(policy)
        restricted = restriction(policy, bounds, abi=self._abi, machine=os.uname().machine)
        self._protected.protect(
            policy, policy.git_directories + policy.protected + policy.missing_git + policy.links
        )
        return LaunchSpec(
            argv=command.argv,
            cwd=command.cwd,
            env=command.env,
            files=command.files,
            restriction=restricted,
            timeout_seconds=command.timeout_seconds,
        )


# --- a thread of the server --------------------------------------------------------------


def confine_thread(bounds: SandboxPolicy) -> bool:
    """Restrict the calling thread as `CommandRunner.confine_thread` does."""
    from parley.common.landlock import abi_version
    from parley.sandbox.kernel import confine

    try:
        abi = abi_version()
    except OSError:
        return False
    if abi < OLDEST:
        return False
    confine(write_rules(resolve(bounds)), bounds.writable)
    return True

"""Confinement by Landlock: a command gives up all rights to files but those that rules grant.

A rule grants a right to a directory and to all that is in it; nothing can be taken out again. So
where something is hidden, the directories on the way to it are listed, and what they hold is granted
one by one. A `.git` cannot be taken out of a root in this way, as then nothing new could be made
there: the files in it that Git obeys are restored after the command (`protected_files`).
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
"""Those of `/dev` that programs need. All others are out of reach: the user may be root, and then a device is
a disk with all that is hidden on it. Pseudo-terminals too: whoever may open one in `/dev/pts` may open those
that the user sits at."""

_LIST: Final = int(Files.READ_DIR)
_USE_DEVICE: Final = int(Files.READ_FILE | Files.WRITE_FILE | Files.TRUNCATE | Files.IOCTL_DEV)

_MOST_RULES: Final = 20_000
"""Each costs some microseconds at every start. A directory of so many entries is no home of anything hidden."""


class Entry(Struct, frozen=True):
    """Something in a directory."""

    path: str
    is_folder: bool


Listing = Callable[[str], Iterable[Entry]]
"""What a directory holds, links left out: nothing is granted to a link, only to what it leads to."""


def entries(folder: str) -> Iterator[Entry]:
    """What a directory holds; nothing if it may not be listed, and then nothing in it is granted."""
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if not entry.is_symlink():
                    yield Entry(entry.path, entry.is_dir(follow_symlinks=False))
    except OSError:
        return


# --- rules -------------------------------------------------------------------------------


def read_rules(policy: ResolvedPolicy, listing: Listing = entries) -> Iterator[Rule]:
    """All may be read but what is hidden, and devices. Names of what is hidden can be listed where their
    directory can."""
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
    """The roots may be written to. Where something hidden lies in one, the directories on the way to it stay
    as they are, and what else they hold may be written to."""
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
    """What is granted to nobody as part of something else."""
    return {*policy.hidden, "/dev"}


def _ways(closed: Iterable[str]) -> dict[str, None]:
    """All directories in which something closed lies, at any depth, outer ones first."""
    return dict.fromkeys(sorted({folder for path in closed for folder in parents(path)}, key=depth))


def restriction(
    policy: ResolvedPolicy, bounds: SandboxPolicy, *, abi: int, machine: str, listing: Listing = entries
) -> Restriction:
    """What the command gives up.

    Raises:
        SandboxUnavailable: that would take too many rules, or the machine is not known.
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
    """Starts commands with a restriction, and has protected files restored that they change."""

    def __init__(self, starter: Starter, protected: ProtectedFiles, *, abi: int) -> None:
        self._starter = starter
        self._protected = protected
        self._abi = abi

    async def run(self, command: Command, bounds: SandboxPolicy, *, output: Output) -> CommandResult:
        """As `Commands.run`; a command that changed protected files has failed."""
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
    """As `Commands.confine_thread`."""
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

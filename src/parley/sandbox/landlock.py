"""Confines commands with Landlock: a command has only the file rights that rules grant.

A rule grants a right to a directory and everything in it, without exceptions. To hide a path, the server lists each
directory that contains the path, and grants rights to all other entries of these directories one by one. Commands
cannot create files directly in these directories. A `.git` is not hidden in this way, because commands must be able
to create files next to it. Instead, the files in `.git` that control Git are restored after the command
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
"""The devices in `/dev` that commands may use. Disk devices are not included, because root could read hidden files
from a disk device. Pseudo-terminals are not included, because a right to `/dev/pts` would include the user's
terminals.
"""

_LIST: Final = int(Files.READ_DIR)
_USE_DEVICE: Final = int(Files.READ_FILE | Files.WRITE_FILE | Files.TRUNCATE | Files.IOCTL_DEV)

_MAX_RULES: Final = 20_000
"""The maximum number of rules for one command. Each rule adds a few microseconds to the start of a command."""


class Entry(Struct, frozen=True):
    """A file or subdirectory that a `Listing` returns."""

    path: str
    is_folder: bool


Listing = Callable[[str], Iterable[Entry]]
"""A function that lists a directory. The function omits symbolic links, because a rule for a symbolic link would
apply to its target.
"""


def entries(folder: str) -> Iterator[Entry]:
    """Yield the entries of the directory `folder`, without symbolic links. Yield nothing if the server cannot list
    it.
    """
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if not entry.is_symlink():
                    yield Entry(entry.path, entry.is_dir(follow_symlinks=False))
    except OSError:
        return


# --- rules -------------------------------------------------------------------------------


def read_rules(resolved: ResolvedPolicy, listing: Listing = entries) -> Iterator[Rule]:
    """Yield rules that grant the right to read all files except hidden files and devices. Commands can still list
    the names of hidden files.
    """
    yield Rule("/", _LIST)
    closed = _closed(resolved)
    ancestors = _ancestors(closed)
    for ancestor in ancestors:
        if not resolved.hides(ancestor):
            for entry in listing(ancestor):
                if entry.path not in closed and entry.path not in ancestors:
                    yield Rule(entry.path, READ)
    for root in resolved.roots:
        if root not in ancestors:
            yield Rule(root, READ)


def write_rules(resolved: ResolvedPolicy, listing: Listing = entries) -> Iterator[Rule]:
    """Yield rules that grant the right to write to the roots, except to hidden paths and to the directories that
    contain hidden paths.
    """
    closed = _closed(resolved)
    ancestors = _ancestors(closed)
    for root in resolved.roots:
        if root not in ancestors:
            yield Rule(root, WRITE)
            continue
        for ancestor in ancestors:
            if is_below(ancestor, root) and not resolved.hides(ancestor):
                for entry in listing(ancestor):
                    if entry.path not in closed and entry.path not in ancestors:
                        yield Rule(entry.path, WRITE if entry.is_folder else WRITE_TO_FILE)


def _device_rules() -> Iterator[Rule]:
    for name in _DEVICES:
        yield Rule(f"/dev/{name}", _USE_DEVICE)


def _closed(resolved: ResolvedPolicy) -> set[str]:
    """Return the hidden paths and `/dev`. No rule may apply to a directory that contains one of these paths."""
    return {*resolved.hidden, "/dev"}


def _ancestors(closed: Iterable[str]) -> dict[str, None]:
    """Return all directories above the paths in `closed`, as the keys of a dict, outer directories first."""
    return dict.fromkeys(sorted({folder for path in closed for folder in parents(path)}, key=depth))


def restriction(
    resolved: ResolvedPolicy, policy: SandboxPolicy, *, abi: int, machine: str, listing: Listing = entries
) -> Restriction:
    """Return the Landlock rules and the seccomp filter for a command.

    `resolved` is the resolved form of `policy`. `abi` is the version of the kernel's Landlock ABI, and `machine` is
    the machine name of `uname`. `listing` is the function that lists directories.

    Raises:
        SandboxUnavailable: the command needs more than `_MAX_RULES` rules, or the machine is not supported.
    """
    handled = files_of(abi)
    scoped = scopes_of(abi)
    if policy.unix_sockets:
        handled &= ~int(Files.RESOLVE_UNIX)
        scoped &= ~int(Scope.ABSTRACT_UNIX_SOCKET)
    granted: dict[str, int] = {}
    for rules in (read_rules(resolved, listing), write_rules(resolved, listing), _device_rules()):
        for rule in rules:
            granted[rule.path] = granted.get(rule.path, 0) | rule.rights
            if len(granted) > _MAX_RULES:
                raise SandboxUnavailable(
                    "the directories that contain hidden paths hold too many files for Landlock"
                )
    return Restriction(
        handled_files=handled,
        handled_network=0 if policy.network else network_of(abi),
        scoped=scoped,
        rules=tuple(Rule(path, rights & handled) for path, rights in granted.items()),
        seccomp=program(
            machine,
            writable=bool(resolved.roots),
            network=policy.network,
            unix_sockets=policy.unix_sockets,
            namespaces=False,
        ),
    )


# --- running a command -------------------------------------------------------------------


class Landlock:
    """Runs commands with a Landlock restriction. Protected files that the commands change are restored
    afterwards.
    """

    def __init__(self, starter: Starter, protected: ProtectedFiles, *, abi: int) -> None:
        self._starter = starter
        self._protected = protected
        self._abi = abi

    async def run(self, command: Command, policy: SandboxPolicy, *, output: Output) -> CommandResult:
        """Run a command with a restriction that enforces `policy`, and return its result. The command's output is
        passed to `output`. A command that changed protected files counts as failed.
        """
        denials = Denials(output)
        ended = await self._protected.run(
            self._starter,
            lambda: self._prepared(command, policy, denials),
            output=denials,
            roots=[root.path for root in policy.writable],
            accepted=command.accepted,
        )
        return denials.explained(ended)

    def _prepared(self, command: Command, policy: SandboxPolicy, denials: Denials) -> LaunchSpec:
        resolved = resolve(policy, protects_installed=False)
        refuse_hidden_cwd(resolved, command.cwd)
        refuse_installed(resolved, command.cwd)
        denials.begin(resolved)
        restricted = restriction(resolved, policy, abi=self._abi, machine=os.uname().machine)
        self._protected.protect(
            resolved, resolved.git_directories + resolved.protected + resolved.missing_git + resolved.links
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


def confine_thread(policy: SandboxPolicy) -> bool:
    """Permanently prevent the calling thread from writing to any path outside the roots of `policy`, and return
    True. If the kernel does not support Landlock, do nothing and return False.

    Raises:
        SandboxUnavailable: the policy cannot be enforced.
    """
    from parley.common.landlock import abi_version
    from parley.sandbox.kernel import confine

    try:
        abi = abi_version()
    except OSError:
        return False
    if abi < OLDEST:
        return False
    confine(write_rules(resolve(policy)), policy.writable)
    return True

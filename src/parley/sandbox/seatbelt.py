"""Confines commands on macOS with a Seatbelt profile, which the program `sandbox-exec` applies.

A profile is a list of rules. An operation that no rule allows is denied. A profile contains no paths, because paths
are passed as named parameters. A protected path is an exception in the rule that allows writing to its root, so the
order of the rules that allow operations does not matter. The only rules that deny operations are at the end, and
prevent directories from being moved.

The file system does not distinguish `.GIT` from `.git`, so each protected path is protected in every combination of
upper and lower case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from parley.common.paths import is_below, is_below_any
from parley.config.protected import AGENTS, GIT
from parley.ports.commands import Command, CommandResult, LaunchSpec, Output, SandboxPolicy, Starter
from parley.sandbox.paths import parents
from parley.sandbox.resolved_policy import ResolvedPolicy, refuse_hidden_cwd, resolve
from parley.sandbox.threads import in_thread

__all__ = ["LAUNCHER", "Profile", "Seatbelt", "profile", "words"]

LAUNCHER: Final = "/usr/bin/sandbox-exec"
"""The path of `sandbox-exec`. `PATH` is not searched, because it can contain a directory of the project."""

_BASE: Final = r"""(version 1)
(deny default)

(allow process-exec)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow ipc-posix-sem)
(allow mach-lookup (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow file-write-data file-ioctl (literal "/dev/null") (literal "/dev/tty") (literal "/dev/zero"))
(allow pseudo-tty)
(allow file-read* file-write* file-ioctl
  (literal "/dev/ptmx")
  (require-all (regex #"^/dev/ttys[0-9]+$") (extension "com.apple.sandbox.pty")))
(allow sysctl-read
  (sysctl-name-prefix "hw.")
  (sysctl-name-prefix "machdep.cpu.")
  (sysctl-name-prefix "kern.proc.pgrp.")
  (sysctl-name-prefix "kern.proc.pid.")
  (sysctl-name "kern.argmax")
  (sysctl-name "kern.hostname")
  (sysctl-name "kern.maxfilesperproc")
  (sysctl-name "kern.maxproc")
  (sysctl-name "kern.ngroups")
  (sysctl-name "kern.osproductversion")
  (sysctl-name "kern.osrelease")
  (sysctl-name "kern.ostype")
  (sysctl-name "kern.osvariant_status")
  (sysctl-name "kern.osversion")
  (sysctl-name "kern.secure_kernel")
  (sysctl-name "kern.usrstack64")
  (sysctl-name "kern.version")
  (sysctl-name "sysctl.proc_cputype")
  (sysctl-name "vm.loadavg"))
"""
"""The part of a profile that allows the operations that every command needs. This part allows only one service,
which resolves user names. A command may read system values (sysctl), but not `kern.procargs2`, which contains the
arguments and variables of other processes. A command may use only terminals that it created.
"""

_OTHER_TERMINALS: Final = r'(regex #"^/dev/ttys[0-9]+$")'
"""A filter that matches all terminals. It excludes terminals from the files that a command may read. The terminals
that the command created are readable nevertheless, because `_BASE` allows them.
"""

_NETWORK: Final = """(allow system-socket)
(allow network-outbound (remote ip "*:*"))
(allow network-inbound (local ip "*:*"))
(allow network-bind (local ip "*:*"))
(allow network-outbound (literal "/private/var/run/mDNSResponder"))
(allow mach-lookup
  (global-name "com.apple.SystemConfiguration.DNSConfiguration")
  (global-name "com.apple.SystemConfiguration.configd")
  (global-name "com.apple.trustd.agent"))
(allow sysctl-read (sysctl-name-prefix "net.routetable."))
"""
"""The part of a profile that allows connections to and from internet addresses. It also allows the unix socket that
resolves host names, and the services for the network configuration and for checking certificates.
"""

_UNIX_SOCKETS: Final = """(allow network-outbound (remote unix-socket))
(allow network-inbound (local unix-socket))
(allow network-bind (local unix-socket))
"""


class Profile(Struct, frozen=True, kw_only=True):
    """A Seatbelt profile: its text, and the values of its parameters."""

    text: str
    parameters: dict[str, str]
    """The values of the parameters, keyed by their names in the text."""


class Seatbelt:
    """Runs commands under a Seatbelt profile, with `sandbox-exec`."""

    name: Final = "seatbelt"

    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    async def run(self, command: Command, policy: SandboxPolicy, *, output: Output) -> CommandResult:
        """Run a command under a profile that enforces `policy`, and return its result. The command's output is
        passed to `output`.
        """
        start = await in_thread(lambda: _prepared(command, policy))
        return await self._starter.start(start, output=output)


def _prepared(command: Command, policy: SandboxPolicy) -> LaunchSpec:
    resolved = resolve(policy)
    refuse_hidden_cwd(resolved, command.cwd)
    return LaunchSpec(
        argv=words(profile(resolved, network=policy.network, unix_sockets=policy.unix_sockets), command.argv),
        cwd=command.cwd,
        env=command.env,
        files=command.files,
        timeout_seconds=command.timeout_seconds,
    )


def words(profile: Profile, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that runs a command under a profile."""
    parameters = (f"-D{name}={value}" for name, value in profile.parameters.items())
    return (LAUNCHER, "-p", profile.text, *parameters, "--", *argv)


def profile(resolved: ResolvedPolicy, *, network: bool, unix_sockets: bool) -> Profile:
    """Return the Seatbelt profile that enforces a resolved policy. `network` and `unix_sockets` have the same
    meaning as in `SandboxPolicy`.
    """
    named = _Named()
    parts = [_BASE]
    if network:
        parts.append(_NETWORK)
    if unix_sockets:
        parts.append(_UNIX_SOCKETS)
    parts += [*_reading(resolved, named), *_writing(resolved, named)]
    return Profile(text="\n".join(parts), parameters=named.parameters)


# --- rules -------------------------------------------------------------------------------


class _Named:
    """Collects the parameters of a profile. A parameter is created for a value when the value is first used."""

    def __init__(self) -> None:
        self.parameters: dict[str, str] = {}
        self._names: dict[tuple[str, str], str] = {}

    def name(self, kind: str, value: str) -> str:
        """Return the expression that refers to the parameter with the value `value` in the text of the profile.
        `kind` is the prefix of the parameter's name.
        """
        known = (kind, value)
        if known not in self._names:
            count = sum(other == kind for other, _ in self._names)
            self._names[known] = f"{kind}_{count}"
            self.parameters[self._names[known]] = value
        return f'(param "{self._names[known]}")'

    def at(self, path: str) -> str:
        """Return a filter that matches only `path` itself."""
        return f"(literal {self.name('PATH', path)})"

    def below(self, path: str) -> str:
        """Return a filter that matches a path and everything in it."""
        return f"(subpath {self.name('PATH', path)})"

    def in_any_spelling(self, path: str) -> str:
        """Return a filter that matches a path and everything in it, in any combination of upper and lower case."""
        return f"(regex {self.name('SPELLING', _any_spelling(path))})"


def _reading(resolved: ResolvedPolicy, named: _Named) -> Iterator[str]:
    """Yield rules that allow reading all files except hidden paths and terminals. The rules also allow reading
    roots inside hidden directories.
    """
    yield _allow("file-read*", _except((), [*_filters(resolved.hidden, named), _OTHER_TERMINALS]))
    for root in resolved.roots:
        if is_below_any(root, resolved.hidden):
            hidden = [path for path in resolved.hidden if path != root and is_below(path, root)]
            yield _allow("file-read*", _except([named.below(root)], _filters(hidden, named)))


def _writing(resolved: ResolvedPolicy, named: _Named) -> Iterator[str]:
    """Yield rules that allow writing to the roots, except to protected paths. The last rules prevent directories
    with protected paths from being moved.
    """
    by_name = {f"{root.rstrip('/')}/{name}" for root in resolved.roots for name in (GIT, *AGENTS)}
    protected = {*resolved.read_only, *resolved.hidden, *by_name} - {*resolved.roots}
    for root in resolved.roots:
        inside = sorted(path for path in protected if is_below(path, root))
        yield _allow("file-write*", _except([named.below(root)], _filters(inside, named)))
    pinned = {
        folder
        for path in (*resolved.roots, *protected)
        for folder in parents(path)
        if is_below_any(folder, resolved.roots)
    }
    for folder in sorted(pinned | {*resolved.roots}):
        yield f"(deny file-write-unlink {named.at(folder)})\n"


def _filters(paths: Sequence[str], named: _Named) -> list[str]:
    """Return filters that match the protected `paths` and everything in them. `named` collects the parameters that
    the filters refer to.

    The filters also match paths that do not exist yet.
    """
    return [kind(path) for path in paths for kind in (named.at, named.below, named.in_any_spelling)]


def _allow(operation: str, condition: str) -> str:
    return f"(allow {operation}\n  {condition})\n"


def _except(filters: Sequence[str], exceptions: Sequence[str]) -> str:
    """Return a condition that holds for each path that matches all `filters` and none of the `exceptions`."""
    conditions = [*filters, *(f"(require-not {exception})" for exception in exceptions)]
    return "(require-all\n    {})".format("\n    ".join(conditions))


# --- spellings ---------------------------------------------------------------------------

_ANY_CHARACTER: Final = "[^/]"
_ANY_CHARACTERS: Final = "[^/]+"

_PIECES: Final = re.compile(r"[\x20-\x7E]|[^\x20-\x7E]+")
"""The pattern that splits a path into single printable ASCII characters and runs of all other characters. The file
system may store other characters in several encodings.
"""


def _any_spelling(path: str) -> str:
    """Return a regular expression for a path and everything in it, in any combination of upper and lower case.

    A character that cannot be written literally in the expression is replaced with a pattern for any character. The
    expression may therefore match a few more names.
    """
    return f"^{''.join(map(_expression, _PIECES.findall(path.rstrip('/'))))}(/|$)"


def _expression(piece: str) -> str:
    if piece in "^[]\\":
        return _ANY_CHARACTER
    if not piece.isascii() or not piece.isprintable():
        return _ANY_CHARACTERS
    if piece.isalpha():
        return f"[{piece.lower()}{piece.upper()}]"
    return piece if piece == "/" else f"[{piece}]"

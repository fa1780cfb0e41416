"""Confinement on macOS: a profile for Seatbelt, and the launcher that lays it on.

A profile is text. No path is ever part of it: paths are handed over as parameters, which the text
names. What it does not name is denied. What is kept from a command is an exception within the rule
that allows the rest, so that it does not matter in which order rules are looked at; only that the way
to it cannot be moved is said by rules of their own, which deny and come behind.

The file system does not tell `.GIT` from `.git`. So each path that is kept from a command is also
kept from it in every other spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from parley.common.paths import is_below
from parley.config.protected import AGENTS, GIT
from parley.ports.commands import Command, CommandResult, LaunchSpec, Output, SandboxPolicy, Starter
from parley.sandbox.paths import parents
from parley.sandbox.resolved_policy import ResolvedPolicy, refuse_hidden_cwd, resolve
from parley.sandbox.threads import in_thread

__all__ = ["LAUNCHER", "Profile", "Seatbelt", "profile", "words"]

LAUNCHER: Final = "/usr/bin/sandbox-exec"
"""Never looked for elsewhere: the project may have put a program of that name into the search path."""

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
"""What every command may do. Names of users come from a service; what the system says of itself does
not hold the words and variables of other processes (`kern.procargs2`); and of the terminals, it has
those that it made itself."""

_OTHER_TERMINALS: Final = r'(regex #"^/dev/ttys[0-9]+$")'
"""What is typed there is not for a command to read."""

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
"""Addresses of the network alone, not the named sockets of this computer; but the one that names of other
computers are asked for."""

_UNIX_SOCKETS: Final = """(allow network-outbound (remote unix-socket))
(allow network-inbound (local unix-socket))
(allow network-bind (local unix-socket))
"""


class Profile(Struct, frozen=True, kw_only=True):
    """What a command may do, as Seatbelt takes it."""

    text: str
    parameters: dict[str, str]
    """By the names that the text has for them."""


class Seatbelt:
    """Has commands started by the launcher."""

    name: Final = "seatbelt"

    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    async def run(self, command: Command, bounds: SandboxPolicy, *, output: Output) -> CommandResult:
        """As `Commands.run`."""
        start = await in_thread(lambda: _prepared(command, bounds))
        return await self._starter.start(start, output=output)


def _prepared(command: Command, bounds: SandboxPolicy) -> LaunchSpec:
    policy = resolve(bounds)
    refuse_hidden_cwd(policy, command.cwd)
    return LaunchSpec(
        argv=words(profile(policy, network=bounds.network, unix_sockets=bounds.unix_sockets), command.argv),
        cwd=command.cwd,
        env=command.env,
        files=command.files,
        timeout_seconds=command.timeout_seconds,
    )


def words(profile: Profile, argv: Sequence[str]) -> tuple[str, ...]:
    """The command line that has a command run under a profile."""
    parameters = (f"-D{name}={value}" for name, value in profile.parameters.items())
    return (LAUNCHER, "-p", profile.text, *parameters, "--", *argv)


def profile(policy: ResolvedPolicy, *, network: bool, unix_sockets: bool) -> Profile:
    """What these policy come to. They must be as the system has them, behind all links."""
    named = _Named()
    parts = [_BASE]
    if network:
        parts.append(_NETWORK)
    if unix_sockets:
        parts.append(_UNIX_SOCKETS)
    parts += [*_reading(policy, named), *_writing(policy, named)]
    return Profile(text="\n".join(parts), parameters=named.parameters)


# --- rules -------------------------------------------------------------------------------


class _Named:
    """The parameters of a profile, each named when it is first needed."""

    def __init__(self) -> None:
        self.parameters: dict[str, str] = {}
        self._names: dict[tuple[str, str], str] = {}

    def name(self, kind: str, value: str) -> str:
        """What the text says in place of a value."""
        known = (kind, value)
        if known not in self._names:
            count = sum(other == kind for other, _ in self._names)
            self._names[known] = f"{kind}_{count}"
            self.parameters[self._names[known]] = value
        return f'(param "{self._names[known]}")'

    def at(self, path: str) -> str:
        """A filter for a path alone."""
        return f"(literal {self.name('PATH', path)})"

    def below(self, path: str) -> str:
        """A filter for a path and all that is in it."""
        return f"(subpath {self.name('PATH', path)})"

    def in_any_spelling(self, path: str) -> str:
        """A filter for the same, whatever the case of its letters."""
        return f"(regex {self.name('SPELLING', _any_spelling(path))})"


def _reading(policy: ResolvedPolicy, named: _Named) -> Iterator[str]:
    """Everything but what is hidden; and within that, the roots."""
    yield _allow("file-read*", _but((), [*_kept(policy.hidden, named), _OTHER_TERMINALS]))
    for root in policy.roots:
        if any(is_below(root, hidden) for hidden in policy.hidden):
            hidden = [path for path in policy.hidden if path != root and is_below(path, root)]
            yield _allow("file-read*", _but([named.below(root)], _kept(hidden, named)))


def _writing(policy: ResolvedPolicy, named: _Named) -> Iterator[str]:
    """The roots but what is protected in them; and none of the directories that lead to that can be moved away."""
    by_name = {f"{root.rstrip('/')}/{name}" for root in policy.roots for name in (GIT, *AGENTS)}
    fenced = policy.git_directories + policy.protected + policy.missing_git + policy.installed + policy.hidden
    fences = {*fenced, *by_name} - {*policy.roots}
    for root in policy.roots:
        inside = sorted(path for path in fences if is_below(path, root))
        yield _allow("file-write*", _but([named.below(root)], _kept(inside, named)))
    pinned = {
        folder
        for path in (*policy.roots, *fences)
        for folder in parents(path)
        if any(is_below(folder, root) for root in policy.roots)
    }
    for folder in sorted(pinned | {*policy.roots}):
        yield f"(deny file-write-unlink {named.at(folder)})\n"


def _kept(paths: Sequence[str], named: _Named) -> list[str]:
    """Filters for what must not be touched. The literal one is for a path at which nothing is yet."""
    return [kind(path) for path in paths for kind in (named.at, named.below, named.in_any_spelling)]


def _allow(operation: str, condition: str) -> str:
    return f"(allow {operation}\n  {condition})\n"


def _but(filters: Sequence[str], exceptions: Sequence[str]) -> str:
    """All of the filters, and none of the exceptions."""
    conditions = [*filters, *(f"(require-not {exception})" for exception in exceptions)]
    return "(require-all\n    {})".format("\n    ".join(conditions))


# --- spellings ---------------------------------------------------------------------------

_ANY_CHARACTER: Final = "[^/]"
_ANY_CHARACTERS: Final = "[^/]+"

_PIECES: Final = re.compile(r"[\x20-\x7E]|[^\x20-\x7E]+")
"""What a path is taken apart into: characters that can be written in one way only, and runs of others."""


def _any_spelling(path: str) -> str:
    """An expression for a path and what is in it, in upper and lower case.

    Where a character has no plain way to be said in an expression, any is meant: a few more names are
    then kept from a command.
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

"""Trying a mechanism out before it is relied on: a command that is confined by it attempts what it must not do."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from parley.common.os_errors import os_detail
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import Command, CommandResult, Output, SandboxPolicy, WritableRoot

__all__ = ["ConfinementMechanism", "run_self_test"]

_PATIENCE_SECONDS: Final = 20.0
"""For what takes a tenth of a second, on a computer with other work to do."""
_MOST_SAID: Final = 300
"""Bytes of a complaint that are passed on."""
_PASSING: Final = (
    *map(os.strerror, (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)),
    os.strerror(errno.ETIMEDOUT),
    f"killed by signal {signal.SIGKILL:d}",
    "another has taken its place",
    "Can't find source",
)
"""What is said when the system is short of something, or somebody has been at the ground meanwhile: that says
nothing about the mechanism."""

_NOT_IN_TMP: Final = "/var/tmp"
"""No root, unless somebody names it as one. `/tmp` is, and so commands of another server could change what lies
there while a mechanism is tried out."""
_UNUSABLE: Final = (errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS)
"""Why nothing can be made in a directory, now or later."""

_SCRIPT: Final = """
import os, sys
from _socket import AF_INET, SOCK_STREAM, socket

inside, outside, hidden = sys.argv[1:]


def is_refused(attempt, *arguments):
    try:
        attempt(*arguments)
    except OSError:
        return True
    return False


def use_network():
    socket(AF_INET, SOCK_STREAM).bind(("127.0.0.1", 0))


os.mkdir(inside + "/made")
attempts = {
    "write outside of what it may write to": is_refused(os.mkdir, outside + "/made"),
    "read what is hidden": is_refused(os.open, hidden, os.O_RDONLY),
    "use the network": is_refused(use_network),
}
for what, refused in attempts.items():
    if not refused:
        sys.exit("a command could still " + what)
print("confined")
"""


class ConfinementMechanism(Protocol):
    """A mechanism."""

    async def run(self, command: Command, bounds: SandboxPolicy, *, output: Output) -> CommandResult: ...


async def run_self_test(mechanism: ConfinementMechanism, *, home: str | None = None) -> str | None:
    """Why it does not work here, as a part of a sentence; None: it does.

    It is tried out in Parley's `home`, where that is there and can be written to: no command can.

    Raises:
        CommandNotStarted: this could not be found out; another time it may.
    """
    try:
        with _ground(home) as ground:
            return await _tried(mechanism, *ground)
    except OSError as error:
        raise CommandNotStarted(os_detail(error)) from error


async def _tried(mechanism: ConfinementMechanism, inside: str, outside: str, hidden: str) -> str | None:
    found = os.stat(inside)
    bounds = SandboxPolicy(
        writable=(WritableRoot(path=inside, device=found.st_dev, inode=found.st_ino),),
        hidden=(hidden,),
    )
    command = Command(
        argv=(sys.executable, "-I", "-S", "-c", _SCRIPT, inside, outside, hidden),
        cwd="/",
        env={},
        timeout_seconds=_PATIENCE_SECONDS,
        bounds=bounds,
    )
    said = bytearray()
    try:
        ended = await mechanism.run(command, bounds, output=lambda _, data: said.extend(data))
    except SandboxUnavailable as error:
        return _lasting(_last_line(said) or error.detail)
    if ended.timed_out:
        raise CommandNotStarted(f"a first command took more than {_PATIENCE_SECONDS:g} seconds")
    if ended.signal == signal.SIGKILL or ended.exit_code == 128 + signal.SIGKILL:
        raise CommandNotStarted("a first command was killed")
    if ended.exit_code == 0 and said == b"confined\n":
        return None
    return _lasting(_last_line(said) or f"a first command ended with {ended.exit_code}")


def _lasting(fault: str) -> str:
    """The fault, if it is one that stays.

    Raises:
        CommandNotStarted: it passes.
    """
    if any(words in fault for words in _PASSING):
        raise CommandNotStarted(fault)
    return fault


@contextmanager
def _ground(home: str | None) -> Iterator[tuple[str, str, str]]:
    """A directory inside, one outside, and a file that is hidden."""
    place = os.path.realpath(_new_directory(home))
    try:
        inside, outside, hidden = (os.path.join(place, name) for name in ("inside", "outside", "hidden"))
        os.mkdir(inside)
        os.mkdir(outside)
        with open(hidden, "x"):
            pass
        yield inside, outside, hidden
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _new_directory(home: str | None) -> str:
    for place in filter(None, (home, _NOT_IN_TMP)):
        try:
            return tempfile.mkdtemp(prefix="trial-", dir=place)
        except OSError as error:
            if error.errno not in _UNUSABLE:
                raise
    return tempfile.mkdtemp(prefix="parley-trial-")


def _last_line(said: bytearray) -> str:
    lines = said[-_MOST_SAID:].decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("bwrap: ") if lines else ""

"""Tests a sandbox mechanism: a confined command attempts actions that the sandbox must prevent."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from parley.common.os_errors import os_detail
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import Command, CommandResult, Output, SandboxPolicy, WritableRoot

__all__ = ["ConfinementMechanism", "run_self_test"]

_TIMEOUT_SECONDS: Final = 20.0
"""The timeout, in seconds, for the test command. The command takes a tenth of a second on an idle computer."""
_PREFIX: Final = "self-test-"
_ABANDONED_SECONDS: Final = 600.0
"""The age, in seconds, after which the directory of an earlier self-test is removed. Every self-test takes less
time, so the process of that self-test must have been killed.
"""
_MAX_ERROR_BYTES: Final = 300
"""The maximum length, in bytes, of the part of an error message that is quoted as the reason for a failed test."""
_TRANSIENT: Final = (
    *map(os.strerror, (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)),
    os.strerror(errno.ETIMEDOUT),
    f"killed by signal {signal.SIGKILL:d}",
    "it was replaced by another directory",
    "Can't find source",
)
"""Parts of error messages about transient faults, which do not mean that the mechanism fails: the system lacks a
resource, or another process has changed the directories of the test.
"""

_FALLBACK: Final = "/var/tmp"
"""The directory in which a self-test creates its files if Parley's home cannot be used. Commands can write to
`/var/tmp` only if the settings name it. `/tmp` is not used, because commands can write to it by default: a command
of another server could change the files of the self-test.
"""
_UNUSABLE: Final = (errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EPERM, errno.EROFS)
"""Error numbers for a directory in which a self-test cannot create its files. Another directory is then used."""

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
    "write outside of its writable directory": is_refused(os.mkdir, outside + "/made"),
    "read a hidden file": is_refused(os.open, hidden, os.O_RDONLY),
    "use the network": is_refused(use_network),
}
for what, refused in attempts.items():
    if not refused:
        sys.exit("a command could still " + what)
print("confined")
"""


class ConfinementMechanism(Protocol):
    """A mechanism that confines commands, such as bubblewrap."""

    async def run(self, command: Command, policy: SandboxPolicy, *, output: Output) -> CommandResult: ...


async def run_self_test(mechanism: ConfinementMechanism, *, home: str | None = None) -> str | None:
    """Return the reason why a mechanism does not work on this system, as a part of a sentence; None if the
    mechanism works.

    If Parley's `home` exists and is writable, the test creates its directories there, because no command can write
    to the home.

    Raises:
        CommandNotStarted: the test could not be run. Another attempt may succeed.
    """
    try:
        with _directories(home) as directories:
            return await _test(mechanism, *directories)
    except OSError as error:
        raise CommandNotStarted(os_detail(error)) from error


async def _test(mechanism: ConfinementMechanism, inside: str, outside: str, hidden: str) -> str | None:
    found = os.stat(inside)
    policy = SandboxPolicy(
        writable=(WritableRoot(path=inside, device=found.st_dev, inode=found.st_ino),),
        hidden=(hidden,),
    )
    command = Command(
        argv=(sys.executable, "-I", "-S", "-c", _SCRIPT, inside, outside, hidden),
        cwd="/",
        env={},
        timeout_seconds=_TIMEOUT_SECONDS,
        policy=policy,
    )
    printed = bytearray()
    try:
        ended = await mechanism.run(command, policy, output=lambda _, data: printed.extend(data))
    except SandboxUnavailable as error:
        return _permanent(_last_line(printed) or error.detail)
    if ended.timed_out:
        raise CommandNotStarted(f"the test command took more than {_TIMEOUT_SECONDS:g} seconds")
    if ended.signal == signal.SIGKILL or ended.exit_code == 128 + signal.SIGKILL:
        raise CommandNotStarted("the test command was killed")
    if ended.exit_code == 0 and printed == b"confined\n":
        return None
    return _permanent(_last_line(printed) or f"the test command ended with {ended.exit_code}")


def _permanent(fault: str) -> str:
    """Return `fault`, the reason why the self-test of a mechanism failed, if the reason is permanent.

    Raises:
        CommandNotStarted: the fault is transient (`_TRANSIENT`), so another attempt may succeed.
    """
    if any(words in fault for words in _TRANSIENT):
        raise CommandNotStarted(fault)
    return fault


@contextmanager
def _directories(home: str | None) -> Iterator[tuple[str, str, str]]:
    """Create two directories and a hidden file for the test, and remove them after the `with` block. Yield three
    paths: the directory that the test command may write to, the directory that it must not write to, and the hidden
    file.
    """
    if home is not None:
        _remove_abandoned(home)
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
    for place in filter(None, (home, _FALLBACK)):
        try:
            return tempfile.mkdtemp(prefix=_PREFIX, dir=place)
        except OSError as error:
            if error.errno not in _UNUSABLE:
                raise
    return tempfile.mkdtemp(prefix="parley-self-test-")


def _remove_abandoned(home: str) -> None:
    """Remove the directories in `home` that belong to self-tests whose processes were killed."""
    with suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if (
                entry.name.startswith(_PREFIX)
                and entry.is_dir(follow_symlinks=False)
                and time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_SECONDS
            ):
                shutil.rmtree(entry.path, ignore_errors=True)


def _last_line(printed: bytearray) -> str:
    lines = printed[-_MAX_ERROR_BYTES:].decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("bwrap: ") if lines else ""

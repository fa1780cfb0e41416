"""Converts a supervisor's last report into the result of a command, or into an error if the command did not
start.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from parley.common.os_errors import os_detail
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import CommandResult, Mount
from parley.tools.commands.messages import (
    ERROR_NUMBERS,
    FAILED,
    MOUNT_MISMATCH,
    MOUNTS_UNREADABLE,
    REPLACEABLE,
    REPLACED,
    STEPS,
    UNCONFINED,
    UNLIMITED,
    UNSTARTED,
)
from parley.tools.errors import CommandReplaced
from parley.wire.text import replace_surrogates

__all__ = ["result", "start_error"]


def result(status: int | None, *, timed_out: bool, seconds: float) -> CommandResult:
    """Return the result of a command. `status` is the wait status of the command; None if the supervisor died and
    the command was killed. `timed_out` is True if the command was killed at its deadline. `seconds` is the running
    time of the command.
    """
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    if code >= 0:
        return CommandResult(exit_code=code, seconds=seconds)
    if timed_out:
        return CommandResult(timed_out=True, seconds=seconds)
    return CommandResult(signal=-code, seconds=seconds)


def start_error(kind: bytes, number: int, mounts: Sequence[Mount]) -> CommandNotStarted | None:
    """Return the error for a report that a command was not started; None for any other report. `kind` and `number`
    are the fields of the report (see `messages.py`), and `mounts` are the requested mounts.
    """
    if kind == FAILED:
        return CommandNotStarted(_detail(number))
    if kind == REPLACED:
        return CommandReplaced(REPLACEABLE[number])
    if kind == UNCONFINED:
        step, error = divmod(number, ERROR_NUMBERS)
        return SandboxUnavailable(f"{STEPS[step]} failed: {_detail(error)}")
    if kind == MOUNT_MISMATCH:
        return SandboxUnavailable(
            f"{replace_surrogates(mounts[number].place)} was replaced while the sandbox was set up"
        )
    if kind == MOUNTS_UNREADABLE:
        return SandboxUnavailable(f"checking the mounts failed: {_detail(number)}")
    if kind == UNLIMITED:
        return SandboxUnavailable(f"limiting the number of processes failed: {_detail(number)}")
    if kind == UNSTARTED:
        code = os.waitstatus_to_exitcode(number)
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
        return SandboxUnavailable(f"bubblewrap {how} and has not started the command")
    return None


def _detail(number: int) -> str:
    return os_detail(OSError(number, os.strerror(number)))

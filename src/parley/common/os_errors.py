"""Describes errors and limits of the operating system."""

from __future__ import annotations

import errno
import resource
from typing import Final

__all__ = ["OUT_OF_MEMORY", "limit_reached", "os_detail", "with_limit"]


def os_detail(error: OSError) -> str:
    """What the system said, as clients and models read it: `No such file or directory (os error 2)`.

    Without a number where it was not the system that said so. An error that means a limit names the limit.
    """
    said = error.strerror or str(error)
    return with_limit(f"{said} (os error {error.errno})", error.errno) if error.errno else said


def with_limit(said: str, number: int) -> str:
    """Add the limit that an errno means, if it means one."""
    limit = _limit(number)
    return f"{said}: {limit}" if limit else said


def _limit(number: int) -> str:
    match number:
        case errno.EMFILE:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"the server may have {most} files and connections open (RLIMIT_NOFILE, `ulimit -n`)"
        case errno.ENFILE:
            return "all processes of this computer have reached their common limit (fs.file-max)"
        case errno.ENOMEM:
            return "no more memory is available (RLIMIT_AS, the memory limit of the control group, or the computer)"
        case errno.EAGAIN:
            return "no more processes or threads may be started (RLIMIT_NPROC, pids.max of the control group)"
        case _:
            return ""


OUT_OF_MEMORY: Final = (
    "the server has not enough memory for this (RLIMIT_AS, the memory limit of the control group, or the computer)"
)


_NO_MEMORY_TO_LOAD: Final = ("failed to map segment", "cannot allocate memory")
"""What the dynamic linker says, in lower case, when there is no memory for a library."""


def limit_reached(error: BaseException) -> str | None:
    """Describe the limit of the system that an error means; None: it means none."""
    match error:
        case MemoryError():
            return OUT_OF_MEMORY
        case OSError(errno=int(number)) if _limit(number):
            return os_detail(error)
        case ImportError(msg=str(why)) if any(sign in why.lower() for sign in _NO_MEMORY_TO_LOAD):
            return OUT_OF_MEMORY
        case RuntimeError(args=("can't start new thread",)):
            return f"no thread could be started: {_limit(errno.EAGAIN)}"
        case _:
            return None

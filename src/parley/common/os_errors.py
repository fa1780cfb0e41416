"""Converts errors of the operating system into text for people and models. If an error means that a limit was
reached, the text names the limit.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

__all__ = ["OUT_OF_MEMORY", "connection_detail", "limit_reached", "os_detail", "with_limit"]


def os_detail(error: OSError) -> str:
    """Return the text of an error for clients and models, such as `No such file or directory (os error 2)`.

    The text has no number if the error has no errno. If the error means that a limit of the operating system was
    reached, the text names the limit.
    """
    text = error.strerror or str(error)
    return with_limit(f"{text} (os error {error.errno})", error.errno) if error.errno else text


def connection_detail(error: OSError) -> str:
    """Return the text of a connection error, without the network address that the event loop adds to the text."""
    import ssl

    number = error.errno or 0
    match error:
        case ssl.SSLCertVerificationError():
            return f"the certificate is not trusted: {error.verify_message or error.reason}"
        case ssl.SSLError():
            return f"TLS failed: {error.reason or error}"
        case _ if number > 0:
            return with_limit(f"{os.strerror(number)} (os error {number})", number)
        case _:
            return error.strerror or str(error)


def with_limit(text: str, number: int) -> str:
    """Return `text`, which describes an error with the errno `number`. If this errno means that a limit of the
    operating system was reached, append a description of the limit.
    """
    limit = _limit(number)
    return f"{text}: {limit}" if limit else text


def _limit(number: int) -> str:
    match number:
        case errno.EMFILE:
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return f"the server can have at most {most} files and connections open (RLIMIT_NOFILE, `ulimit -n`)"
        case errno.ENFILE:
            return "the processes of this computer have reached the limit on open files (fs.file-max)"
        case errno.ENOMEM:
            return "no more memory is available (RLIMIT_AS, the memory limit of the control group, or the computer)"
        case errno.EAGAIN:
            return "no more processes or threads can be started (RLIMIT_NPROC, pids.max of the control group)"
        case _:
            return ""


OUT_OF_MEMORY: Final = (
    "the server does not have enough memory (RLIMIT_AS, the memory limit of the control group, or the computer)"
)


_NO_MEMORY_TO_LOAD: Final = ("failed to map segment", "cannot allocate memory")
"""Parts, in lower case, of the error messages with which the dynamic linker reports that there is no memory for a
library.
"""


def limit_reached(error: BaseException) -> str | None:
    """If `error` means that a limit of the operating system was reached, return text that describes the error and
    names the limit. For any other error, return None.
    """
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

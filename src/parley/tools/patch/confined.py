"""A patch that a process of its own writes, for systems where no thread can be kept within bounds.

Both sides are here: the command that the server has run, and what happens in it. The patch is verified
there once more, and nothing is written unless that comes to what was allowed. The process does not confine
itself: whoever runs the command does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from parley.ports.commands import Bounds, Command, Ended, Output
from parley.tools.errors import PatchRefused
from parley.tools.patch.commit import commit, one_at_a_time
from parley.tools.patch.plan import Change, digest, verify
from parley.wire.events import OutputStream
from parley.wire.text import replace_surrogates

__all__ = ["Order", "Run", "commit_confined", "main"]

_ORDER_DESCRIPTOR: Final = 3
_REFUSED: Final = 3
"""The exit code that says: stderr has the reason, and nothing was changed. Python itself ends with 1 and 2."""

_PATIENCE_SECONDS: Final = 3600.0
"""To end the process would leave the patch half written. It needs milliseconds, or as long as the file system."""


Run = Callable[[Command, Output], Ended]
"""Runs a command, as `Commands.run` does, and returns when it has ended."""


class Order(Struct, frozen=True, kw_only=True):
    """A patch that was allowed. Paths are bytes: not every one is text."""

    patch: str
    workdir: bytes
    cwd: bytes
    digest: bytes
    """Of all that it comes to."""


def commit_confined(
    changes: Sequence[Change], bounds: Bounds, run: Run, *, patch: str, workdir: str, cwd: str
) -> tuple[str, ...]:
    """Make the changes that a patch comes to, as `commit` does, by a process within these bounds.

    Raises:
        PatchRefused: one of them cannot be made, or a file is not what it was; nothing was changed. Or the
            process has come to a bad end; the text says which.
        CommandNotStarted: there is no such process; nothing was changed.
    """
    order = Order(patch=patch, workdir=os.fsencode(workdir), cwd=os.fsencode(cwd), digest=digest(changes))
    said: dict[OutputStream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    command = Command(
        argv=(sys.executable, "-I", "-m", __name__),
        cwd="/",
        env={},
        timeout_seconds=_PATIENCE_SECONDS,
        bounds=bounds,
        files=(msgspec.msgpack.encode(order),),
    )
    with one_at_a_time(changes):
        ended = run(command, lambda stream, data: said[stream].extend(data))
    stdout, stderr = (said[stream].decode(errors="replace") for stream in ("stdout", "stderr"))
    if ended.exit_code == 0:
        return tuple(stdout.split("\n")[:-1])
    if ended.exit_code == _REFUSED:
        raise PatchRefused(stderr)
    raise PatchRefused("Failed to write files: the process that writes them has failed, and may have begun")


# --- in the process ----------------------------------------------------------------------


def main() -> int:
    with open(_ORDER_DESCRIPTOR, "rb") as file:
        order = msgspec.msgpack.decode(file.read(), type=Order)
    try:
        plan = verify(order.patch, workdir=os.fsdecode(order.workdir), cwd=os.fsdecode(order.cwd))
        if digest(plan.changes) != order.digest:
            raise PatchRefused("Failed to write files: changed meanwhile")
        left = commit(plan.changes)
    except PatchRefused as refusal:
        sys.stderr.buffer.write(replace_surrogates(str(refusal)).encode())
        return _REFUSED
    sys.stdout.buffer.write("".join(replace_surrogates(f"{sentence}\n") for sentence in left).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`parley` that reports event loop steps with a long CPU time on stderr."""

from __future__ import annotations

import asyncio.events
import runpy
import sys
import time
from typing import Final

MUCH_SECONDS: Final = 0.05

_run = asyncio.events.Handle._run


def _measured(handle: asyncio.events.Handle) -> None:
    began = time.thread_time()
    _run(handle)
    took = time.thread_time() - began
    if took > MUCH_SECONDS:
        print(f"BUSY {took:.3f}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    setattr(asyncio.events.Handle, "_run", _measured)  # noqa: B010  # a method of the library, in this process alone
    runpy.run_module("parley", run_name="__main__")

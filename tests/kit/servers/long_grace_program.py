"""`parley`, which gives clients of other processes an hour to follow a call before its question is denied.

A test that passes with it shows whether the server waits for them at all, without measuring time.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Final

from parley.runtime import approvals

__all__ = ["LONG_GRACE"]

LONG_GRACE: Final = (sys.executable, "-P", str(Path(__file__)))
"""The command that runs it."""

if __name__ == "__main__":
    setattr(approvals, "FOLLOWERS_SECONDS", 3600.0)  # noqa: B010  # in this process alone
    runpy.run_module("parley", run_name="__main__")

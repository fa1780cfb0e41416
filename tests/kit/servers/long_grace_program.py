"""`parley` that gives clients of other processes an hour to follow a call before its approval request is denied.

With it, a test can show that the server waits for these clients, without measuring time.
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

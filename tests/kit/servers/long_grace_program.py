"""`parley` that waits an hour for clients of other processes before it denies the approval request of a call.

With this program, a test can show without measuring time that the server waits for these clients.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Final

from parley.runtime import approvals

__all__ = ["LONG_GRACE"]

LONG_GRACE: Final = (sys.executable, "-P", str(Path(__file__)))
"""The command line of this program."""

if __name__ == "__main__":
    setattr(approvals, "FOLLOWERS_SECONDS", 3600.0)  # noqa: B010  # in this process alone
    runpy.run_module("parley", run_name="__main__")

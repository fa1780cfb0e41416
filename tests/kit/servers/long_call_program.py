"""`parley` whose calls wait an hour for the write lock of a home before they fail.

With this program, a test can show that a command does not wait for such a call.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Final

from parley.ports import store

__all__ = ["LONG_CALL"]

LONG_CALL: Final = (sys.executable, "-P", str(Path(__file__)))
"""The command line of this program."""

if __name__ == "__main__":
    setattr(store, "CALL_SECONDS", 3600.0)  # noqa: B010  # in this process alone, before other modules read it
    runpy.run_module("parley", run_name="__main__")

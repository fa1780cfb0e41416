"""`parley` that waits an hour for the write lock of a home before it opens the database read-only.

A test that holds the lock stops the program at a known step for as long as it needs.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Final

from parley.stores.sqlite import store

__all__ = ["LONG_WAIT"]

LONG_WAIT: Final = (sys.executable, "-P", str(Path(__file__)))
"""The command line of this program."""

if __name__ == "__main__":
    setattr(store, "OPEN_SECONDS", 3600.0)  # noqa: B010  # in this process alone
    runpy.run_module("parley", run_name="__main__")

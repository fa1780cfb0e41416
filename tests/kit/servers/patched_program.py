"""`parley` with another value of one constant.

The arguments of this program are the module and the name of the constant, its value, and the arguments of `parley`.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Final

__all__ = ["LONG_CALL", "LONG_GRACE", "LONG_WAIT", "SHORT_LEASE", "patched"]


def patched(module: str, name: str, value: float) -> tuple[str, ...]:
    """Return the command line of `parley` in which the constant `name` of `module` has the given value."""
    return (sys.executable, "-P", str(Path(__file__)), module, name, str(value))


LONG_CALL: Final = patched("parley.ports.store", "CALL_SECONDS", 3600.0)
"""`parley` whose calls wait an hour for the write lock of a home before they fail.

With this program, a test can show that a command does not wait for such a call.
"""

LONG_GRACE: Final = patched("parley.runtime.approvals", "FOLLOWERS_SECONDS", 3600.0)
"""`parley` that waits an hour for clients of other processes before it denies the approval request of a call.

With this program, a test can show without measuring time that the server waits for these clients.
"""

LONG_WAIT: Final = patched("parley.stores.sqlite.store", "OPEN_SECONDS", 3600.0)
"""`parley` that waits an hour for the write lock of a home before it opens the database read-only.

A test that holds the lock stops the program at a known step for as long as it needs.
"""

SHORT_LEASE: Final = patched("parley.stores.postgres.store", "LEASE_SECONDS", 3.0)
"""`parley` with leases of three seconds instead of fifteen.

A node therefore gives up its leases after two seconds without the database, and a stopped node is replaced after
three seconds.
"""

if __name__ == "__main__":
    _, module, name, value, *words = sys.argv
    constants = vars(importlib.import_module(module))  # before other modules read the constant
    if name not in constants:
        raise AttributeError(f"{module} has no constant {name}")
    constants[name] = float(value)
    sys.argv[1:] = words
    runpy.run_module("parley", run_name="__main__")

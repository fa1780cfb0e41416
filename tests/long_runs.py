"""Runs the tests that are too long for every run: `make test-long`.

The tests run in pieces, one after the other. A piece that fails does not stop the others. At the end there is a
line for each piece, and the exit code is 1 if one of them failed. `make test-long PIECES="fault scenario"` runs
only these.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Final

__all__ = ["PIECES"]

LONG: Final = ("-m", "long", "--hypothesis-profile=random", "--timeout=3600")
CHILD_PROCESSES: Final = ("-m", "not long", "--child-processes", "--hypothesis-profile=long", "--timeout=900")

PIECES: Final[dict[str, tuple[str, ...]]] = {
    "fault": (*LONG, "tests/fault"),
    "scenario": (*LONG, "tests/scenario"),
    "hosts": (*LONG, "tests/hosts"),
    "others": (*LONG, "tests", *(f"--ignore=tests/{folder}" for folder in ("fault", "scenario", "hosts"))),
    "child-scenario": (*CHILD_PROCESSES, "tests/scenario"),
    "child-fault": (*CHILD_PROCESSES, "tests/fault"),
    "child-property": (*CHILD_PROCESSES, "tests/property"),
    "child-contract": (*CHILD_PROCESSES, "tests/contract"),
    "child-unit": (*CHILD_PROCESSES, "tests/unit"),
}
"""The arguments of pytest by the name of the piece. All pieces together have every test marked with `long`, and all
other tests that start servers, with servers that are processes."""

NO_TESTS: Final = 5
"""The exit code of pytest if it found no test. Options of the caller can be the reason."""


def main(names: list[str], options: list[str]) -> int:
    """Run the named pieces with additional options of pytest, and return the exit code."""
    if unknown := [name for name in names if name not in PIECES]:
        print(f"unknown piece {unknown[0]!r} (choose from {', '.join(PIECES)})", file=sys.stderr)
        return 2
    results = []
    for name in names or PIECES:
        print(f"=== {name}", flush=True)
        began = time.monotonic()
        command = (sys.executable, "-m", "pytest", "--workers", "2", *PIECES[name], *options)
        code = subprocess.run(
            command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PARLEY_TEST_LONG": "1"}
        ).returncode
        results.append((name, code, time.monotonic() - began))
    print()
    for name, code, seconds in results:
        outcome = "passed" if code in (0, NO_TESTS) else f"failed (pytest exited with {code})"
        print(f"{name:16}{seconds:7.0f} s  {outcome}")
    return int(any(code not in (0, NO_TESTS) for _, code, _ in results))


if __name__ == "__main__":
    sys.exit(main(os.environ.get("PIECES", "").split(), sys.argv[1:]))

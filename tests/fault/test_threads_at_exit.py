"""Processes that exit while a thread is still running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys, threading, time
from parley.cli.main import main

class Freed:
    def __del__(self):
        os.write(1, b"freed")

freed = Freed()
if sys.argv.pop(1) == "thread":
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
sys.exit(main())
"""


@pytest.mark.parametrize("arguments", [("completion", "bash"), ("ls",)])
def test_a_process_whose_threads_run_exits_without_freeing_what_they_use(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (code, out, err), (expected_code, expected_out, expected_err) = (
        ended(tmp_path, kind, *arguments) for kind in ("thread", "none")
    )

    assert (code, out + "freed", err) == (expected_code, expected_out, expected_err)


def ended(directory: Path, *arguments: str) -> tuple[int, str, str]:
    end = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, *arguments],
        env={"PARLEY_HOME": str(directory / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    return end.returncode, end.stdout, end.stderr

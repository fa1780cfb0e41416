"""Commands that signals end."""

from __future__ import annotations

import subprocess
import sys

from kit.system.commands import TIMEOUT_SECONDS

SIGNALLED_AT_THE_END = """
import asyncio, os, signal
from asyncio.selector_events import BaseSelectorEventLoop
from parley.cli.runner import run_until_signal

close = BaseSelectorEventLoop._close_self_pipe

def close_and_signal(loop):
    close(loop)
    os.kill(os.getpid(), signal.SIGTERM)

BaseSelectorEventLoop._close_self_pipe = close_and_signal
raise SystemExit(run_until_signal(asyncio.sleep(0, 3)))
"""


def test_a_signal_while_the_event_loop_closes_is_not_reported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_AT_THE_END],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")

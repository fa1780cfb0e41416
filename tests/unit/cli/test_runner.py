"""Commands that signals end."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from kit.system.commands import TIMEOUT_SECONDS
from parley.cli.runner import run_until_signal

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


def test_a_command_that_cancels_itself_after_ctrl_c_has_the_exit_code_of_the_signal() -> None:
    async def cancel() -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return 0

    assert run_until_signal(cancel()) == 130

"""Measures `parley chat` on a pseudo-terminal: the time to the first frame, and the input lag during an answer.

The input lag is the time from a key to its character on the terminal. Each key is another letter that occurs
nowhere else on the screen.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import pty
import random
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from bench.page import SECTION
from bench.pipe import Gone
from bench.report import BARE, Row
from bench.resident import resident
from bench.servers import Parley, process_cpu_seconds
from bench.startup import bare_start

__all__ = ["chat"]

COLUMNS: Final = 120
ROWS: Final = 40
STARTS: Final = 9
RATES: Final = {100: (1, 9, 1_800, 0.1), 1_000: (2, 1, 10_000, 0.2)}
"""By the number of deltas per second: the number of deltas after which the model pauses, the length of the pause in
milliseconds, the number of all deltas, and the budget for the lag in seconds.
"""
KEY_SECONDS: Final = (0.03, 0.07)
"""The shortest and the longest time between two keys."""
LINE: Final = 40
"""The number of letters before the input is cleared."""
TIMEOUT_SECONDS: Final = 60.0
PROMPT: Final = b"> "
LETTERS: Final = [chr(code) for code in (*range(0x410, 0x450), *range(0x391, 0x3A1), *range(0x3B1, 0x3C1))]
CLEAR: Final = b"\x15"


class _Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, environ: Mapping[str, str], work: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.started_at = time.perf_counter()
        self.process = subprocess.Popen(
            (sys.executable, "-P", "-m", "parley", "chat", *arguments),
            env={**environ, "TERM": "xterm-256color", "PYTHONWARNINGS": "ignore"},
            cwd=work,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def read(self, seconds: float) -> bytes:
        """Return what the chat writes next; nothing if it writes nothing in time."""
        if not select.select([self._ours], [], [], max(seconds, 0))[0]:
            return b""
        with contextlib.suppress(OSError):  # the chat has ended
            if data := os.read(self._ours, 1 << 16):
                return data
        raise Gone("parley chat has ended")

    def until(self, text: bytes) -> float:
        """Read until the chat writes a text, and return the time."""
        seen, end = b"", time.perf_counter() + TIMEOUT_SECONDS
        while text not in seen:
            if time.perf_counter() > end:
                raise Gone(f"parley chat did not write {text!r}")
            seen = seen[-len(text) :] + self.read(end - time.perf_counter())
        return time.perf_counter()

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        end = time.perf_counter() + TIMEOUT_SECONDS
        while self.process.poll() is None and time.perf_counter() < end:
            with contextlib.suppress(Gone):
                self.read(0.05)
        self.process.kill()
        os.close(self._ours)


@contextmanager
def _chat(environ: Mapping[str, str], work: Path, *arguments: str) -> Iterator[_Terminal]:
    terminal = _Terminal(environ, work, *arguments)
    try:
        yield terminal
    finally:
        terminal.close()


def chat(base_url: str) -> list[Row]:
    return [_first_frame(base_url), *(_lag(base_url, rate) for rate in RATES)]


def _first_frame(base_url: str) -> Row:
    bare, taken = [], []
    with resident(base_url) as server:
        for _ in range(STARTS):
            bare.append(bare_start())
            with _chat(server.environ, server.work) as terminal:
                taken.append(terminal.until(PROMPT) - terminal.started_at)
    values = {Parley.name: median(taken) * 1000, BARE: median(bare) * 1000}
    return Row(
        what="parley chat, process start to first frame",
        unit="ms",
        values=values,
        notes=(f"median of {STARTS} runs; {values[Parley.name] / values[BARE]:.2f} × {BARE}",),
    )


def _lag(base_url: str, rate: int) -> Row:
    group, pause, deltas, budget = RATES[rate]
    with resident(base_url) as server:
        script = server.work / "script.json"
        words = (SECTION * (deltas // len(SECTION.split()) + 1)).split(" ")[:deltas]
        steps: list[dict[str, object]] = []
        for start in range(0, deltas, group):
            steps += [{"text": " ".join(words[start : start + group]) + " "}, {"delay_ms": pause}]
        script.write_text(json.dumps({"replies": [steps]}))
        settings = (
            'model_provider="chat"',
            'model_providers.chat.name="chat"',
            'model_providers.chat.wire_api="scripted"',
            f"model_providers.chat.script={json.dumps(str(script))}",
        )
        options = [word for setting in settings for word in ("-c", setting)]
        with _chat(server.environ, server.work, "go", *options) as terminal:
            terminal.until(b"working")
            began, cpu = time.perf_counter(), process_cpu_seconds(terminal.process.pid)
            lags = _type(terminal)
            seconds = time.perf_counter() - began
            cpu = process_cpu_seconds(terminal.process.pid) - cpu
    lags.sort()
    worst = lags[min(len(lags) - 1, int(len(lags) * 0.99))]
    return Row(
        what=f"parley chat, input lag at {rate:,} deltas/s, 99th percentile",
        unit="ms",
        values={Parley.name: worst * 1000},
        budget=f"at most {budget * 1000:.0f} ms",
        kept=worst <= budget,
        notes=(
            f"median {median(lags) * 1000:.0f} ms, longest {lags[-1] * 1000:.0f} ms, of {len(lags)} keys; "
            f"{deltas / seconds:,.0f} deltas/s of Markdown at {COLUMNS} × {ROWS}; "
            f"the chat used {100 * cpu / seconds:.0f} % of a core",
        ),
    )


def _type(terminal: _Terminal) -> list[float]:
    """Type letters until the turn has ended. Return the lag of each letter in seconds."""
    lags: list[float] = []
    random.seed(1)
    for number, letter in enumerate(itertools.cycle(LETTERS)):
        if number % LINE == 0:
            terminal.press(CLEAR)
            if not _is_working(terminal):
                return lags
        pause_ends = time.perf_counter() + random.uniform(*KEY_SECONDS)
        while (rest := pause_ends - time.perf_counter()) > 0:
            terminal.read(rest)
        pressed = time.perf_counter()
        terminal.press(letter.encode())
        lags.append(terminal.until(letter.encode()) - pressed)
    raise AssertionError  # the letters never end


def _is_working(terminal: _Terminal) -> bool:
    """Return whether the duration of the turn still changes, as it does every second while the turn is running."""
    end, seen = time.perf_counter() + 2.5, b""
    while time.perf_counter() < end:
        seen += terminal.read(0.1)
        if b"Esc interrupts" in seen or b"working" in seen:
            return True
    return False

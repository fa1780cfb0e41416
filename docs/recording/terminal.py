"""A program in a terminal of tmux. A thread captures the screen each time that it has changed."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

__all__ = ["COLUMNS", "ROWS", "Frame", "Terminal"]

COLUMNS: Final = 80
ROWS: Final = 24
CAPTURE_SECONDS: Final = 0.06
"""The time between two looks at the screen."""
WAIT_SECONDS: Final = 90.0
KEY_SECONDS: Final = 0.05
"""The time between two keys of a person who types fast."""


class Frame(NamedTuple):
    """The screen at one time."""

    seconds: float
    """The time since the beginning of the recording."""
    screen: str
    """The lines with the escapes for colours."""
    cursor: tuple[int, int] | None
    """The column and the row of the cursor; None if it is hidden."""


class Terminal:
    """`with Terminal(command, env=..., cwd=...) as terminal` runs a command and records it."""

    def __init__(self, command: list[str], *, env: Mapping[str, str], cwd: Path) -> None:
        self._command, self._env, self._cwd = command, env, cwd
        self._directory = tempfile.TemporaryDirectory(prefix="tmux-")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._capture)
        self.frames: list[Frame] = []

    def __enter__(self) -> Self:
        variables = [f"{name}={value}" for name, value in self._env.items()]
        command = shlex.join(["env", "-i", "TERM=tmux-256color", *variables, *self._command])
        size = ("-x", str(COLUMNS), "-y", str(ROWS))
        self._tmux("-f", os.devnull, "new-session", "-d", *size, "-c", str(self._cwd), f"{command}; cat")
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._tmux("kill-server")
        self._directory.cleanup()

    def type(self, text: str) -> None:
        """Type a text as a person types it."""
        for key in text:
            self._tmux("send-keys", "-l", "--", key)
            time.sleep(KEY_SECONDS)

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def pause(self, seconds: float) -> None:
        """Give the viewer time to read."""
        time.sleep(seconds)

    def wait_for(self, text: str) -> None:
        """Wait until the screen shows a text.

        Raises:
            TimeoutError: the screen does not show the text.
        """
        self._wait(lambda: text in self._tmux("capture-pane", "-p"), text)

    def _wait(self, is_reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_reached():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the screen does not show {what!r}:\n{self._tmux('capture-pane', '-p')}")
            time.sleep(CAPTURE_SECONDS)

    def _capture(self) -> None:
        while not self._ended.wait(CAPTURE_SECONDS):
            seconds = time.monotonic() - self._start
            place = self._tmux("display-message", "-p", "#{cursor_x} #{cursor_y} #{cursor_flag}").split()
            column, row, is_shown = map(int, place)
            frame = Frame(seconds, self._tmux("capture-pane", "-p", "-e"), (column, row) if is_shown else None)
            if not self.frames or frame[1:] != self.frames[-1][1:]:
                self.frames.append(frame)

    def _tmux(self, *arguments: str) -> str:
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TMUX_TMPDIR": self._directory.name, "HOME": "/"}
        return subprocess.run(
            ["tmux", "-u", *arguments], env=env, capture_output=True, check=True, text=True, timeout=WAIT_SECONDS
        ).stdout

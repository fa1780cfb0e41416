"""A program in a terminal of tmux, used as a person would use it: keys go in, and the screen comes out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until

__all__ = ["TMUX", "Terminal"]

CHECK_SECONDS: Final = 0.05
"""The time between two looks at the screen. Each look starts a program."""

_PROGRAM: Final = shutil.which("tmux")

TMUX: Final = pytest.mark.skipif(_PROGRAM is None, reason="tmux is not installed")
"""Marks tests that need tmux."""


class Terminal:
    """A terminal with one program: `async with Terminal(("parley", "chat"), env=..., cwd=...) as terminal`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        columns: int = 80,
        rows: int = 24,
        term: str = "screen-256color",
    ) -> None:
        self._term = term
        self._command, self._env, self._cwd = tuple(command), dict(env), cwd
        self._columns, self._rows = columns, rows
        # The path of a socket must be short, and the directories of tests have long names.
        self._directory = tempfile.mkdtemp(prefix="tmux-")

    async def __aenter__(self) -> Self:
        env = [f"{name}={value}" for name, value in {"LC_ALL": "C.UTF-8", **self._env}.items() if name != "TERM"]
        # The screen shows the exit code when the program has ended.
        script = (
            f'{shlex.join(("env", "-i", f"TERM={self._term}", *env, *self._command))}; echo "exit code $?"; cat'
        )
        size = ("-x", str(self._columns), "-y", str(self._rows))
        self._tmux(
            "-f", os.devnull, "new-session", "-d", *size, "-c", str(self._cwd), f"sh -c {shlex.quote(script)}"
        )
        self._tmux("set-option", "-g", "history-limit", "20000")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tmux("kill-server", check=False)
        shutil.rmtree(self._directory, ignore_errors=True)

    def screen(self) -> str:
        """Return the visible lines."""
        return self._tmux("capture-pane", "-p")

    def everything(self) -> str:
        """Return the scrollback and the visible lines. Wrapped lines are joined."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def styled(self) -> str:
        """Return everything with the escapes for colours and other attributes."""
        return self._tmux("capture-pane", "-p", "-e", "-S", "-")

    def has(self, flag: str) -> bool:
        """Return a flag of tmux, such as `alternate_on` or `mouse_any_flag`."""
        return self._tmux("display-message", "-p", f"#{{{flag}}}").strip() == "1"

    def press(self, *keys: str) -> None:
        """Press keys, such as `Enter`, `Tab`, `C-c` or `a`."""
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    async def until_shows(self, *texts: str) -> None:
        """Wait until the visible lines contain all texts."""
        await self._until(lambda screen: all(text in screen for text in texts), f"the screen lacks one of {texts}")

    async def until_hides(self, text: str) -> None:
        await self._until(lambda screen: text not in screen, f"{text!r} is still on the screen")

    async def _until(self, holds: Callable[[str], bool], otherwise: str) -> None:
        await until(
            lambda: holds(self.screen()), lambda: f"{otherwise}:\n{self.everything()}", check_seconds=CHECK_SECONDS
        )

    def _tmux(self, *arguments: str, check: bool = True) -> str:
        assert _PROGRAM is not None
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TMUX_TMPDIR": self._directory, "HOME": "/"}
        done = subprocess.run(
            [_PROGRAM, "-u", *arguments], env=env, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
        )
        assert done.returncode == 0 or not check, done.stderr.decode()
        return done.stdout.decode()

"""Runs the console blocks of a page in terminals, in order, and compares their output with the page.

A block with the language `console` contains commands, which begin with `$`, and their output. The words after the
language name the terminal. If a command is still running at the end of its block, a later block with the language
`text` and the same terminal contains the rest of its output.

Ids, times, durations and the home directory differ in each run. An id in the page stands for the same id of the run
wherever it occurs. A line `...` stands for any lines.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["Step", "Terminal", "Transcript", "run_page", "steps_of"]

HOME_IN_PAGES: Final = "/home/ada"
_BLOCK: Final = re.compile(r"^```(console|text)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_VARIABLE: Final = re.compile(
    r"(?P<id>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{8}\b)"
    r"|(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d)"
    r"|(?P<duration>\b\d+\.\d+(?= s\b))"
    r"|(?P<home>" + HOME_IN_PAGES + r"\b)"
)
_PROMPT: Final = re.compile(r"\x1e(\d+)\x1f")


class Step(NamedTuple):
    """A command and its output; without a command, the rest of the output of the last command."""

    terminal: str
    command: str | None
    output: str
    continues: bool
    """True if the command is still running after this output."""


def steps_of(page: str) -> list[Step]:
    """Return the steps of a page in their order."""
    steps: list[Step] = []
    for language, terminal, text in _BLOCK.findall(page):
        name = terminal.strip()
        if language == "console":
            steps += _commands(name, text)
        elif name:
            last = max(number for number, step in enumerate(steps) if step.terminal == name)
            steps[last] = steps[last]._replace(continues=True)
            steps.append(Step(name, None, text, continues=False))
    return steps


def _commands(terminal: str, block: str) -> Iterator[Step]:
    command, output = "", ""
    for line in block.splitlines(keepends=True):
        if line.startswith("$ ") and not _is_output(command, output):
            if command:
                yield Step(terminal, command, output, continues=False)
            command, output = line[2:], ""
        elif line.startswith("> ") and command and not output and (command.endswith("\\\n") or "<<" in command):
            command += line[2:]
        else:
            output += line
    yield Step(terminal, command, output, continues=False)


def _is_output(command: str, output: str) -> bool:
    """Return whether a line with a prompt is output, because the command prints commands of the agent."""
    return bool(output) and re.match(r"parley (exec|show|watch|send)\b", command) is not None


class Transcript:
    """Compares output with a page, and remembers which id of the run an id of the page stands for."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ids: dict[str, str] = {}

    def matches(self, expected: str, output: str, *, is_complete: bool) -> bool:
        """Return whether an output is the expected output, or begins with it."""
        self._new: list[str] = []
        pattern = "".join(self._line(line) for line in expected.splitlines())
        found = re.fullmatch(pattern, output) if is_complete else re.match(pattern, output)
        if found is not None:
            self._ids |= {name: found[f"id_{name}"] for name in self._new}
        return found is not None

    def command(self, text: str) -> str:
        """Return a command of the page with the ids of this run."""
        return re.sub(r"\b[0-9a-f]{4,8}\b", lambda found: self._id_of(found[0]), text)

    def _id_of(self, name: str) -> str:
        whole = (one for known, one in self._ids.items() if known.startswith(name))
        return next(whole, name)[: len(name)]

    def _line(self, line: str) -> str:
        if line == "...":
            return r"(?:.*\n)*?"
        pattern, end = "", 0
        for found in _VARIABLE.finditer(line):
            pattern += re.escape(line[end : found.start()]) + self._variable(found)
            end = found.end()
        return pattern + re.escape(line[end:]) + r" *\n"

    def _variable(self, found: re.Match[str]) -> str:
        match found.lastgroup:
            case "id":
                name, rest = found[0][:8], r"(?:-[0-9a-f]+){4}" if len(found[0]) > 8 else ""
                if name in self._ids:
                    return re.escape(self._ids[name]) + rest
                if name in self._new:
                    return f"(?P=id_{name}){rest}"
                self._new.append(name)
                return f"(?P<id_{name}>[0-9a-f]{{8}}){rest}"
            case "time":
                return r"\d{4}-\d\d-\d\d \d\d:\d\d"
            case "duration":
                return r"\d+\.\d+"
            case _:
                return re.escape(str(self._home))


class Terminal:
    """A shell in a terminal."""

    def __init__(self, cwd: Path, env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        modes = termios.tcgetattr(theirs)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        termios.tcsetwinsize(theirs, (50, 200))
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            cwd=cwd,
            env={**env, "PS1": "\x1e$?\x1f", "PS2": "", "TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_make_controlling_terminal,
        )
        os.close(theirs)
        self._text = ""
        self.read_until_prompt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.send_signal(signal.SIGHUP)
        self._shell.wait(TIMEOUT_SECONDS)
        os.close(self._ours)

    def type(self, command: str) -> None:
        os.write(self._ours, command.encode())

    def read_until_prompt(self) -> tuple[str, int]:
        """Return the output of the command since the last call, and the exit code."""
        self.read_until(lambda text: _PROMPT.search(text) is not None)
        found = _PROMPT.search(self._text)
        assert found is not None
        output, self._text = self._text[: found.start()], self._text[found.end() :]
        return output, int(found[1])

    def read_until(self, is_reached: Callable[[str], bool]) -> str:
        """Wait until the output since the last call of `read_until_prompt` satisfies a condition, and return it."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not is_reached(self._text):
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the terminal shows only:\n{self._text}"
            self._text += os.read(self._ours, 65_536).decode().replace("\r\n", "\n")
        return self._text

    def discard(self, length: int) -> None:
        """Remove the beginning of the output."""
        self._text = self._text[length:]


def _make_controlling_terminal() -> None:
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def run_page(
    page: str, *, cwd: Path, env: Mapping[str, str], replaced: Mapping[str, str] | None = None
) -> list[tuple[str, int]]:
    """Run the commands of a page, and compare their output with the page. `replaced` contains other commands for
    commands of the page. Return the commands with their exit codes.

    Raises:
        AssertionError: the output differs from the page.
    """
    terminals: dict[str, Terminal] = {}
    transcript = Transcript(Path(env["HOME"]))
    codes: list[tuple[str, int]] = []
    try:
        for step in steps_of(page):
            if step.terminal not in terminals:
                terminals[step.terminal] = Terminal(cwd, env)
            codes += _run_step(step, terminals[step.terminal], transcript, replaced or {})
    finally:
        for terminal in terminals.values():
            terminal.__exit__()
    return codes


def _run_step(
    step: Step, terminal: Terminal, transcript: Transcript, replaced: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    command = step.command
    if command is not None:
        terminal.type(replaced.get(command.strip(), transcript.command(command)).rstrip("\n") + "\n")
    if step.continues:
        lines = step.output.count("\n")
        shown = terminal.read_until(lambda text: text.count("\n") >= lines or _PROMPT.search(text) is not None)
        shown = "".join(shown.splitlines(keepends=True)[:lines])
        terminal.discard(len(shown))
        assert transcript.matches(step.output, shown, is_complete=False), _difference(step, shown)
        return
    shown, code = terminal.read_until_prompt()
    assert transcript.matches(step.output, shown, is_complete=True), _difference(step, shown)
    yield command or "", code


def _difference(step: Step, shown: str) -> str:
    return f"{step.command}\n--- the page shows\n{step.output}\n--- the terminal shows\n{shown}"

"""Measures the time to apply a patch of 1,000 files. The baseline writes the same files without a patch."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bench.model import ToolCall, calls_of
from bench.pipe import Gone
from bench.report import BARE, Row
from bench.servers import ON_DISK, Parley, Running

__all__ = ["patches"]

FILES: Final = 1000
FILES_A_FOLDER: Final = 50
LINES: Final = 50
CHANGED: Final = LINES // 2
CONTEXT: Final = 3

BEGIN: Final = b'"method":"patch_apply_begin"'
END: Final = b'"method":"patch_apply_end"'
GOOD_END: Final = b'"success":true'


def _line(number: int, file: int) -> str:
    return f"line {number} of file {file}, as long as many\n"


def _name(file: int) -> str:
    return f"folder{file // FILES_A_FOLDER}/file{file}.txt"


OLD: Final = {_name(file): [_line(number, file) for number in range(LINES)] for file in range(FILES)}
NEW: Final = {name: [*old[:CHANGED], "changed\n", *old[CHANGED + 1 :]] for name, old in OLD.items()}


def _added(name: str) -> str:
    return f"*** Add File: {name}\n" + "".join(f"+{line}" for line in OLD[name])


def _updated(name: str) -> str:
    old = OLD[name]
    before, after = old[CHANGED - CONTEXT : CHANGED], old[CHANGED + 1 : CHANGED + 1 + CONTEXT]
    lines = (
        *(f" {line}" for line in before),
        f"-{old[CHANGED]}",
        f"+{NEW[name][CHANGED]}",
        *(f" {line}" for line in after),
    )
    return f"*** Update File: {name}\n@@\n" + "".join(lines)


class _Work(NamedTuple):
    """A patch, and the lines of each file after the patch was applied."""

    what: str
    hunk: Callable[[str], str]
    after: Mapping[str, list[str]]

    def patch(self) -> str:
        return f"*** Begin Patch\n{''.join(map(self.hunk, self.after))}*** End Patch\n"


FIRST: Final = _Work("begins with", lambda name: f"*** Add File: {name}\n+first\n", {"first.txt": ["first\n"]})
WORK: Final = (_Work("adds", _added, OLD), _Work("updates", _updated, NEW))
"""The measured patches, in the order in which they are applied. The second patch updates the files that the first
patch adds."""


class _Run(NamedTuple):
    seconds: float
    """The time from `patch_apply_begin` to `patch_apply_end`, in seconds."""
    whole_turn: float
    """The time from the request to the end of the turn, in seconds."""


def patches(base_url: str, *, repetitions: int) -> list[Row]:
    ours: dict[str, _Run] = {}
    bare: dict[str, float] = {}
    for _ in range(repetitions):
        with Parley().ready(base_url) as running:
            _apply(running, FIRST)  # warm up: the first turn loads the HTTP library
            for work in WORK:
                run = _apply(running, work)
                ours[work.what] = min(run, ours.get(work.what, run))
        with tempfile.TemporaryDirectory(prefix="parley-bench-", dir=ON_DISK) as directory:
            for work in WORK:
                took = _write(Path(directory), work)
                bare[work.what] = min(took, bare.get(work.what, took))
    return [_row(work.what, ours[work.what], bare[work.what], repetitions) for work in WORK]


def _row(what: str, ours: _Run, bare: float, repetitions: int) -> Row:
    return Row(
        what=f"a patch that {what} {FILES:,} files",
        unit="ms",
        values={Parley.name: ours.seconds * 1000, BARE: bare * 1000},
        notes=(
            f"{LINES} lines in each file; from begin to end, including the diff of the turn; best of {repetitions}",
            f"{ours.seconds / bare:.1f} × {BARE}, which writes and renames the same files",
            f"the whole turn, including the parsing of the patch, took {ours.whole_turn * 1000:,.0f} ms",
        ),
    )


def _apply(running: Running, work: _Work) -> _Run:
    call = ToolCall("apply_patch", {"input": work.patch()})
    message = calls_of(running.work.parent / "calls.json", [call])
    asked = time.perf_counter()
    running.begin(message)
    running.pipe.line_with(BEGIN)
    began = time.perf_counter()
    end = running.pipe.line_with(END)
    ended = time.perf_counter()
    running.pipe.line_with(running.end)
    over = time.perf_counter()
    if GOOD_END not in end or any(
        (running.work / name).read_text() != "".join(lines) for name, lines in work.after.items()
    ):
        raise Gone(f"a patch that {work.what} files was not applied")
    return _Run(ended - began, over - asked)


def _write(directory: Path, work: _Work) -> float:
    """Write the files without a patch, under temporary names, and rename them. Return the total time in seconds."""
    contents = {directory / name: "".join(lines).encode() for name, lines in work.after.items()}
    began = time.perf_counter()
    for path, content in contents.items():
        path.parent.mkdir(exist_ok=True)
        beside = path.with_suffix(".new")
        with beside.open("xb") as file:
            file.write(content)
        os.rename(beside, path)
    return time.perf_counter() - began

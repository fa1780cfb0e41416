"""The results of a run, as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

__all__ = ["BARE", "RESULTS", "NotAvailable", "Report", "Row", "begin_report", "table", "write_json"]

RESULTS: Final = Path(".bench", "results.json")

BARE: Final = "bare Python"
"""The name of the baseline: Python code that does only the minimum of the measured work. The notes of a row
describe its baseline."""


class NotAvailable(Exception):
    """Raised when a measure needs a program that is not installed. The text names the program."""


class Row(Struct, frozen=True, kw_only=True):
    """One result, for all servers that were measured."""

    what: str
    unit: str
    values: dict[str, float]
    """The measured values in `unit`, by the name of the server or of the baseline."""
    budget: str | None = None
    kept: bool | None = None
    """True if Parley keeps the budget, False if Parley misses it. None means that there is no budget, or that the
    peer that the budget refers to was not measured."""
    notes: tuple[str, ...] = ()


class Report(Struct, kw_only=True):
    """The results of one run, and its conditions."""

    at: str
    commit: str
    python: str
    cores: int
    load_average: float
    """The load average of the minute before the run. Other load on the computer slows all servers down."""
    rows: list[Row] = []
    not_measured: list[str] = []


def begin_report() -> Report:
    return Report(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        load_average=round(os.getloadavg()[0], 2),
    )


def write_json(report: Report) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def table(report: Report) -> str:
    """Return the report as text: a heading, a table of the rows, and the notes."""
    names = list(dict.fromkeys(name for row in report.rows for name in row.values))
    cells = [["", *names, "budget", ""]]
    for row in report.rows:
        values = [_shown(row.values[name], row.unit) if name in row.values else "" for name in names]
        cells.append([row.what, *values, row.budget or "", _verdict(row)])
    head = (
        f"{report.at}, commit {report.commit}, Python {report.python}, "
        f"{report.cores} cores, load average {report.load_average} before"
    )
    notes = [f"- {row.what}: {note}" for row in report.rows for note in row.notes]
    missing = [f"- not measured: {what}" for what in report.not_measured]
    return "\n".join((head, "", *_aligned(cells), "", *notes, *missing))


def _verdict(row: Row) -> str:
    if row.kept is None:
        return ""
    return "ok" if row.kept else "MISSED"


def _shown(value: float, unit: str) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *middle, budget, verdict in cells:
        right = (cell.rjust(width) for cell, width in zip(middle, widths[1:-2], strict=True))
        lines.append("  ".join((first.ljust(widths[0]), *right, budget.ljust(widths[-2]), verdict)).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def _commit() -> str:
    """Return the name of the commit, with the suffix `-dirty` if the working tree has changes. Return `unknown`
    outside a Git repository."""
    asked = subprocess.run(("git", "describe", "--always", "--dirty"), capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"

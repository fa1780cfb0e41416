"""What was measured, as a table for people and as JSON for programs."""

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
"""Whoever does only what cannot be left out; the notes of a row say what that is."""


class NotAvailable(Exception):
    """Something that a measure needs is not installed here. The text says what."""


class Row(Struct, frozen=True, kw_only=True):
    """One measure, side by side."""

    what: str
    unit: str
    values: dict[str, float]
    """By the name of whoever was measured."""
    budget: str | None = None
    kept: bool | None = None
    """Whether Parley keeps the budget; None: there is none, or its other side is missing."""
    notes: tuple[str, ...] = ()


class Report(Struct, kw_only=True):
    """One run."""

    at: str
    commit: str
    python: str
    cores: int
    load_average: float
    """Of the minute before: whatever else ran here cost everybody."""
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
    """The rows under a heading, the notes below."""
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
    """The commit, and whether the tree has changes; a copy without git has none."""
    asked = subprocess.run(("git", "describe", "--always", "--dirty"), capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"

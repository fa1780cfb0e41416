"""The rows that `parley doctor` prints, as text or as JSON."""

from __future__ import annotations

from typing import Final, Literal

from parley.cli.printing import print_json
from parley.wire.text import visible

__all__ = ["DoctorReport"]

COLUMN: Final = 12
"""The column in which the text of a row begins. The name of the row precedes the text."""

State = Literal["ok", "info", "warning", "failed"]


class DoctorReport:
    """Prints the row of each check, and collects the problems for the verdict.

    Each row has a stable name, so that scripts can find it. The argument `to_do` of the methods is the advice that
    the row gives to the user.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._failures: list[str] = []
        self._lacks: list[str] = []

    @property
    def exit_code(self) -> int:
        return 1 if self._failures else 0

    def info(self, name: str, text: str) -> None:
        """Print a fact that needs no action."""
        self._print(name, text, "info")

    def ok(self, name: str, text: str) -> None:
        """Print the result of a check that passed."""
        self._print(name, text, "ok")

    def warn(self, name: str, text: str, *, to_do: str | None = None) -> None:
        """Print a problem that prevents neither servers nor turns from running."""
        self._print(name, text, "warning", to_do)

    def lack(self, name: str, text: str, *, lacks: str) -> None:
        """Print a problem that prevents turns, but not servers, from running.

        `lacks` is the name of the problem in the verdict.
        """
        self._lacks.append(lacks)
        self._print(name, text, "warning")

    def fail(self, name: str, text: str, *, problem: str, to_do: str | None = None) -> None:
        """Print a problem that prevents servers from running.

        `problem` is the name of the problem in the verdict.
        """
        if problem not in self._failures:
            self._failures.append(problem)
        self._print(name, text, "failed", to_do)

    def advise(self, to_do: str) -> None:
        """Print further advice about the row that was printed last."""
        if self._as_json:
            print_json({"type": "advice", "to_do": to_do})
        else:
            self._line("to do", to_do)

    def begin_section(self) -> None:
        if not self._as_json:
            print(flush=True)

    def verdict(self) -> None:
        """Print the last row: that Parley is ready, or the names of the problems."""
        problems = [*self._failures, *self._lacks]
        if self._as_json:
            print_json({"type": "verdict", "ready": not problems, "problems": problems})
        else:
            self._line("verdict", f"not ready: {'; '.join(problems)}" if problems else "ready")

    def _print(self, name: str, text: str, state: State, to_do: str | None = None) -> None:
        if self._as_json:
            advice = {} if to_do is None else {"to_do": to_do}
            print_json({"type": "check", "name": name, "state": state, "text": text, **advice})
            return
        self._line(name, text)
        if to_do is not None:
            self._line("to do", to_do)

    def _line(self, name: str, text: str) -> None:
        print(f"{name:<{COLUMN}}{visible(text)}", flush=True)

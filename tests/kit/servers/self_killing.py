"""Servers that kill themselves at a given write; `self_killing_program.py` is the program."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, NamedTuple, Unpack

from parley.testing import RawParley, ScriptedModel
from parley.testing.home import Home, ServerOptions

__all__ = ["MOMENTS", "KillPoint", "Moment", "SelfKillingParley"]

TESTS: Final = Path(__file__).parents[2]

Moment = Literal["before a commit", "after a commit", "in a write"]
"""The kinds of writes at which a server kills itself.

After a commit, no client has been notified yet. In a write to stdout, only one half was written.
"""

MOMENTS: Final[tuple[Moment, ...]] = ("before a commit", "after a commit", "in a write")


class KillPoint(NamedTuple):
    """The write at which a server kills itself."""

    moment: Moment
    number: int
    """The number of the write, counted from 1."""
    notes: Path
    """The file in which the server records the size of the write-ahead log after each commit."""

    def lengths(self) -> list[int]:
        """Return the recorded sizes."""
        return [int(line) for line in self.notes.read_text().split()]


class _SelfKillingHome(Home):
    def __init__(self, model: ScriptedModel, kill_point: KillPoint, **options: Unpack[ServerOptions]) -> None:
        super().__init__(model, **options)
        self._kill_point = kill_point

    @property
    def command(self) -> tuple[str, ...]:
        moment, number, notes = self._kill_point
        interpreter, _, _, _, *words = super().command  # `python -P -m parley`, and the remaining arguments
        return (interpreter, "-m", "kit.servers.self_killing_program", moment, str(number), str(notes), *words)

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "PYTHONPATH": str(TESTS)}


class SelfKillingParley(RawParley):
    """A server that kills itself at a given write."""

    def __init__(self, model: ScriptedModel, kill_point: KillPoint, **options: Unpack[ServerOptions]) -> None:
        super().__init__(model, **options)
        self._home = _SelfKillingHome(model, kill_point, **options)

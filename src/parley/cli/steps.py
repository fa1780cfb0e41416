"""Prints the numbered steps of `parley demo`, and the messages that its client sends (`->`) and receives (`<-`)."""

from __future__ import annotations

import re
import sys
from textwrap import fill
from typing import Final, TextIO

from parley.cli.printing import for_terminal, uses_colour

__all__ = ["StepPrinter"]

WIDTH: Final = 79
INDENT: Final = "      "
_PARTS: Final = re.compile(r"\n|[^\S\n]+|\S+")


class StepPrinter:
    """Prints the steps and the messages of a conversation in real time, coloured on a terminal.

    Messages are wrapped at 79 columns. The lines of command output and of diffs are not wrapped.

    On a terminal, control characters are escaped, because the text may come from the model or its commands.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        """Create a printer that writes to `out`; if `out` is None, to stdout."""
        self._out = sys.stdout if out is None else out
        self._is_terminal = self._out.isatty()
        self._bold, self._dim, self._plain = (
            ("\x1b[1m", "\x1b[2m", "\x1b[0m") if uses_colour(self._out) else ("", "", "")
        )
        self._column = 0
        self._space = ""
        self._steps = 0

    def paragraph(self, text: str) -> None:
        self.end_line()
        self._print(f"{fill(text, WIDTH, replace_whitespace=False)}\n")

    def step(self, title: str) -> None:
        self.end_line()
        self._steps += 1
        self._print(f"\n{self._bold}{self._steps}. {title}{self._plain}\n")

    def sent(self, what: str) -> None:
        self.end_line()
        self._print(f"   -> {self._safe(' '.join(what.splitlines()))}\n")

    def received(self, what: str) -> None:
        self.end_line()
        self._print(f"   {self._dim}<- {self._safe(' '.join(what.splitlines()))}{self._plain}\n")

    def write(self, text: str) -> None:
        """Write the next part of a message, wrapped between words."""
        for part in _PARTS.findall(self._safe(text)):
            if part == "\n":
                self._print("\n")
                self._column = 0
            elif part.isspace():
                self._space = part if self._column else ""
            else:
                self._word(part)

    def lines(self, text: str) -> None:
        """Write each line of `text`, indented.

        Long lines are not wrapped, so the terminal wraps them at its own width.
        """
        for line in self._safe(text).splitlines():
            self._print(f"{INDENT}{line}".rstrip() + "\n")

    def _word(self, word: str) -> None:
        lead, self._space = self._space, ""
        if self._column and self._column + len(lead) + len(word) > WIDTH:
            self.end_line()
        if not self._column:
            lead = INDENT
        self._print(f"{lead}{word}")
        self._column += len(lead) + len(word)

    def end_line(self) -> None:
        """End the current line, unless it is empty."""
        if self._column:
            self._print("\n")
        self._column, self._space = 0, ""

    def _print(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _safe(self, text: str) -> str:
        return for_terminal(text) if self._is_terminal else text

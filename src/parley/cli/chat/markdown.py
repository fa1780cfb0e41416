"""Renders blocks of Markdown as lines for the terminal, with `rich`.

Importing `rich` takes long, so `load` imports it in another thread after the first frame has been drawn. Until
`rich` has been imported, or if `rich` fails, the source of a block is shown.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Final, Literal

from parley.cli.chat.blocks import Block
from parley.cli.printing import for_terminal
from parley.common.limited_time import TookTooLong, limited_time

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["MarkdownRenderer"]

log: Final = logging.getLogger("parley.cli")

MAX_RENDERED: Final = 20_000
"""The maximum length, in characters, of a block that is formatted. For a longer block, the source is shown, because
formatting the block would delay the input.
"""
MAX_WIDTH: Final = 100
"""The maximum width of formatted text in columns. Longer lines are hard to read."""
FORMAT_SECONDS: Final = 1.0
"""The maximum processor time, in seconds, for formatting a block. A model can write a block for which the Markdown
parser or a lexer for code takes minutes.
"""
MAX_SLOW: Final = 3
"""The number of blocks that may exceed `FORMAT_SECONDS`. After that, all further blocks are shown as unformatted
Markdown.
"""
_DEEP: Final = re.compile(r"^(?:[ \t]*(?:>|[-*+]|\d{1,9}[.)])){40}", re.MULTILINE)
"""Matches the beginning of a line with many levels of quotes or lists. The source of a block with such a line is
shown, because the parser leaves out the text of deep levels.
"""
_TRAILING: Final = re.compile(r" +((?:\x1b\[0m)?)$")
"""Matches the spaces that `rich` adds at the end of a line. These spaces are removed, so that text copied from the
terminal does not contain them.
"""

THEME: Final = {
    **dict.fromkeys((f"markdown.h{level}" for level in range(1, 7)), "bold"),
    "markdown.code": "cyan",
    "markdown.item.bullet": "yellow",
    "markdown.item.number": "yellow",
    "markdown.link": "underline blue",
    "markdown.link_url": "underline blue",
    "markdown.block_quote": "dim",
}


class MarkdownRenderer:
    """Formats blocks of Markdown as lines for the terminal.

    The control characters in each block are escaped first, because a model has written the block. `rich_block`
    escapes the control characters that the Markdown parser decodes from entities.
    """

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._format: Callable[[Block], RenderableType] | None = None
        self._slow = 0
        """The number of blocks that exceeded `FORMAT_SECONDS`."""

    def load(self) -> None:
        """Import `rich`. This method can be called in another thread."""
        from parley.cli.chat.rich_blocks import rich_block

        self._format = rich_block
        self.lines(
            Block("text", "a **b** `c`\n\n- d"), 80
        )  # `rich` and its parser import more modules when they are first used

    @property
    def is_loaded(self) -> bool:
        return self._format is not None

    def lines(self, block: Block, width: int) -> list[str]:
        """Return a block as formatted lines of at most `width` columns with terminal escapes. If the block cannot
        be formatted, return the lines of its Markdown.
        """
        safe = block._replace(text=for_terminal(block.text), language=for_terminal(block.language))
        is_source = len(safe.text) > MAX_RENDERED or (block.kind != "code" and _DEEP.search(safe.text) is not None)
        if self._format is None or self._slow >= MAX_SLOW or is_source:
            return safe.text.split("\n")
        try:
            with limited_time(FORMAT_SECONDS):
                return self.render(self._format(safe), min(width, MAX_WIDTH))
        except TookTooLong:
            self._slow += 1
            return safe.text.split("\n")
        except Exception:  # an error in formatting must not hide the text
            # Below the level at which a log without a handler is printed, because it would destroy the screen.
            log.info("cannot format a block of Markdown", exc_info=True)
            return safe.text.split("\n")

    def render_escaped(self, renderable: RenderableType, width: int) -> list[str]:
        """Return `renderable`, an object of `rich`, as lines with terminal escapes. Escape the control characters
        in its text.
        """
        from rich.segment import Segment, Segments

        console = self._console(width)
        parts = [
            Segment(for_terminal(part.text), part.style) for part in console.render(renderable) if not part.control
        ]
        return self.render(Segments(parts), width)

    def render(self, renderable: object, width: int) -> list[str]:
        """Return an object of `rich` as lines with terminal escapes. The control characters in its text must
        already be escaped.
        """
        console = self._console(width)
        console.print(renderable, soft_wrap=False)
        assert isinstance(console.file, StringIO)
        lines = [_TRAILING.sub(r"\1", line) for line in console.file.getvalue().split("\n")]
        while lines and not lines[0]:
            lines.pop(0)
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _console(self, width: int) -> Console:
        from rich.console import Console
        from rich.theme import Theme

        return Console(
            file=StringIO(),
            width=max(width, 10),
            force_terminal=self._colour,
            color_system=_colours() if self._colour else None,
            no_color=not self._colour,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            theme=Theme(THEME),
            _environ={},
        )


def _colours() -> Literal["standard", "256", "truecolor"]:
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return "truecolor"
    return "256" if "256" in os.environ.get("TERM", "") else "standard"

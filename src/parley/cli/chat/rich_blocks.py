"""Formats Markdown blocks with `rich`.

Importing `rich` takes long, so `markdown.py` imports this module after the first frame has been drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.syntax import Syntax

from parley.cli.chat.blocks import Block
from parley.cli.printing import for_terminal

__all__ = ["rich_block"]

CODE_THEME: Final = "ansi_dark"
"""The theme of code blocks. It uses only the 16 ANSI colours, which the user can choose in the settings of the
terminal.
"""


class _LeftHeading(Heading):
    """A heading without a box, at the left margin."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _LeftHeading}


def rich_block(block: Block) -> Padding | Markdown:
    """Return a block as a renderable of `rich`. Code is indented, and its lines are wrapped."""
    if block.kind == "code":
        code = Syntax(
            block.text, block.language or "text", theme=CODE_THEME, background_color="default", word_wrap=True
        )
        return Padding(code, (0, 0, 0, 2))
    markdown = _Markdown(block.text, code_theme=CODE_THEME, hyperlinks=False, justify="left")
    _escape(markdown.parsed)
    return markdown


def _escape(tokens: Iterable[Token]) -> None:
    """Escape the control characters in parsed Markdown.

    The parser decodes entities, such as `&#x202e;`, and percent signs in links, such as `%1b`. The control
    characters that result were not in the source, so they have not been escaped before.
    """
    for token in tokens:
        token.content = for_terminal(token.content)
        for name, value in token.attrs.items():
            if isinstance(value, str):
                token.attrs[name] = for_terminal(value)
        _escape(token.children or ())

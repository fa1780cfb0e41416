"""Shows long text on the full screen, with colours for diffs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from parley.cli.chat.context import ChatContext
from parley.wire.text import visible

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from rich.text import Text

__all__ = ["StyledLine", "as_rich_text", "diff_lines", "show_pages", "wrapped"]

TAB: Final = "    "

_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}
"""The style of a line of a hunk, keyed by the first character of the line."""

_CLASSES: Final = {"": "", "bold": "bold", "green": "fg:ansigreen", "red": "fg:ansired", "cyan": "fg:ansicyan"}
"""The prompt_toolkit definitions of the styles, keyed by the style of a line."""


class StyledLine(NamedTuple):
    """A line and the name of its style. The control characters in the line are escaped."""

    style: str
    text: str


def diff_lines(diff: str) -> Iterator[StyledLine]:
    """Yield the lines of a unified diff with their styles."""
    is_in_hunk = False
    for line in diff.removesuffix("\n").split("\n"):
        is_in_hunk = not line.startswith("diff --git ") and (is_in_hunk or line.startswith("@@"))
        is_header = not is_in_hunk and line.startswith(("--- ", "+++ "))
        style = "bold" if is_header else _STYLES.get(line[:1], "")
        yield StyledLine(style, visible(line.removesuffix("\r").replace("\t", TAB)))


def as_rich_text(lines: Sequence[StyledLine]) -> Text:
    """Return styled lines as a `Text` of `rich`."""
    from rich.text import Text  # imported here: the chat starts without this command

    text = Text()
    for number, (style, line) in enumerate(lines):
        text.append(("\n" if number else "") + line, style=style)
    return text


def wrapped(lines: Sequence[StyledLine], width: int) -> list[StyledLine]:
    """Return the lines as terminal rows of at most `width` columns. A longer line continues in the next row."""
    from prompt_toolkit.utils import get_cwidth

    rows: list[StyledLine] = []
    for style, text in lines:
        if len(text) <= width and text.isascii():
            rows.append(StyledLine(style, text))
            continue
        row, used = "", 0
        for character in text:
            size = get_cwidth(character)
            if used + size > width:
                rows.append(StyledLine(style, row))
                row, used = "", 0
            row, used = row + character, used + size
        rows.append(StyledLine(style, row))
    return rows


async def show_pages(context: ChatContext, title: str, lines: Sequence[StyledLine]) -> None:
    """Show lines below `title` on the full screen until the user closes this view."""
    from prompt_toolkit.application import get_app
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.layout import FormattedTextControl, HSplit, Window
    from prompt_toolkit.layout.controls import UIContent, UIControl

    size = get_app().output.get_size()
    rows, top, page = wrapped(lines, size.columns), 0, max(1, size.rows - 2)

    def move(by: int) -> None:
        nonlocal top
        top = max(0, min(top + by, len(rows) - page))

    class Rows(UIControl):
        """Draws the visible rows.

        Only the visible rows are formatted, so that long text is drawn as fast as short text.
        """

        def create_content(self, width: int, height: int) -> UIContent:
            nonlocal rows, page, size
            current = get_app().output.get_size()
            if current != size:
                size, page, rows = current, max(1, current.rows - 2), wrapped(lines, current.columns)
                move(0)
            shown = rows[top : top + page]
            return UIContent(
                get_line=lambda number: [(_CLASSES.get(shown[number].style, ""), shown[number].text)],
                line_count=len(shown),
                show_cursor=False,
            )

    def footer() -> StyleAndTextTuples:
        last = min(top + page, len(rows))
        return [("reverse", f" {top + 1}-{last} of {len(rows)}   Up, Down, PgUp, PgDn, Home, End; q closes ")]

    keys = KeyBindings()
    steps = {
        ("up", "k"): lambda: -1,
        ("down", "j", "enter"): lambda: 1,
        ("pageup", "b"): lambda: -page,
        ("pagedown", " ", "f"): lambda: page,
        ("home", "g"): lambda: -len(rows),
        ("end", "G"): lambda: len(rows),
    }
    for names, step in steps.items():
        for name in names:
            keys.add(name)(lambda event, step=step: move(step()))

    @keys.add("q")
    @keys.add("escape", eager=True)
    @keys.add("c-c")
    def _close(event: KeyPressEvent) -> None:
        event.app.exit(result=None)

    body = Window(Rows(), always_hide_cursor=True)
    focus = Window(FormattedTextControl(footer, focusable=True, show_cursor=False), height=1)
    head = Window(FormattedTextControl([("reverse", f" {visible(title)} ")]), height=1, style="reverse")
    await context.overlay(HSplit([head, body, focus]), focus=focus, key_bindings=keys)

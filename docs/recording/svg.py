"""Writes the frames of a terminal as an animated SVG without scripts and without other files.

Each line of the screen is drawn once for each text that it shows, and is visible while it shows this text. Programs
that do not support animations show the last frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

from docs.recording.terminal import COLUMNS, ROWS, Frame
from rich.ansi import AnsiDecoder
from rich.cells import cell_len
from rich.color import parse_rgb_hex
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

__all__ = ["as_svg"]

CELL_WIDTH: Final = 8.4
LINE_HEIGHT: Final = 19
MARGIN: Final = 16
BAR_HEIGHT: Final = 34
LAST_SECONDS: Final = 5.0
"""The time for which the last frame is shown."""

NORMAL: Final = ("3b424e", "f07178", "7ecb89", "e8be6e", "6ea8fe", "c792ea", "5fd0bb", "dde3ea")
"""Black, red, green, yellow, blue, magenta, cyan and white."""
BRIGHT: Final = ("7d8a9b", "ff8b92", "9be0a4", "ffd68a", "93c1ff", "dbadf8", "89e5d4", "ffffff")
THEME: Final = TerminalTheme(
    parse_rgb_hex("171c24"),
    parse_rgb_hex("dde3ea"),
    [parse_rgb_hex(colour) for colour in NORMAL],
    [parse_rgb_hex(colour) for colour in BRIGHT],
)


class Run(NamedTuple):
    """A part of the picture and the time in which it is visible, in seconds."""

    content: str
    start: float
    end: float


def as_svg(frames: Sequence[Frame], *, title: str) -> str:
    """Return the recording. `title` is the title of the window."""
    total = frames[-1].seconds + LAST_SECONDS
    width = COLUMNS * CELL_WIDTH + 2 * MARGIN
    height = ROWS * LINE_HEIGHT + BAR_HEIGHT + 2 * MARGIN
    drawn = [list(_draw(frame)) for frame in frames]
    times = [*(frame.seconds for frame in frames), total]
    parts = [part for row in range(ROWS + 1) for run in _runs([lines[row] for lines in drawn], times)
             if (part := _timed(run, total))]  # fmt: skip
    style = (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        ".b{font-weight:700}.d{opacity:.62}.i{font-style:italic}"
    )
    background, foreground = THEME.background_color.hex, THEME.foreground_color.hex
    dots = "".join(f'<circle cx="{20 + 18 * number}" cy="17" r="5.5" fill="#3b424e"/>' for number in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{style}</style>\n'
        f'<rect width="100%" height="100%" rx="10" fill="{background}"/>\n{dots}'
        f'<text x="{width / 2:g}" y="22" text-anchor="middle" fill="#7d8a9b">{escape(title)}</text>\n'
        f'<g fill="{foreground}" transform="translate({MARGIN} {BAR_HEIGHT + MARGIN})">\n'
        + "".join(f"{part}\n" for part in parts)
        + "</g>\n</svg>\n"
    )


def _draw(frame: Frame) -> Iterator[str]:
    """Yield the drawing of each line of a frame, and then of the cursor."""
    lines = list(AnsiDecoder().decode(frame.screen))
    lines += [Text()] * (ROWS - len(lines))
    for row, line in enumerate(lines[:ROWS]):
        yield _line(line, row)
    if frame.cursor is None:
        yield ""
    else:
        column, row = frame.cursor
        place = f'x="{column * CELL_WIDTH:g}" y="{row * LINE_HEIGHT + 2}"'
        yield f'<rect {place} width="{CELL_WIDTH:g}" height="{LINE_HEIGHT - 2}" opacity=".55"/>'


def _line(line: Text, row: int) -> str:
    parts, column = [], 0
    for text, style in _segments(line):
        cells = cell_len(text)
        if text.strip():
            place = f'x="{column * CELL_WIDTH:g}" y="{row * LINE_HEIGHT + 15}" textLength="{cells * CELL_WIDTH:g}"'
            parts.append(f"<text {place}{_attributes(style)}>{escape(text)}</text>")
        column += cells
    return "".join(parts)


def _segments(line: Text) -> Iterator[tuple[str, Style]]:
    """Yield the parts of a line that have the same style."""
    text = line.plain.rstrip()
    ends = {0, len(text), *(place for span in line.spans for place in (span.start, span.end) if place < len(text))}
    places = sorted(ends)
    for start, end in pairwise(places):
        styles = [span.style for span in line.spans if span.start <= start and end <= span.end]
        yield text[start:end], sum((style for style in styles if isinstance(style, Style)), Style())


def _attributes(style: Style) -> str:
    classes = "".join(name for name, is_set in (("b", style.bold), ("d", style.dim), ("i", style.italic)) if is_set)
    colour = (
        "" if style.color is None or style.color.is_default else f' fill="{style.color.get_truecolor(THEME).hex}"'
    )
    return colour + (f' class="{" ".join(classes)}"' if classes else "")


def _runs(contents: Sequence[str], times: Sequence[float]) -> Iterator[Run]:
    """Yield each drawing of a line with the time in which the line shows it."""
    start = 0
    for number in range(1, len(contents) + 1):
        if number == len(contents) or contents[number] != contents[start]:
            yield Run(contents[start], 0.0 if start == 0 else times[start], times[number])
            start = number


def _timed(run: Run, total: float) -> str:
    """Return a drawing that is visible only in its time; an empty string if there is nothing to draw."""
    if not run.content:
        return ""
    is_last = run.end >= total
    values = ["visible"] if run.start == 0 else ["hidden", "visible"]
    times = [0.0] if run.start == 0 else [0.0, run.start]
    if not is_last:
        values, times = [*values, "hidden"], [*times, run.end]
    if len(values) == 1:
        return run.content
    hidden = "" if is_last else ' visibility="hidden"'
    keys = ";".join(f"{time / total:.4f}".rstrip("0").rstrip(".") for time in times)
    return (
        f'<g{hidden}>{run.content}<animate attributeName="visibility" calcMode="discrete" dur="{total:.2f}s" '
        f'repeatCount="indefinite" values="{";".join(values)}" keyTimes="{keys}"/></g>'
    )

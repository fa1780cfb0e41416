"""The live region above the input, which shows the unfinished work in a limited number of lines.

Only this module decides which part of the unfinished work is shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, TypeAlias

from parley.cli.chat.blocks import Block, BlockSplitter
from parley.cli.chat.markdown import MarkdownRenderer
from parley.cli.event_renderer import PLAN_STEPS
from parley.cli.printing import for_terminal
from parley.client import events

__all__ = ["TAIL_LINES", "LiveRegion", "LiveState", "Pending", "Styled", "cut", "wrapped"]

Styled: TypeAlias = tuple[str, str]
"""A style of prompt_toolkit, and the text in this style. With the style `ansi`, the text contains terminal escapes.
"""

TAIL_LINES: Final = 4
"""The maximum number of lines that are shown from the output of the running command."""
THOUGHT_LINES: Final = 2
PLAN_LINES: Final = 5
PENDING_LINES: Final = 3
MAX_FORMATTED: Final = 4_000
"""The maximum length, in characters, of an open block that is formatted at each change. If an open block is longer,
only the end of its unformatted Markdown is shown until the block is finished.
"""


@dataclass
class Pending:
    """A sent message for which no event has arrived yet."""

    text: str
    is_queued: bool = False


@dataclass
class LiveState:
    """The unfinished work of the open conversation."""

    text: BlockSplitter | None = None
    """The message that the agent is writing; None if the agent is writing no message."""
    thought: str = ""
    """The reasoning that is being written."""
    command: str | None = None
    """The first line of the running command; None if no command is running."""
    command_since: float = 0.0
    output: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    plan: events.PlanUpdate | None = None
    pending: dict[str, Pending] = field(default_factory=dict)
    """The sent messages for which no event has arrived yet, keyed by message id."""
    queued: int = 0
    queue_paused: bool = False
    running_since: float | None = None
    """The time at which the running turn began, in seconds on the clock of the `LiveRegion`; None if no turn is
    running.
    """
    notice: str = ""
    """The state of the connection, such as `reconnecting ...`; empty if the connection is usable."""

    def reset(self) -> None:
        """Set all fields to their default values."""
        empty = LiveState()
        for one in fields(self):
            setattr(self, one.name, getattr(empty, one.name))


class LiveRegion:
    """Formats a `LiveState` as lines for the terminal."""

    def __init__(
        self,
        state: LiveState,
        markdown: MarkdownRenderer,
        *,
        clock: Callable[[], float],
        width_of: Callable[[str], int],
    ) -> None:
        """Create a region that shows `state`. `clock` returns the current time in seconds; the region computes
        elapsed times with it. `width_of` returns the number of columns of a string.
        """
        self.state, self._markdown, self._clock, self._width_of = state, markdown, clock, width_of
        self._formatted: tuple[Block, int, int, list[str]] | None = None
        """The block that was formatted last, with the width, the maximum number of lines, and the formatted lines.
        """

    def lines(self, *, width: int, height: int) -> list[Styled]:
        """Return the lines of the region: at most `height` lines of at most `width` columns. If there are more
        lines, leave out the lines at the top.
        """
        state = self.state
        below: list[Styled] = [*self._command(width), *self._plan(width), *self._pending(width)]
        if (activity := self._activity()) is not None:
            below.append(cut(activity, width, self._width_of))
        below = below[-height:]
        room = height - len(below)
        above: list[Styled] = []
        if state.text is not None and (block := state.text.open_block) is not None:
            above += [("ansi", line) for line in self._block(block, width, room)]
        elif state.thought:
            above += [("class:dim", line) for line in self._end_of(state.thought, width, min(room, THOUGHT_LINES))]
        return [*above[-room:], *below] if room > 0 else below

    def _block(self, block: Block, width: int, room: int) -> list[str]:
        if room <= 0:
            return []
        if self._formatted is not None and self._formatted[:3] == (block, width, room):
            return self._formatted[3]
        if len(block.text) <= MAX_FORMATTED:
            lines = self._markdown.lines(block, width)
            if not self._markdown.is_loaded:
                lines = [part for line in lines for part in wrapped(line, width, self._width_of)]
        else:
            lines = self._end_of(block.text, width, room)
        lines = (["", *lines] if block.gap else lines)[-room:]
        self._formatted = block, width, room, lines
        return lines

    def _end_of(self, text: str, width: int, room: int) -> list[str]:
        """Return the last `room` lines of `text` after wrapping it to `width` columns."""
        end = for_terminal(text[-2 * width * max(room, 1) :]).expandtabs()
        return [part for line in end.split("\n")[-room:] for part in wrapped(line, width, self._width_of)][-room:]

    def _command(self, width: int) -> Iterator[Styled]:
        if self.state.command is None:
            return
        for line in self.state.output:
            yield cut(("class:dim", f"  {for_terminal(line).expandtabs()}"), width, self._width_of)
        seconds = self._clock() - self.state.command_since
        text = f"  running {_duration(seconds)}: {for_terminal(self.state.command).expandtabs()}"
        yield cut(("class:dim", text), width, self._width_of)

    def _plan(self, width: int) -> Iterator[Styled]:
        if self.state.plan is None:
            return
        steps = self.state.plan.plan
        for step in steps[_first_shown([one.status for one in steps]) :][:PLAN_LINES]:
            style = {"in_progress": "bold", "completed": "class:dim"}.get(step.status, "")
            text = f"{PLAN_STEPS[step.status]} {' '.join(for_terminal(step.step).split())}"
            yield cut((style, text), width, self._width_of)

    def _pending(self, width: int) -> Iterator[Styled]:
        waiting = list(self.state.pending.values())
        for one in waiting[:PENDING_LINES]:
            how = "queued" if one.is_queued else "sending"
            text = f"> {' '.join(for_terminal(one.text).split())}"
            yield cut(("class:dim", f"{how}: {text}"), width, self._width_of)
        hidden = max(self.state.queued, len(waiting)) - min(len(waiting), PENDING_LINES)
        if hidden > 0:
            yield cut(("class:dim", f"queue: {hidden} more waiting"), width, self._width_of)
        if self.state.queued and self.state.queue_paused:
            text = "queue: paused until the next message or /queue continue"
            yield cut(("class:dim", text), width, self._width_of)

    def _activity(self) -> Styled | None:
        if self.state.notice:
            return "class:notice", self.state.notice
        if self.state.running_since is None:
            return None
        seconds = self._clock() - self.state.running_since
        return "class:activity", f"working {_duration(seconds)} · Esc interrupts"


def _first_shown(statuses: Sequence[str]) -> int:
    """Return the index of the first plan step to show. The index is chosen so that the first step that is not
    completed is visible.
    """
    current = next((number for number, status in enumerate(statuses) if status != "completed"), len(statuses))
    return max(0, min(current - 1, len(statuses) - PLAN_LINES))


def _duration(seconds: float) -> str:
    whole = int(max(seconds, 0))
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def wrapped(line: str, width: int, width_of: Callable[[str], int]) -> list[str]:
    """Return a line, split into parts of at most `width` columns. Joining the parts gives the unchanged line.
    `width_of` returns the number of columns of a string.

    A part ends between words, unless the part would be less than half full, for example before a long path.
    """
    if len(line) * 2 <= width or width_of(line) <= width:
        return [line]
    parts: list[str] = []
    start = used = 0
    after_space = 0  # the index after the last space in the second half of the current part
    for index, character in enumerate(line):
        columns = width_of(character)
        if used + columns > width and index > start:
            end = after_space if after_space > start and character != " " else index
            parts.append(line[start:end])
            start, used = end, width_of(line[end:index])
        used += columns
        if character == " " and used * 2 > width:
            after_space = index + 1
    return [*parts, line[start:]]


def cut(line: Styled, width: int, width_of: Callable[[str], int]) -> Styled:
    """Return a line shortened to `width` columns, with an ellipsis at its end. Return `line` itself if it fits."""
    style, text = line
    if len(text) * 2 <= width or width_of(text) <= width:
        return line
    used, room = 0, max(width - 1, 1)
    for index, character in enumerate(text):
        used += width_of(character)
        if used > room:
            return style, f"{text[: max(index, 1)]}…"
    return line

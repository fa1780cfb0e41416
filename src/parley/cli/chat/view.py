"""Converts the events of a conversation to finished lines, which are printed once, and to the `LiveState` of the
unfinished work.

`EventRenderer` formats the events. This module adds the features of a live terminal: formatted Markdown, diffs, and
folded passages, which are printed only in part until the user expands them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from io import StringIO
from typing import Final

from msgspec import UnsetType

from parley.cli.chat.approvals import Request, request_lines, request_of
from parley.cli.chat.blocks import Block, BlockSplitter
from parley.cli.chat.diffs import DIFF_LINES, change_lines
from parley.cli.chat.live import LiveState, Pending, cut, wrapped
from parley.cli.chat.markdown import MarkdownRenderer
from parley.cli.event_renderer import EventRenderer, command_lines
from parley.cli.printing import for_terminal
from parley.client import Approval, StreamEvent, events
from parley.client.turn_result import Event, ends_turn
from parley.wire.tools import NO_TOKENS, Tokens

__all__ = ["ChatView"]

HEAD_LINES: Final = 8
END_LINES: Final = 8
"""The maximum number of lines that are printed from the end of a command's output, in addition to the first
`HEAD_LINES` lines.
"""
MAX_LINE: Final = 1000
"""The maximum number of characters that are shown from one line of the running command's output."""
THINKING: Final = "thinking"
"""The title of a passage with the model's reasoning that was printed only in part."""
MAX_FOLDED: Final = 50
"""The maximum number of folded passages that are kept. A passage is folded if only a part of it was printed. When a
further passage is folded, the oldest passage can no longer be expanded.
"""
MAX_FOLDED_LENGTH: Final = 200_000
"""The maximum number of characters that are kept of a passage that was printed only in part. If the passage is
longer, only its end is kept.
"""
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_STYLED: Final = re.compile(r"((?:\x1b\[\dm)?)((?:> | *(?:\[.\] )?)?)(.*?)((?:\x1b\[0m)?)", re.DOTALL)
"""Matches a printed line. The groups are the style of the line, the prefix that determines the indent of its
continuation rows, the text, and the end of the style.
"""
_VERBATIM: Final = (
    events.ExecCommandBegin,
    events.ExecCommandOutputDelta,
    events.ExecCommandEnd,
    events.McpToolCallBegin,
    events.McpToolCallEnd,
    events.PatchApplyBegin,
    events.PatchApplyEnd,
    events.PatchRefused,
)
"""The types of the events whose lines contain commands, outputs, paths and quoted code. The terminal wraps
these lines, so that text copied from the terminal contains no additional newlines.
"""


class _Terminal(StringIO):
    """A text buffer whose method `isatty` returns True, so that `EventRenderer` writes for a terminal."""

    def isatty(self) -> bool:
        return True


class ChatView:
    """Converts the events of one conversation to finished lines, and updates the `LiveState` of the unfinished
    work.
    """

    def __init__(
        self,
        state: LiveState,
        markdown: MarkdownRenderer,
        *,
        cwd: str | None,
        colour: bool,
        width: Callable[[], int],
        clock: Callable[[], float],
        width_of: Callable[[str], int],
    ) -> None:
        self.state, self._markdown = state, markdown
        self._colour, self._width, self._clock, self._width_of = colour, width, clock, width_of
        self._out = _Terminal()
        self.set_cwd(cwd)
        self.shows_reasoning = False
        """True to print the whole reasoning of the model."""
        self._text: BlockSplitter | None = None
        """The message that the agent is writing; None if the agent is writing no message."""
        self._pieces: list[str] = []
        self._item: object = None
        """The item id of the message that the agent is writing."""
        self._last: str | None = None
        """The kind of the lines that were printed last, such as `note`; None if nothing was printed. The kind
        determines whether an empty line precedes the lines that are printed next.
        """
        self._outputs: dict[str, list[str]] = {}
        self._last_line = ""
        """The incomplete last line of the running command's output."""
        self._output_lines = 0
        """The number of complete lines of the running command's output."""
        self._asked: set[str] = set()
        """The call ids of the approval requests that were shown. An empty string stands for a request to exceed a
        limit, which belongs to no call.
        """
        self.request_lines = 0
        """The number of lines of the approval request that was printed last."""
        self.folded: deque[tuple[str, str]] = deque(maxlen=MAX_FOLDED)
        """The folded passages that can be expanded, each as a pair of its title and its text. The newest one is
        last.
        """
        self.usage: Tokens = NO_TOKENS
        """The tokens that the conversation has used."""
        self.usage_seq = 0
        """The position of the last event that is counted in `usage`."""

    def set_cwd(self, cwd: str | None) -> None:
        """Set the working directory of the conversation. Paths below this directory are shortened."""
        self._renderer = EventRenderer(self._out, cwd=cwd, head_lines=HEAD_LINES, tail_lines=END_LINES)

    def take_printed(self) -> str:
        """Return the text of the lines that were finished since the last call."""
        printed = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return printed

    def show(self, event: StreamEvent) -> None:
        """Convert an event to finished lines, or update the state of the unfinished work."""
        seq = event.meta.seq
        if isinstance(event.msg, events.TokenCount) and not isinstance(seq, UnsetType) and seq > self.usage_seq:
            self.usage, self.usage_seq = self.usage.plus(event.msg), seq
        self._show(event.msg, event.meta.item)

    def _show(self, msg: Event, item: object) -> None:
        match msg:
            case events.AgentMessageDelta(delta=delta):
                self._add_text(delta, item)
            case events.AgentMessage(message=message):
                self._end_text(message)
            case events.AgentReasoningDelta(delta=delta) | events.AgentReasoningRawContentDelta(delta=delta):
                self.state.thought += delta
            case events.AgentReasoning(text=text) | events.AgentReasoningRawContent(text=text):
                self._fold_thought(text)
            case _:
                self._show_other(msg)

    # --- texts of the model ----------------------------------------------------------------

    def _add_text(self, delta: str, item: object) -> None:
        if self._text is not None and item != self._item:
            self._discard_text()
        if self._text is None:
            self._text, self._item = BlockSplitter(), item
        self._pieces.append(delta)
        for block in self._text.add(delta):
            self._print_block(block)
        self.state.text = self._text

    def _end_text(self, message: str) -> None:
        written = "".join(self._pieces)
        if not message.startswith(written):
            self._discard_text()
            written = ""
        # After a reconnection, the whole message can follow a part of its pieces.
        text = self._text or BlockSplitter()
        blocks = [*text.add(message[len(written) :]), *text.end()]
        self._forget_text()
        for block in blocks:
            self._print_block(block)

    def _discard_text(self) -> None:
        """Remove the incomplete message from the live region, and print its received part and a note instead. Call
        this method when the agent will not complete the message, for example because the turn was interrupted.

        The received part stays on the screen, because the user has already seen it. If the agent was not writing a
        message, do nothing.
        """
        if self._text is None:
            return
        blocks = self._text.end()
        self._forget_text()
        for block in blocks:
            self._print_block(block)
        self._print_lines(["(the agent did not complete this text)"], kind="note", dim=True)

    def _forget_text(self) -> None:
        self._text, self._item, self.state.text = None, None, None
        self._pieces.clear()

    def _print_block(self, block: Block) -> None:
        if block.gap and self._last is not None:
            self._out.write("\n")
        self._last = "text"
        for line in self._markdown.lines(block, self._width()):
            self._out.write(f"{line}\n")

    def _fold_thought(self, text: str) -> None:
        self.state.thought = ""
        lines = [line for line in text.strip().splitlines() if line.strip()]
        if not lines:
            return
        if self.shows_reasoning:
            first, *rest = for_terminal(text.strip()).split("\n")
            thought = self.rows([f"thinking: {first}", *(f"  {line}" for line in rest)])
            self._print_lines(thought, kind="thought", dim=True)
            return
        title = lines[0].strip().strip("*#").strip()
        more = f" (+{len(lines) - 1} lines, Ctrl-O shows them)" if len(lines) > 1 else ""
        self.fold(THINKING, text)
        _, line = cut(("", f"thinking: {for_terminal(title)}"), max(self._width() - len(more), 20), self._width_of)
        self._print_lines([line + more], kind="thought", dim=True)

    def fold(self, title: str, text: str) -> None:
        """Store text that is not shown completely, with its title, so that the user can expand it."""
        self.folded.append((title, text[-MAX_FOLDED_LENGTH:]))

    # --- other events ----------------------------------------------------------------------

    def _show_other(self, msg: Event) -> None:
        state = self.state
        match msg:
            case events.TaskStarted():
                state.running_since, state.plan, state.thought = self._clock(), None, ""
            case events.UserMessage(message_id=message_id):
                state.pending.pop(message_id, None)
                self._last = None  # the renderer separates messages of the user by an empty line
            case events.QueueChanged(messages=messages, paused=paused):
                state.queued, state.queue_paused = len(messages), paused
                for sent, one in list(state.pending.items()):
                    if sent in messages:
                        one.is_queued = True
                    elif one.is_queued:
                        del state.pending[sent]  # the message was removed from the queue, perhaps by another client
                return
            case events.PlanUpdate():
                state.plan = msg
                return
            case events.ExecCommandBegin(call_id=call_id, command=command):
                self._last_line, self._output_lines = "", 0
                state.command, state.command_since = command_lines(command)[0], self._clock()
                state.output.clear()
                self._outputs[call_id] = []
            case events.ExecCommandOutputDelta(call_id=call_id, chunk=chunk):
                self._add_output(call_id, bytes(chunk))
            case events.ExecCommandEnd(call_id=call_id):
                self._end_output(call_id)
            case events.ExecApprovalRequest() | events.ApplyPatchApprovalRequest() | events.LimitReached():
                self._discard_text()
                self._print_request(msg)
                return
            case events.ApprovalSettled(call_id=call_id):
                if msg.decision not in ("approved", "approved_for_session"):
                    self._asked.discard(call_id)
            case events.TurnDiff():
                return
            case events.BackgroundEvent() | events.RequestRetry() | events.ErrorEvent() | events.TaskComplete():
                self._discard_text()
                state.thought = ""
            case _:
                pass
        if ends_turn(msg):
            self._end_turn()
        self._render(msg)
        if isinstance(msg, events.PatchApplyBegin) and msg.call_id not in self._asked:
            self._print_diff(msg)

    def _render(self, msg: Event) -> None:
        """Write the lines that `EventRenderer` renders for an event. Wrap lines of prose."""
        before = self._out.tell()
        if self._last == "text":
            self._out.write("\n")
        start = self._out.tell()
        self._renderer.render(msg)
        self._renderer.end_line()
        if self._out.tell() == start:  # the event has no lines
            self._out.seek(before)
            self._out.truncate()
        else:
            self._last = "event"
            if not isinstance(msg, _VERBATIM):
                self._wrap_from(start)

    def _wrap_from(self, start: int) -> None:
        """Wrap the lines that were written to the buffer after the offset `start`."""
        self._out.seek(start)
        lines = self._out.read().split("\n")
        self._out.seek(start)
        self._out.truncate()
        self._out.write("\n".join(self.rows(lines)))

    def rows(self, lines: Iterable[str]) -> list[str]:
        """Return lines of prose as rows, wrapped to the width of the terminal.

        The control characters in the lines must already be escaped, except for one style around the whole text of a
        line. Continuation rows are indented, because a row at the left margin could imitate a question of the chat.
        """
        width, rows = self._width(), list[str]()
        for line in lines:
            found = _STYLED.fullmatch(line)
            if found is None or self._width_of(found[2] + found[3]) <= width:
                rows.append(line)
                continue
            style, prefix, text, end = found.groups()
            indent = prefix if prefix == "> " else " " * max(len(prefix), 2)
            first, *more = wrapped(text, max(width - len(indent), 1), self._width_of)
            rows.append(f"{style}{prefix}{first.rstrip()}{end}")
            rows += (f"{style}{indent}{one.strip()}{end}" for one in more)
        return rows

    def _end_turn(self) -> None:
        state = self.state
        if state.plan is not None:
            self._render(state.plan)
        state.plan, state.command, state.running_since = None, None, None
        state.output.clear()
        self._outputs.clear()
        self._asked.clear()

    def _add_output(self, call_id: str, chunk: bytes) -> None:
        output = self._outputs.get(call_id)
        if output is None:
            return
        text = chunk.decode(errors="replace")
        output.append(text)
        *lines, rest = (self._last_line + text).split("\n")
        hidden = max(HEAD_LINES - self._output_lines, 0)  # the first lines are printed
        self._output_lines += len(lines)
        self._last_line = rest[-MAX_LINE:]
        self.state.output.extend(lines[hidden:])

    def _end_output(self, call_id: str) -> None:
        text = "".join(self._outputs.pop(call_id, ()))
        if text.count("\n") > HEAD_LINES + END_LINES:
            self.fold(f"output of {self.state.command or 'the command'}", text)
        self.state.command = None
        self.state.output.clear()

    def show_approval(self, approval: Approval) -> None:
        """Print the action that an approval allows, unless the event that describes the action has already been
        shown.
        """
        if approval.call_id not in self._asked:
            self._print_request(request_of(approval))

    def _print_request(self, request: Request) -> None:
        self._asked.add(request.call_id if not isinstance(request, events.LimitReached) else "")
        lines = request_lines(request, colour=self._colour, width=self._width(), width_of=self._width_of)
        self.request_lines = len(lines)
        self._print_lines(lines, kind="approval")

    def _print_diff(self, patch: events.PatchApplyBegin) -> None:
        lines = list(change_lines(patch.changes, colour=self._colour))
        shown = lines[:DIFF_LINES]
        if len(lines) > len(shown):
            self.fold("patch", "\n".join(change_lines(patch.changes, colour=False)))
            shown.append(f"  ... {len(lines) - len(shown)} more lines, Ctrl-O shows all")
        self._print_lines(shown, kind="event")

    # --- lines of the chat -----------------------------------------------------------------

    def note(self, text: str) -> None:
        """Print a note of the chat itself, such as the result of a command. Control characters are escaped."""
        self._print_lines(self.rows(for_terminal(text).split("\n")), kind="note", dim=True)

    def expand(self) -> bool:
        """Print the newest folded passage in full, and return True. The passage is then no longer folded. A passage
        is folded if only a part of it was printed.

        If there is no folded passage, return False.
        """
        if not self.folded:
            return False
        title, text = self.folded.pop()
        lines = [f"{for_terminal(title)}:", *(f"  {line}" for line in for_terminal(text).rstrip("\n").split("\n"))]
        self._print_lines(self.rows(lines) if title == THINKING else lines, kind="note", dim=True)
        return True

    def add_pending(self, message_id: str, text: str, *, is_queued: bool) -> None:
        """Show a sent message for which no event has arrived yet. `is_queued` is True if the message waits until
        the running turn has ended.
        """
        self.state.pending[message_id] = Pending(text, is_queued)

    def _print_lines(self, lines: list[str], *, kind: str, dim: bool = False) -> None:
        if self._last is not None and (self._last != kind or kind == "approval") and "text" in (self._last, kind):
            self._out.write("\n")
        start, end = (_DIM, _PLAIN) if dim and self._colour else ("", "")
        for line in lines:
            self._out.write(f"{start}{line}{end}\n")
        self._last = kind

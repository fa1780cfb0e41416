"""Renders the events of a conversation as lines for people and for the logs of scripts.

The lines show the work of the agent: messages, commands with their output and exit codes, changed files, plans,
retries and tokens. The lines do not show the protocol. For programs, `event_output.py` prints the events as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

from msgspec import UNSET, UnsetType

from parley.cli.command_lines import HEAD_LINES, TAIL_LINES, CommandLines
from parley.cli.printing import for_terminal, uses_colour
from parley.client import Event, events
from parley.wire.items import InputItem, TextItem, text_of
from parley.wire.jsonrpc import encode
from parley.wire.principals import LOCAL
from parley.wire.text import quoted_command
from parley.wire.tools import NO_TOKENS, Tokens

__all__ = ["PLAN_STEPS", "SCRIPT_OPTIONS", "SHELLS", "EventRenderer", "command_lines", "tokens_text"]

THINKING: Final = "thinking: "
"""The prefix of a line with the model's reasoning."""

PROMPT_LINES: Final = 10
"""The maximum number of lines that are shown from a user's message."""

ARGUMENTS_LENGTH: Final = 200
"""The maximum number of characters that are shown from the arguments of a tool call, or from its error."""

SHELLS: Final = ("bash", "sh", "zsh")
SCRIPT_OPTIONS: Final = ("-c", "-lc")

PLAN_STEPS: Final = {"completed": "[x]", "in_progress": "[>]", "pending": "[ ]"}
_DECISIONS: Final = {
    "approved": "approved",
    "approved_for_session": "approved for the session",
    "denied": "denied",
    "abort": "denied, and the turn ends",
    "timed_out": "no answer in time",
    "dropped": "no longer needed",
}

_Delta = events.AgentMessageDelta | events.AgentReasoningDelta | events.AgentReasoningRawContentDelta
_Whole = events.AgentMessage | events.AgentReasoning | events.AgentReasoningRawContent
_PIECES: Final[Mapping[type[_Whole], type[_Delta]]] = {
    events.AgentMessage: events.AgentMessageDelta,
    events.AgentReasoning: events.AgentReasoningDelta,
    events.AgentReasoningRawContent: events.AgentReasoningRawContentDelta,
}


class EventRenderer:
    """Writes the events of one conversation as lines.

    On a terminal, control characters are escaped, because a model, a command or a repository may have written them.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        cwd: str | None = None,
        shows_failures: bool = True,
        head_lines: int = HEAD_LINES,
        tail_lines: int = TAIL_LINES,
    ) -> None:
        """Create a renderer that writes to `out`. Paths below `cwd`, the working directory of the conversation, are
        shortened. If `shows_failures` is False, the errors that end turns are not written. `head_lines` and
        `tail_lines` are the maximum numbers of lines that are shown from the beginning and from the end of a
        command's output.
        """
        self._head_lines, self._tail_lines = head_lines, tail_lines
        self._shows_failures = shows_failures
        self._out, self._cwd = out, cwd
        self._is_terminal = out.isatty()
        self._bold, self._dim, self._plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if uses_colour(out) else ("", "", "")
        self._is_empty = True
        """True if this renderer has written nothing."""
        self._is_open = False
        """True if the last line that was written does not end with a newline."""
        self._streamed: type[_Delta] | None = None
        """The type of the deltas in the current line; None if the line contains no deltas."""
        self._pieces: dict[type[_Delta], list[str]] = {}
        """The deltas of the unfinished messages and reasoning, keyed by the type of the deltas."""
        self._patches: set[str] = set()
        """The call ids of the patches that are being applied."""
        self._outputs: dict[str, CommandLines] = {}
        """The output of each running command, keyed by call id."""
        self._usage = NO_TOKENS
        """The tokens that the running turn has used."""

    def render(self, event: Event) -> None:
        """Write the lines of one event."""
        if isinstance(event, _Delta):
            self._write_piece(type(event), event.delta)
        elif isinstance(event, _Whole):
            self._write_whole(event)
        else:
            self.end_line()
            self._render_other(event)

    def end_line(self) -> None:
        """End the current line, unless it is empty."""
        if self._is_open:
            self._write("\n")
        self._is_open = False
        self._streamed = None

    # --- texts -----------------------------------------------------------------------------

    def _write_piece(self, kind: type[_Delta], piece: str) -> None:
        if kind is not self._streamed:
            self.end_line()
            self._streamed = kind
            if kind is not events.AgentMessageDelta:
                self._write(THINKING, self._dim)
        self._pieces.setdefault(kind, []).append(piece)
        self._write(piece, "" if kind is events.AgentMessageDelta else self._dim)
        self._is_open = not piece.endswith("\n")

    def _write_whole(self, event: _Whole) -> None:
        """Write the complete text of an event, unless the deltas that were already written contain exactly this
        text.
        """
        kind = _PIECES[type(event)]
        text = event.message if isinstance(event, events.AgentMessage) else event.text
        if "".join(self._pieces.get(kind, ())) != text:
            self.end_line()
            self._write_piece(kind, text)
        self._pieces.pop(kind, None)
        self.end_line()

    # --- other events ------------------------------------------------------------------------

    def _render_other(self, event: Event) -> None:
        match event:
            case events.TaskStarted():
                self._usage = NO_TOKENS
                self._pieces.clear()  # discards the unfinished texts of an interrupted turn
            case events.TaskComplete():
                self._end_turn()
            case events.UserMessage(content=content, principal=principal):
                self._user_message(content, _by(principal))
            case events.ErrorEvent(message=message, principal=principal, reason=reason):
                if self._shows_failures or reason is UNSET:  # an error without a reason does not end the turn
                    text = "interrupted" if reason == "interrupted" else f"error: {message.strip()}"
                    self._line(f"{text}{_by(principal)}")
                if reason not in (UNSET, "failed"):  # no `task_complete` follows
                    self._end_turn()
            case events.TokenCount():
                self._usage = self._usage.plus(event)
            case events.ExecCommandBegin(call_id=call_id, command=command, cwd=cwd):
                self._outputs[call_id] = self._command_lines()
                place = "" if self._cwd in (None, cwd) else f"  (in {self._short(cwd)})"
                self._lines(command_lines(command), first="$ ", then="  ", last=place, style=self._bold)
            case events.ExecCommandOutputDelta(call_id=call_id, stream=stream, chunk=chunk):
                if call_id not in self._patches:  # the output of a patch contains only the names of its files
                    output = self._outputs.setdefault(call_id, self._command_lines())
                    self._output(output.add(stream, bytes(chunk)))
            case events.ExecCommandEnd(call_id=call_id, exit_code=exit_code, duration=duration):
                self._end_output(call_id)
                how = "not completed, or failed in the sandbox" if exit_code == -1 else f"exit code {exit_code}"
                self._line(f"  {how} ({_seconds(duration)})")
            case events.PatchApplyBegin(call_id=call_id, changes=changes):
                self._patches.add(call_id)
                self._changes("patch", changes)
            case events.PatchApplyEnd(call_id=call_id, success=success, stderr=problem):
                self._patches.discard(call_id)
                if not success:
                    self._line(f"  not applied: {' '.join(problem.split())}")
            case events.PatchRefused(message=problem):
                self._line(f"patch not applied: {' '.join(problem.split())}")
            case events.TurnDiff():
                pass  # the changes have been shown with their patches
            case events.PlanUpdate(explanation=explanation, plan=plan):
                self._line(f"plan: {explanation}" if explanation else "plan:")
                for step in plan:
                    self._line(f"  {PLAN_STEPS[step.status]} {step.step}")
            case events.McpToolCallBegin(invocation=call):
                arguments = "" if call.arguments is None else f" {encode(call.arguments).decode()}"
                self._line(f"{call.server}.{call.tool}{_cut(arguments)}", self._bold)
            case events.McpToolCallEnd(result=result, duration=duration):
                outcome = "done" if isinstance(result.err, UnsetType) else f"failed: {_cut(result.err)}"
                self._line(f"  {outcome} ({_seconds(duration)})")
            case events.WebSearch(query=query, results=results, error=problem):
                outcome = f"failed: {problem}" if problem else f"{len(results)} results"
                self._line(f"web search: {query}; {outcome}")
            case events.ExecApprovalRequest(command=command, cwd=cwd, reason=reason):
                self._line("approval needed" + ("" if isinstance(reason, UnsetType) else f": {reason}"))
                self._line(f"  {quoted_command(command)}  (in {self._short(cwd)})", self._bold)
            case events.ApplyPatchApprovalRequest(changes=changes, reason=reason):
                self._changes("approval needed" + ("" if isinstance(reason, UnsetType) else f": {reason}"), changes)
            case events.LimitReached(limit=limit):
                self._line(f"approval needed: the limit {limit} is reached ({event.amounts})")
            case events.ApprovalSettled(decision=decision, reason=reason, principal=principal):
                why = "" if isinstance(reason, UnsetType) else f": {reason}"
                self._line(f"  {_DECISIONS[decision]}{_by(principal)}{why}")
            case events.RequestRetry(attempt=attempt, max_attempts=most, delay_ms=delay, reason=reason):
                self._line(f"retry {attempt} of {most} in {delay / 1000:g} s: {reason}")
            case events.BackgroundEvent(message=message):
                self._line(message.strip())
            case events.QueueChanged(messages=messages, paused=paused):
                self._line(f"queue: {len(messages)} waiting" + (", paused" if paused else ""))
            case events.WorkspaceUpdated(branch=branch, commit=commit, pushed=pushed, message=problem):
                state = f"commit {commit[:12]} on {branch}" + ("" if pushed else ", not pushed")
                self._line(state if isinstance(problem, UnsetType) else f"{state}: {problem}")
            case events.UnknownEvent(type=name):
                self._line(f"({name})")
            case _:
                pass  # `session_configured` and events that are never sent

    def _user_message(self, content: tuple[InputItem, ...], by: str) -> None:
        if not self._is_empty:
            self._write("\n")  # an empty line separates turns
        lines = text_of(content).splitlines()
        hidden = len(lines) - PROMPT_LINES
        if hidden > 0:
            lines = [*lines[:PROMPT_LINES], f"... {hidden} more lines"]
        attached = sum(not isinstance(item, TextItem) for item in content)
        if attached:
            lines.append(f"[{attached} attached]")
        self._lines(lines or [""], first="> ", then="> ", last=by, style=self._bold)

    def _end_turn(self) -> None:
        for call_id in list(self._outputs):
            self._end_output(call_id)
        if self._usage != NO_TOKENS:
            self._line(f"tokens: {tokens_text(self._usage)}", self._dim)
        self._usage = NO_TOKENS

    def _command_lines(self) -> CommandLines:
        return CommandLines(head=self._head_lines, tail=self._tail_lines)

    def _output(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._line(f"  {line}", self._dim)

    def _end_output(self, call_id: str) -> None:
        if (output := self._outputs.pop(call_id, None)) is None:
            return
        lines, hidden = output.end()
        if hidden:
            self._line(f"  ... {hidden} more lines", self._dim)
        self._output(lines)

    def _changes(self, title: str, changes: Mapping[str, events.FileChange]) -> None:
        self._line(f"{title}:")
        for path, change in changes.items():
            self._line(f"  {self._change(path, change)}", self._bold)

    def _change(self, path: str, change: events.FileChange) -> str:
        """Return a summary of the change to one file, such as `M src/a.py +3 -1`."""
        shown = self._short(path)
        if isinstance(change, str):
            return f"D {shown}"
        if not isinstance(change.add, UnsetType):
            content = change.add.content
            count = len(content.removesuffix("\n").split("\n")) if content else 0
            return f"A {shown} +{count}"
        if isinstance(change.update, UnsetType):
            return f"? {shown}"
        lines = change.update.unified_diff.split("\n")  # hunks without file headers
        added = sum(line.startswith("+") for line in lines)
        removed = sum(line.startswith("-") for line in lines)
        target = change.update.move_path
        moved = "" if target is None else f" -> {self._short(target)}"
        return f"{'M' if target is None else 'R'} {shown}{moved} +{added} -{removed}"

    def _short(self, path: str) -> str:
        """If a path is below the working directory, return it relative to that directory; otherwise return the path
        unchanged.
        """
        if self._cwd is None or not path.startswith(os.path.join(self._cwd, "")):
            return path
        return path[len(os.path.join(self._cwd, "")) :]

    # --- writing -----------------------------------------------------------------------------

    def _lines(self, lines: Sequence[str], *, first: str, then: str, last: str, style: str) -> None:
        for number, line in enumerate(lines):
            end = last if number == len(lines) - 1 else ""
            self._line(f"{then if number else first}{line}{end}", style)

    def _line(self, text: str, style: str = "") -> None:
        """Write one line. Newlines in the text are replaced by spaces."""
        self._write(" ".join(text.splitlines()) or text, style)
        self._write("\n")

    def _write(self, text: str, style: str = "") -> None:
        if self._is_terminal:
            text = for_terminal(text)
        self._out.write(f"{style}{text}{self._plain}" if style and text else text)
        self._out.flush()
        self._is_empty = False


def tokens_text(usage: Tokens) -> str:
    """Return the number of tokens as text, such as `1,200 input (1,000 cached), 56 output, cost 0.0123`."""
    cached = f" ({usage.cached_input_tokens:,} cached)" if usage.cached_input_tokens else ""
    cost = "" if isinstance(usage.cost_micros, UnsetType) else f", cost {usage.cost_micros / 1_000_000:.4f}"
    return f"{usage.input_tokens:,} input{cached}, {usage.output_tokens:,} output{cost}"


def command_lines(command: Sequence[str]) -> list[str]:
    """Return a command as lines. A shell script is unchanged; any other command is quoted for a shell."""
    if len(command) == 3 and os.path.basename(command[0]) in SHELLS and command[1] in SCRIPT_OPTIONS:
        return command[2].splitlines() or [""]
    return [quoted_command(command)]


def _seconds(duration: events.Duration) -> str:
    return f"{duration.secs + duration.nanos / 1e9:.1f} s"


def _cut(text: str) -> str:
    return text if len(text) <= ARGUMENTS_LENGTH else text[:ARGUMENTS_LENGTH] + "…"


def _by(principal: str | UnsetType) -> str:
    """Return the name of a principal in parentheses; an empty string for a local client."""
    return "" if principal is UNSET or principal == LOCAL.name else f" ({principal})"

"""Renders the events of a conversation as a protocol trace, with the name of each event, for `parley demo`.

In contrast, `event_renderer.py` shows the work of the agent and not the protocol.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from msgspec import UNSET, UnsetType

from parley.cli.steps import StepPrinter
from parley.client import Event, Stream, events
from parley.wire.items import text_of
from parley.wire.principals import LOCAL

__all__ = ["TraceRenderer"]

DELTAS: Final = (events.AgentReasoningDelta, events.AgentMessageDelta, events.ExecCommandOutputDelta)
"""Event types whose consecutive events share one heading."""


class TraceRenderer:
    """Writes the events of a conversation with their names to a `StepPrinter`."""

    def __init__(self, printer: StepPrinter, *, on_approval: Callable[[], object] = lambda: None) -> None:
        """Create a renderer. `on_approval` is called after the event of an approval request has been written."""
        self._printer, self._on_approval = printer, on_approval
        self.has_patched = False
        self._heading = ""
        self._text = ""
        """The text of the unfinished message, as far as its deltas have arrived."""
        self._line = ""
        """The incomplete last line of a command's output. This line has not been written yet."""

    async def render_turn(self, stream: Stream, *, turn: int) -> str:
        """Write the events of one turn until the turn ends, and return the text of the agent's messages in the
        turn.

        `turn` is the number of the turn in the stream, counted from 1.
        """
        shown, completed = "", 0
        async for seen in stream.detailed():
            ends = isinstance(seen.msg, events.TaskComplete)
            if completed == turn - 1:  # earlier turns have already been shown
                shown += self.render(seen.msg, live=seen.live)
            completed += ends
            if completed == turn:
                break
        return shown

    def render(self, event: Event, *, live: bool) -> str:
        """Write one event, and return the new text from the agent that it contains; an empty string if it contains
        none.

        `live` is True for an event that was received when it happened, and False for an event in a snapshot.
        """
        if not isinstance(event, DELTAS):
            self._printer.lines(self._line)
            self._line = self._heading = ""
        match event:
            case events.AgentReasoningDelta(delta=delta):
                self._write(event, delta, live=live)
            case events.AgentMessageDelta(delta=delta):
                self._write(event, delta, live=live)
                self._text += delta
                return delta
            case events.AgentMessage(message=message) if message == self._text:
                self._text = ""
                self._printer.received(f"agent_message: the same {len(message)} characters, whole")
            case events.AgentMessage(message=message):
                shown, self._text = self._text, ""
                self._printer.received("agent_message:")
                self._printer.write(message)
                return message.removeprefix(shown)
            case events.TaskStarted():
                self._text = ""  # discards an unfinished message
                self._printer.received(events.event_type(event))
            case events.UserMessage(content=content, principal=principal):
                self._printer.received(f"{events.event_type(event)}{_by(principal)}:")
                self._printer.write(text_of(content))
            case events.ErrorEvent(message=message, principal=principal):
                self._printer.received(f"{events.event_type(event)}: {message.strip()}{_by(principal)}")
            case events.BackgroundEvent(message=message):
                self._printer.received(f"{events.event_type(event)}: {message.strip()}")
            case events.PatchApplyBegin(changes=changes):
                self.has_patched = True
                self._printer.received(f"{events.event_type(event)}: {', '.join(map(os.path.basename, changes))}")
            case events.PatchRefused(message=message):
                self._printer.received(f"{events.event_type(event)}: {message}")
            case events.TurnDiff(unified_diff=diff):
                self._printer.received(f"{events.event_type(event)}:")
                self._printer.lines(diff[max(diff.find("@@"), 0) :])
            case events.ExecCommandBegin(command=command):
                self._printer.received(f"{events.event_type(event)}: {' '.join(command)}")
            case events.ExecCommandOutputDelta():
                self._pass_on(event)
            case events.ExecCommandEnd(exit_code=exit_code):
                self._printer.received(f"{events.event_type(event)}: exit code {exit_code}")
            case events.ExecApprovalRequest(command=command):
                self._printer.received(f"{events.event_type(event)}: {' '.join(command)}")
                self._on_approval()
            case events.ApplyPatchApprovalRequest(changes=changes):
                self._printer.received(f"{events.event_type(event)}: {', '.join(map(os.path.basename, changes))}")
                self._on_approval()
            case events.LimitReached(limit=limit):
                self._printer.received(f"{events.event_type(event)}: {limit}, {event.amounts}")
                self._on_approval()
            case events.ApprovalSettled(decision=decision, by=by, principal=principal):
                self._printer.received(f"{events.event_type(event)}: {decision}, by {by}{_by(principal)}")
            case events.QueueChanged(messages=messages, paused=paused):
                waiting = f"{len(messages)} waiting" + (", paused" if paused else "")
                self._printer.received(f"{events.event_type(event)}: {waiting}")
            case events.RequestRetry(attempt=attempt, max_attempts=most, delay_ms=delay, reason=reason):
                when = f"retrying {attempt}/{most} in {delay / 1000:g} s"
                self._printer.received(f"{events.event_type(event)}: {reason}; {when}")
            case events.WebSearch(query=query, results=results, error=problem):
                outcome = problem or f"results: {len(results)}"
                self._printer.received(f"{events.event_type(event)}: {query}; {outcome}")
            case events.WorkspaceUpdated(branch=branch, commit=commit, pushed=pushed, message=problem):
                state = f"{commit[:12]} on {branch}" + ("" if pushed else ", not pushed")
                detail = f"; {problem}" if isinstance(problem, str) else ""
                self._printer.received(f"{events.event_type(event)}: {state}{detail}")
            case events.UnknownEvent(type=name):
                self._printer.received(name)
            case _:
                self._printer.received(events.event_type(event))
        return ""

    def _pass_on(self, output: events.ExecCommandOutputDelta) -> None:
        """Write the complete lines of a command's output. Keep an incomplete last line until it is complete."""
        self._heading_once(f"{events.event_type(output)}, {output.stream}:")
        *lines, self._line = (self._line + bytes(output.chunk).decode(errors="replace")).split("\n")
        for line in lines:
            self._printer.lines(line)

    def _write(self, event: events.EventBase, delta: str, *, live: bool) -> None:
        how = "one by one, as they are written" if live else "all so far in one piece"
        self._heading_once(f"{events.event_type(event)}, {how}:")
        self._printer.write(delta)

    def _heading_once(self, heading: str) -> None:
        """Write a heading, unless it is the heading of the current section."""
        if heading != self._heading:
            self._printer.received(heading)
            self._heading = heading


def _by(principal: str | UnsetType) -> str:
    """Return the name of a principal in parentheses; an empty string for a local client."""
    return "" if principal is UNSET or principal == LOCAL.name else f" ({principal})"

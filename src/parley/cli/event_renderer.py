"""Events of a conversation as lines on the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from parley.cli.page import Page
from parley.client import Event, Stream, events
from parley.wire.items import text_of

__all__ = ["EventRenderer"]

DELTAS: Final = (events.AgentReasoningDelta, events.AgentMessageDelta, events.ExecCommandOutputDelta)
"""Events that share one heading until another event comes."""


class EventRenderer:
    """Writes the events of a conversation to a page."""

    def __init__(self, page: Page, *, on_question: Callable[[], object] = lambda: None) -> None:
        """Create a renderer. `on_question` is called after the event of an approval request has been written."""
        self._page, self._on_question = page, on_question
        self.has_patched = False
        self._heading = ""
        self._text = ""
        """The deltas of the message that is being written."""
        self._line = ""
        """The last line of a command's output, until it ends."""

    async def render_turn(self, stream: Stream, *, turn: int) -> str:
        """Write events until the end of the turn with this number; return the text of the agent in it."""
        shown, completed = "", 0
        async for seen in stream.detailed():
            ends = isinstance(seen.msg, events.TaskComplete)
            if completed == turn - 1:  # earlier turns were shown before
                shown += self.render(seen.msg, live=seen.live)
            completed += ends
            if completed == turn:
                break
        return shown

    def render(self, event: Event, *, live: bool) -> str:
        """Write one event; return the text of the agent in it.

        `live`: the event arrived as it happened, not in a snapshot.
        """
        if not isinstance(event, DELTAS):
            self._page.lines(self._line)
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
                self._page.received(f"agent_message: the same {len(message)} characters, whole")
            case events.AgentMessage(message=message):
                shown, self._text = self._text, ""
                self._page.received("agent_message:")
                self._page.write(message)
                return message.removeprefix(shown)
            case events.TaskStarted():
                self._text = ""  # a message that was not finished
                self._page.received(events.event_type(event))
            case events.UserMessage(content=content):
                self._page.received(f"{events.event_type(event)}:")
                self._page.write(text_of(content))
            case events.ErrorEvent(message=message) | events.BackgroundEvent(message=message):
                self._page.received(f"{events.event_type(event)}: {message.strip()}")
            case events.PatchApplyBegin(changes=changes):
                self.has_patched = True
                self._page.received(f"{events.event_type(event)}: {', '.join(map(os.path.basename, changes))}")
            case events.TurnDiff(unified_diff=diff):
                self._page.received(f"{events.event_type(event)}:")
                self._page.lines(diff[max(diff.find("@@"), 0) :])
            case events.ExecCommandBegin(command=command):
                self._page.received(f"{events.event_type(event)}: {' '.join(command)}")
            case events.ExecCommandOutputDelta():
                self._pass_on(event)
            case events.ExecCommandEnd(exit_code=exit_code):
                self._page.received(f"{events.event_type(event)}: exit code {exit_code}")
            case events.ExecApprovalRequest(command=command):
                self._page.received(f"{events.event_type(event)}: {' '.join(command)}")
                self._on_question()
            case events.ApplyPatchApprovalRequest(changes=changes):
                self._page.received(f"{events.event_type(event)}: {', '.join(map(os.path.basename, changes))}")
                self._on_question()
            case events.LimitReached(limit=limit, used=used, allowed=allowed):
                self._page.received(f"{events.event_type(event)}: {limit}, {used} of {allowed}")
                self._on_question()
            case events.ApprovalSettled(decision=decision, by=by):
                self._page.received(f"{events.event_type(event)}: {decision}, by {by}")
            case events.UnknownEvent(type=name):
                self._page.received(name)
            case _:
                self._page.received(events.event_type(event))
        return ""

    def _pass_on(self, output: events.ExecCommandOutputDelta) -> None:
        """Write the output of a command in whole lines."""
        self._heading_once(f"{events.event_type(output)}, {output.stream}:")
        *lines, self._line = (self._line + bytes(output.chunk).decode(errors="replace")).split("\n")
        for line in lines:
            self._page.lines(line)

    def _write(self, event: events.EventBase, delta: str, *, live: bool) -> None:
        how = "one by one, as they are written" if live else "all so far in one piece"
        self._heading_once(f"{events.event_type(event)}, {how}:")
        self._page.write(delta)

    def _heading_once(self, heading: str) -> None:
        """Write a heading unless it is the current one."""
        if heading != self._heading:
            self._page.received(heading)
            self._heading = heading

"""Events as the output of a command: rendered for people, or as JSON, one object on each line."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from msgspec import UnsetType

from parley.cli.event_renderer import EventRenderer
from parley.cli.ids import SHORT
from parley.cli.page import Page
from parley.cli.printing import print_json, print_note, print_text
from parley.cli.runner import CommandFailed
from parley.client import Client, Conversation, Event, StreamEvent, TurnFailed, events
from parley.client.turn import result_of
from parley.client.turn_result import TurnSummary
from parley.wire.jsonrpc import encode

__all__ = ["FAILED", "INTERRUPTED", "EventOutput", "plain_json", "show_turn"]

FAILED: Final = 1
INTERRUPTED: Final = 130

QUESTIONS: Final = (events.ExecApprovalRequest, events.ApplyPatchApprovalRequest, events.LimitReached)


def plain_json(value: object) -> Any:
    """Return a struct of the wire as plain values."""
    return json.loads(value.encoded if isinstance(value, events.UnknownEvent) else encode(value))


class EventOutput:
    """Shows the events of one conversation."""

    def __init__(self, client: Client, conversation: Conversation, page: Page | None, *, command: str) -> None:
        """Create the output. Without a page, events are printed as JSON."""
        self._client, self._conversation, self._command = client, conversation, command
        self._page = page
        self._renderer = None if page is None else EventRenderer(page)

    async def show(self, event: StreamEvent) -> None:
        """Show an event. If the agent waits for an answer, say how to give it."""
        meta = event.meta
        self.show_stored(
            event.msg,
            seq=None if isinstance(meta.seq, UnsetType) else meta.seq,
            item=None if isinstance(meta.item, UnsetType) else meta.item,
            offset=None if isinstance(meta.offset, UnsetType) else meta.offset,
            live=event.live,
        )
        if self._page is not None and isinstance(event.msg, QUESTIONS):
            for approval in await self._client.approvals(self._conversation.id):
                self._page.end_line()
                short = (approval.approval_id or "")[:SHORT]
                print_note(
                    self._command, f"the agent waits for an answer: `parley answer {short} approve`, or deny"
                )

    def show_stored(
        self,
        msg: Event,
        *,
        seq: int | None,
        item: str | None = None,
        offset: int | None = None,
        live: bool = False,
    ) -> None:
        if self._renderer is not None:
            self._renderer.render(msg, live=live)
            return
        position = {"seq": seq, "item": item, "offset": offset}
        given = {name: value for name, value in position.items() if value is not None}
        print_json({"type": "event", "conversation_id": self._conversation.id, **given, "msg": plain_json(msg)})


async def show_turn(
    client: Client,
    conversation: Conversation,
    turn: AsyncGenerator[StreamEvent, None],
    *,
    command: str,
    as_json: bool,
) -> int:
    """Show the events of a turn on stderr and its answer on stdout, or both as JSON; return the exit code.

    Raises:
        CommandFailed: the events end before the turn.
    """
    page = None if as_json else Page(sys.stderr)
    output, summary = EventOutput(client, conversation, page, command=command), TurnSummary()
    async with aclosing(turn):
        async for event in turn:
            await output.show(event)
            if summary.add(event.msg):
                break
        else:
            raise CommandFailed("the server has ended the stream before the end of the turn")
    if page is not None:
        page.end_line()
    try:
        result, error, code = result_of(summary), None, 0
    except TurnFailed as failed:
        result, error = failed.result, failed.message.strip()
        code = INTERRUPTED if failed.reason == "interrupted" else FAILED
    if as_json:
        failure = {} if error is None else {"error": error}
        print_json({"type": "result", "conversation_id": conversation.id, **plain_json(result), **failure})
    elif error is not None:
        print_note(command, error)
    elif not (sys.stdout.isatty() and sys.stderr.isatty()):  # the answer is on that terminal already
        print_text(result.text)
    return code

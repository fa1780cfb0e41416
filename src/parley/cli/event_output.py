"""Prints events as the output of a command: as text for people, or as JSON objects, one on each line."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final, TextIO

from msgspec import UnsetType

from parley.cli.event_renderer import EventRenderer
from parley.cli.ids import SHORT
from parley.cli.printing import print_json, print_note
from parley.client import (
    Approval,
    Client,
    ClientError,
    Conversation,
    Event,
    StreamEvent,
    events,
)
from parley.wire.jsonrpc import encode
from parley.wire.tools import OpenText

__all__ = ["EventOutput", "approval_json", "mark_read", "plain_json"]

MARK_SECONDS: Final = 0.5
"""The maximum number of seconds for which a command waits for the response to a request that marks a conversation
as read.
"""

APPROVALS: Final = (events.ExecApprovalRequest, events.ApplyPatchApprovalRequest, events.LimitReached)


_PIECES: Final = {
    events.event_type(kind): kind
    for kind in (events.AgentMessageDelta, events.AgentReasoningDelta, events.AgentReasoningRawContentDelta)
}
"""The classes of the events that contain pieces of the model's output, keyed by the type of the event."""


def plain_json(value: object) -> Any:
    """Return a wire struct as JSON values: dictionaries, lists, strings, numbers, booleans and None."""
    return json.loads(value.encoded if isinstance(value, events.UnknownEvent) else encode(value))


def approval_json(approval: Approval) -> dict[str, object]:
    """Return an open approval as an object of the JSON output."""
    names = ("approval_id", "conversation_id", "kind", "message", "command", "cwd", "changes")
    members = {name: getattr(approval, name) for name in names}
    return {"type": "approval", **{name: value for name, value in members.items() if value is not None}}


async def mark_read(conversation: Conversation, seq: int) -> None:
    """Mark the conversation as read up to the position `seq`. Ignore errors, and wait at most `MARK_SECONDS` for
    the server.
    """
    with suppress(ClientError):
        await conversation.mark_read(seq, timeout_seconds=MARK_SECONDS)


class EventOutput:
    """Prints the events of one conversation as text or as JSON."""

    def __init__(
        self,
        client: Client,
        conversation: Conversation,
        out: TextIO | None,
        *,
        command: str,
        cwd: str | None = None,
        shows_failures: bool = True,
        only_approvals: bool = False,
    ) -> None:
        """Create the output. If `out` is None, events are printed to stdout as JSON. `command` is the name of the
        command, for the messages on stderr. Paths below `cwd`, the working directory of the conversation, are
        shortened. If `shows_failures` is False, the text output omits the errors that end turns. If
        `only_approvals` is True, the output contains only open approvals.
        """
        self._only_approvals = only_approvals
        self._client, self._conversation, self._command = client, conversation, command
        self._renderer = None if out is None else EventRenderer(out, cwd=cwd, shows_failures=shows_failures)

    async def show(self, event: StreamEvent) -> None:
        """Print an event. If the event is an approval request, also print each open approval of the conversation,
        as JSON or as the command that answers the approval.
        """
        meta = event.meta
        self.show_stored(
            event.msg,
            seq=None if isinstance(meta.seq, UnsetType) else meta.seq,
            item=None if isinstance(meta.item, UnsetType) else meta.item,
            offset=None if isinstance(meta.offset, UnsetType) else meta.offset,
        )
        if isinstance(event.msg, APPROVALS):
            for approval in await self._client.approvals(self._conversation.id):
                self._show_approval(approval)

    def _show_approval(self, approval: Approval) -> None:
        if self._renderer is None:
            print_json(approval_json(approval))
            return
        self._renderer.end_line()
        short = (approval.approval_id or "")[:SHORT]
        print_note(self._command, f"the agent waits for an answer: `parley answer {short} approve`, or deny")

    def show_stored(
        self,
        msg: Event,
        *,
        seq: int | None,
        item: str | None = None,
        offset: int | None = None,
        at: str | None = None,
    ) -> None:
        """Print one event, without the open approvals that `show` also prints.

        `seq` is the position of the event, `item` is the id of its open item, `offset` is the offset of its text in
        this item, and `at` is the time at which the event was stored. JSON output contains each of these values
        that is not None. Text output contains none of them.
        """
        if self._only_approvals:
            return
        if self._renderer is not None:
            self._renderer.render(msg)
            return
        position = {"seq": seq, "item": item, "offset": offset, "at": at}
        given = {name: value for name, value in position.items() if value is not None}
        print_json({"type": "event", "conversation_id": self._conversation.id, **given, "msg": plain_json(msg)})

    def show_open(self, text: OpenText) -> None:
        """Print the part of an open item that the model or the command has written so far."""
        if self._renderer is None:
            print_json({"type": "open", "item": text.item, "event": text.type, "text": text.text})
        elif not isinstance(text.call_id, UnsetType) and not isinstance(text.stream, UnsetType):
            chunk = tuple(text.text.encode())
            piece = events.ExecCommandOutputDelta(call_id=text.call_id, stream=text.stream, chunk=chunk)
            self._renderer.render(piece)
        elif text.type in _PIECES:
            self._renderer.render(_PIECES[text.type](delta=text.text))

    def end_line(self) -> None:
        """End the current line, unless it is empty."""
        if self._renderer is not None:
            self._renderer.end_line()

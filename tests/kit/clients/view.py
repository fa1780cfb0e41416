"""A conversation as one client sees it, built from the messages that the client was sent.

The view follows the documented rules for clients: an event with the complete text ends a text, and some events
discard all open texts. The output of commands stays, with gaps where output was omitted. The view raises an error
if an event or a delta is repeated, out of order or missing.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import UNSET

from parley.conversation.log import DISCARDS_OPEN, ENDS
from parley.wire.events import ErrorEvent, ExecCommandEnd, ExecCommandOutputDelta, PatchApplyEnd, event_type
from parley.wire.ids import START, ItemId, Seq
from parley.wire.notifications import ConversationEvent

__all__ = ["View"]


OUTPUT = event_type(ExecCommandOutputDelta)
INTERRUPTS = event_type(ErrorEvent)
COMMAND_ENDS = frozenset({event_type(ExecCommandEnd), event_type(PatchApplyEnd)})


class View:
    """The view after all messages so far."""

    def __init__(self) -> None:
        self.position = START
        self.events: dict[Seq, Any] = {}
        self.output: dict[ItemId, list[tuple[int, bytes]]] = {}
        """The output of commands: the offset and the bytes of each piece."""
        self._open: dict[ItemId, tuple[str, str]] = {}
        self._running: dict[ItemId, str] = {}
        """The calls whose output may continue."""

    @property
    def open(self) -> dict[ItemId, tuple[str, str]]:
        """The type and the text of each open item that has text."""
        return {item: (kind, text) for item, (kind, text) in self._open.items() if text}

    def resume(self) -> Seq:
        """Forget the open items, which are sent again; return the position for `after`."""
        self._open.clear()
        for item in self._running:
            del self.output[item]
        self._running.clear()
        return self.position

    def reached(self, seq: Seq) -> None:
        """Note the position at the end of a snapshot."""
        assert seq >= self.position, f"went back from {self.position} to {seq}"
        self.position = seq

    def take(self, sent: ConversationEvent) -> None:
        meta, msg = sent.meta, json.loads(bytes(sent.msg))
        assert meta is not UNSET, "says nothing of its place"
        if meta.seq is not UNSET:
            self._take_event(meta.seq, msg)
        else:
            assert meta.item is not UNSET
            assert meta.offset is not UNSET
            self._take_delta(meta.item, meta.offset, msg)

    def _take_event(self, seq: Seq, msg: dict[str, Any]) -> None:
        assert seq > self.position, f"event {seq} came after {self.position}"
        self.position = seq
        self.events[seq] = msg
        if msg["type"] in COMMAND_ENDS:
            self._running = {item: call for item, call in self._running.items() if call != msg["call_id"]}
        elif msg["type"] == INTERRUPTS:
            self._running.clear()
        if msg["type"] in DISCARDS_OPEN:
            self._open.clear()
        elif msg["type"] in ENDS:
            ended = ENDS[msg["type"]].value
            self._open = {item: open_ for item, open_ in self._open.items() if open_[0] != ended}

    def _take_delta(self, item: ItemId, offset: int, msg: dict[str, Any]) -> None:
        if msg["type"] == OUTPUT:
            self._take_output(item, offset, msg)
            return
        kind, so_far = self._open.get(item, (msg["type"], ""))
        assert kind == msg["type"], f"{item} was {kind} and is {msg['type']}"
        assert offset == len(so_far), f"{item} goes on at {offset}, but {len(so_far)} is where we are"
        self._open[item] = (kind, so_far + msg["delta"])
        kinds = [kind for kind, _ in self._open.values()]
        assert len(set(kinds)) == len(kinds), f"two items of a kind are open: {self._open}"

    def _take_output(self, item: ItemId, offset: int, msg: dict[str, Any]) -> None:
        pieces = self.output.setdefault(item, [])
        end = pieces[-1][0] + len(pieces[-1][1]) if pieces else 0
        assert offset >= end, f"{item} is at {end}, and {offset} came"
        assert item in self._running or not pieces, f"{item} has ended and goes on"
        self._running[item] = msg["call_id"]
        pieces.append((offset, bytes(msg["chunk"])))

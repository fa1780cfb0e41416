"""A conversation as one client sees it, made of nothing but what it was sent.

Follows the rule that clients are told: an event that supersedes a text ends it, an event after
which nothing can be going on voids all open texts. Complains when something comes twice, out of
order, or with a piece missing.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import UNSET

from parley.conversation.log import ENDS, VOIDS
from parley.wire.ids import START, ItemId, Seq
from parley.wire.notifications import ConversationEvent

__all__ = ["View"]


class View:
    """What is known after all that was taken in so far."""

    def __init__(self) -> None:
        self.position = START
        self.events: dict[Seq, Any] = {}
        self._open: dict[ItemId, tuple[str, str]] = {}

    @property
    def open(self) -> dict[ItemId, tuple[str, str]]:
        """The type and the text of each item still being written; one without text is none."""
        return {item: (kind, text) for item, (kind, text) in self._open.items() if text}

    def resume(self) -> Seq:
        """Forget the open texts, which are sent again; the position behind which to ask for more."""
        self._open.clear()
        return self.position

    def reached(self, seq: Seq) -> None:
        """A snapshot said how far it goes."""
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
        assert seq > self.position, f"event {seq} came behind {self.position}"
        self.position = seq
        self.events[seq] = msg
        if msg["type"] in VOIDS:
            self._open.clear()
        elif msg["type"] in ENDS:
            ended = ENDS[msg["type"]].value
            self._open = {item: open_ for item, open_ in self._open.items() if open_[0] != ended}

    def _take_delta(self, item: ItemId, offset: int, msg: dict[str, Any]) -> None:
        kind, so_far = self._open.get(item, (msg["type"], ""))
        assert kind == msg["type"], f"{item} was {kind} and is {msg['type']}"
        assert offset == len(so_far), f"{item} goes on at {offset}, but {len(so_far)} is where we are"
        self._open[item] = (kind, so_far + msg["delta"])
        kinds = [kind for kind, _ in self._open.values()]
        assert len(set(kinds)) == len(kinds), f"two items of a kind are open: {self._open}"

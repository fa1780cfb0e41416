"""The clients that can answer an approval of one conversation: readers, clients that poll, and clients that were
asked.

Plain data; `approvals.py` does the waiting.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol

from msgspec import Struct

from parley.config.types import Approvals
from parley.wire.events import Settlement
from parley.wire.ids import ApprovalId

__all__ = ["FOLLOWERS_SECONDS", "ApprovalRecipient", "Recipients"]

FOLLOWERS_SECONDS: Final = 3.0
"""Time after the start of a call in which other clients of the home may begin to follow its turn."""


class ApprovalRecipient(Protocol):
    """A client that was sent an approval."""

    def settled(self, approval_id: ApprovalId, decision: Settlement) -> None:
        """Handle the settlement of the approval. Must not fail."""
        ...


class _Reader(Struct, frozen=True):
    can_be_asked: bool
    knows_limits: bool
    """True if its client knows the event `limit_reached`, and so can be asked about limits."""
    waits_for_turn: bool
    """True if it is a call that waits for the turn, whose client cannot answer meanwhile."""


class Recipients:
    """The clients that see one conversation in this process, and clients of processes that follow it."""

    def __init__(self) -> None:
        self._readers: dict[Hashable, _Reader] = {}
        self._delivered: list[tuple[ApprovalRecipient, ApprovalId]] = []
        """Clients that were sent an approval that is, or was, open."""
        self.polled = False
        """Whether a client polls that cannot be asked."""
        self.poller_can_answer = True
        """Whether that client is offered `approvalAnswer`."""

    def add(self, reader: Hashable, *, can_be_asked: bool, knows_limits: bool, waits_for_turn: bool) -> None:
        self._readers[reader] = _Reader(can_be_asked, knows_limits, waits_for_turn)

    def remove(self, reader: Hashable) -> bool:
        """Remove a reader; return whether it was registered."""
        return self._readers.pop(reader, None) is not None

    def deliver(self, recipient: ApprovalRecipient, approval_id: ApprovalId) -> None:
        """Record that a client was sent an approval."""
        self._delivered.append((recipient, approval_id))

    def withdraw(self, recipient: ApprovalRecipient) -> bool:
        """Record that a client will not answer; return whether it was sent an approval."""
        before = len(self._delivered)
        self._delivered = [one for one in self._delivered if one[0] is not recipient]
        return len(self._delivered) < before

    def settle(self, approval_id: ApprovalId, decision: Settlement) -> None:
        """Tell the clients that were sent an approval that it is settled."""
        told = [one for one, about in self._delivered if about == approval_id]
        self._delivered = [one for one in self._delivered if one[1] != approval_id]
        for recipient in told:
            recipient.settled(approval_id, decision)

    @property
    def delivered_ids(self) -> set[ApprovalId]:
        """The ids of approvals that clients were sent, and whose settlement they were not told yet."""
        return {approval_id for _, approval_id in self._delivered}

    @property
    def is_empty(self) -> bool:
        """True if no client reads, polls or was asked."""
        return not (self._readers or self._delivered or self.polled)

    @property
    def is_read(self) -> bool:
        """True if a client reads or polls."""
        return bool(self._readers) or self.polled

    @property
    def can_be_asked(self) -> bool:
        """True if a client could be asked something."""
        return bool(self._delivered) or any(one.can_be_asked for one in self._readers.values())

    def can_answer_limit(self, approval_id: ApprovalId | None) -> bool:
        """Return whether a client can be asked about a limit; `approval_id` is the id of the open approval, if it
        is about a limit.
        """
        return approval_id in self.delivered_ids or any(
            one.can_be_asked and one.knows_limits for one in self._readers.values()
        )

    @property
    def all_know_limits(self) -> bool:
        return all(one.knows_limits for one in self._readers.values())

    @property
    def only_waiting_calls(self) -> bool:
        """True if every client is a call that waits for the turn."""
        polls = self.polled and self.poller_can_answer
        return not polls and all(one.waits_for_turn for one in self._readers.values())

    def max_wait_seconds(self, approvals: Approvals, *, about_limit: bool, knows_limits: bool) -> float | None:
        """Return how long an open approval waits while no client can be asked; None: without a limit."""
        if about_limit and not knows_limits:
            return 0.0  # older clients know no such approval, only the end of the turn (docs/protocol.md#limits)
        if self.only_waiting_calls and approvals.when_nobody != "wait":
            # "return": the call that waits is answered with the approval, which stays open.
            return FOLLOWERS_SECONDS if approvals.when_nobody == "deny" else None
        holds = approvals.on_timeout == "hold" or not approvals.timeout_seconds
        return None if holds else float(approvals.timeout_seconds)

"""The state of a lease that this process holds. The module `leases.py` renews the leases."""

from __future__ import annotations

from collections.abc import Callable

from parley.ports.store import Lease, Owner, Summary
from parley.wire.ids import ConversationId

__all__ = ["HeldLease"]


class HeldLease:
    """The state of a lease that this process holds."""

    __slots__ = (
        "batch",
        "epoch",
        "id",
        "is_deleting",
        "is_given_up",
        "is_lost",
        "last",
        "number",
        "on_lost",
        "owner",
        "summary",
    )

    def __init__(
        self,
        conversation_id: ConversationId,
        number: int,
        lease: Lease,
        batch: bytes,
        owner: Owner,
        on_lost: Callable[[], None],
    ) -> None:
        self.id, self.number, self.epoch, self.owner, self.on_lost = (
            conversation_id,
            number,
            lease.epoch,
            owner,
            on_lost,
        )
        self.last: int = lease.last
        """The position of the last entry of the log, as far as this process knows."""
        self.batch = batch
        """The id of the last batch of entries that was written to the log. The next write checks that the database
        contains the same id.
        """
        self.summary: Summary | None = None
        """The last summary that this process has written under the lease; None if it has written none."""
        self.is_lost = False
        """True if this process gave up the lease or another process acquired it. Appends under a lost lease
        fail.
        """
        self.is_given_up = False
        """True if this process gave up the lease because the database could not be reached."""
        self.is_deleting = False
        """True while this process is deleting the conversation. The missing row then does not count as the loss of
        the lease.
        """

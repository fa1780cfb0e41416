"""The port of a store: durable logs of conversations, shared by all processes that use the same home.

A store keeps entries as they were encoded, and a summary of each log for lists. It reads only the keys of an entry
(`conversation/keys.py`) and the words that a search looks for. A process that writes to a conversation holds its
*lease*. There is one lease at a time. Each has a higher *epoch* (fencing token) than the one before, and the store
checks the epoch with every append.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, Protocol, get_args

from msgspec import Struct

from parley.conversation.log import Entry
from parley.conversation.state import State
from parley.errors import HomeLost
from parley.wire.ids import ApprovalId, ConversationId, Seq

__all__ = [
    "CALL_SECONDS",
    "CHECKPOINT_BYTES",
    "CHECKPOINT_ENTRIES",
    "PAGE",
    "PAGE_BYTES",
    "STATES",
    "TURN_SECONDS",
    "Checkpoint",
    "ConversationListing",
    "ConversationPage",
    "Draft",
    "Head",
    "Lease",
    "Owner",
    "PageCursor",
    "Query",
    "StateName",
    "Store",
    "Summary",
]

StateName = Literal["idle", "running", "asking"]
STATES: Final[tuple[str, ...]] = get_args(StateName)
CALL_SECONDS: Final = 5.0
"""How long a client's call waits for another process: the holder of the write lock, or the owner of the turn."""
TURN_SECONDS: Final = 60.0
"""How long an append of a running turn waits for the write lock before the turn fails."""
PAGE: Final = 2000
"""The most entries that one call writes or reads. No other process can write while a page is written."""
PAGE_BYTES: Final = 16 * 1024 * 1024
"""The default limit of the bytes in a page: a conversation may contain many large images."""
CHECKPOINT_BYTES: Final = 256 * 1024
"""The largest checkpoint."""
CHECKPOINT_ENTRIES: Final = 1000
"""The least distance between two checkpoints of a log, in entries."""


class Owner(Struct, frozen=True, kw_only=True):
    """The process that holds a lease."""

    node: str
    """The id of the computer or container that the process runs on; empty if it is not known. Process ids are
    unique only within a node.
    """
    pid: int
    address: str
    """The address at which the other processes reach it; empty if it does not listen."""
    since: float
    """When it acquired the lease, in seconds since the epoch."""

    def node_unless(self, own: str) -> str:
        """Return the node if it is known and differs from `own`; otherwise an empty text."""
        return "" if self.node == own else self.node


class Summary(Struct, frozen=True, kw_only=True):
    """The fields that a list shows of a conversation: a projection of its log, written together with the
    entries.
    """

    title: str
    cwd: str
    model: str
    state: StateName
    updated_at: float
    """In seconds since the epoch."""
    is_active: bool = False
    """True if the conversation is active now: the store then lists it first, even after the clock was set back. Not
    stored."""

    @classmethod
    def of(cls, state: State, *, is_active: bool = False) -> Summary:
        return cls(
            title=state.title,
            cwd=state.cwd,
            model=state.model,
            state=state.phase.value,
            updated_at=state.updated_at,
            is_active=is_active,
        )


class Lease(Struct, frozen=True, kw_only=True):
    """The right to append to one conversation."""

    conversation_id: ConversationId
    epoch: int
    """Higher than the epoch of every earlier lease."""
    last: Seq
    """The last position when the lease was granted. The holder reads up to here before it appends."""


class Head(Struct, frozen=True, kw_only=True):
    """The present state of a conversation in the store."""

    last: Seq
    epoch: int
    owner: Owner | None
    """The live holder of the lease; None if there is none. May be None for an idle conversation whose holder is
    about to release the lease.
    """
    summary: Summary
    archived: bool


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The encoded projections of a log at a position, so that loading folds only later entries."""

    seq: Seq
    """The last entry that the projections include."""
    data: bytes
    """At most `CHECKPOINT_BYTES`. The store does not interpret it."""


PageCursor = tuple[float, ConversationId]
"""A position in a list: the time of the last activity, and the id for conversations with equal times."""


class Query(Struct, frozen=True, kw_only=True):
    """The conditions that listed conversations meet."""

    cwd: str | None = None
    """Compared without redundant slashes and `.`."""
    text: str | None = None
    """Text in the title or in a message of the user or the agent, in upper or lower case."""
    state: StateName | None = None
    archived: bool | None = False
    """None: both archived conversations and others."""
    asked: ApprovalId | None = None
    """The id of an approval that was requested in the conversation."""
    after: PageCursor | None = None
    """List only conversations after this position."""
    limit: int = 50


class ConversationListing(Struct, frozen=True, kw_only=True):
    """A conversation in a list."""

    conversation_id: ConversationId
    summary: Summary
    archived: bool
    owned: bool
    """True if a process holds the lease. A turn that is not idle and has no owner is orphaned."""

    @property
    def cursor(self) -> PageCursor:
        return self.summary.updated_at, self.conversation_id


class ConversationPage(Struct, frozen=True, kw_only=True):
    """A page of a list, the latest activity first; where times are equal, the greatest id first."""

    items: tuple[ConversationListing, ...]
    more: bool
    """True if there are conversations after the last item."""


class Draft(Protocol):
    """A new log that is invisible until it is complete. The store removes drafts of processes that have ended."""

    async def add(self, entries: Sequence[Entry]) -> None:
        """Write entries after the last one; the first of all has position 1. At most `PAGE` of them."""
        ...

    async def finish(
        self,
        conversation_id: ConversationId,
        summary: Summary,
        *,
        archived: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Turn the draft into a conversation without an owner. `checkpoint` is the checkpoint of its log, if there
        is one.

        Raises `StoreFailed` if the id exists.
        """
        ...

    async def drop(self) -> None:
        """Remove the draft, now or later. Do nothing if it is finished or dropped."""
        ...


class Store(Protocol):
    """All logs of one home.

    A write is on disk when its call returns, and survives the end of the process and of the computer. A call raises
    `StoreFailed` if the system refuses, for example because the disk is full; nothing is changed then. While
    another process holds the write lock of the home, a write waits `CALL_SECONDS`, or until the time `until` of the
    event loop's clock, and then raises `WriteLockHeld`. Reads never wait for that lock. A conversation that does
    not exist raises `UnknownConversation`.
    """

    async def create(
        self, conversation_id: ConversationId, entries: Sequence[Entry], summary: Summary, *, archived: bool = False
    ) -> None:
        """Create a log with these entries, from position 1, without an owner. At most `PAGE` of them.

        Raises `StoreFailed` if the id exists.
        """
        ...

    async def draft(self) -> Draft:
        """Begin a log that is too long for `create`."""
        ...

    async def acquire(
        self,
        conversation_id: ConversationId,
        *,
        address: str,
        until: float | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Lease:
        """Acquire the lease and raise the epoch, in one step.

        `on_lost` tells the holder that it has lost the lease. It is called at most once, in the event loop, when
        the store finds that another process has acquired the lease or deleted the conversation: in `check`, or soon
        after an append failed with `LeaseLost`. It is not called after the holder's own `release`, `delete` or
        `close`. From then on appends fail with `LeaseLost`, and there is nothing to release.

        Raises:
            OwnedElsewhere: another process, or another caller in this process, holds it.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Release the lease; does nothing if it is no longer held."""
        ...

    def append(
        self, lease: Lease, entries: Sequence[Entry], summary: Summary, *, until: float | None = None
    ) -> Future[None]:
        """Append entries, all or none, in the order of the calls.

        The future is done when they are on disk, which may be at once. Cancelling it changes nothing. Without
        `until` the append waits `TURN_SECONDS` for the write lock.

        Fails with:
            LeaseLost: the lease is no longer held, or the log already has entries at these positions.
            StoreFailed: the system refuses, or refused an earlier append.
        """
        ...

    def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> Future[None]:
        """Replace the checkpoint of a log, after the appends that were submitted before.

        A checkpoint is an optimisation, so a caller may ignore a failure. A checkpoint less than
        `CHECKPOINT_ENTRIES` after the saved one is not saved.

        Fails with:
            ValueError: the data is larger than `CHECKPOINT_BYTES`.
            LeaseLost: the lease is no longer held, or the log ends before the checkpoint.
            StoreFailed: the system refuses.
        """
        ...

    async def checkpoint(self, conversation_id: ConversationId) -> Checkpoint | None:
        """Return the saved checkpoint of a log; None if there is none, or it cannot be read."""
        ...

    def watch(self, lost: Callable[[HomeLost], None]) -> None:
        """Call `lost` once, in the event loop, when files of the home were removed or replaced. From then on every
        call raises `HomeLost`."""
        ...

    async def check(self) -> None:
        """Check that the files of the home are in place, and tell the holders of lost leases (`acquire`).

        Raises `HomeLost`.
        """
        ...

    async def writable(self, *, until: float) -> None:
        """Wait until this process can get the write lock of the home. Raises `WriteLockHeld`."""
        ...

    async def read(
        self, conversation_id: ConversationId, *, after: Seq, limit: int = PAGE, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        """Return the entries after a position, in order; none if the log ends there.

        A page has at most `limit` entries, and no more than `PAGE`. It ends with the entry that makes it larger
        than `max_bytes`.

        Raises:
            Unreadable: the next entry is damaged or missing.
        """
        ...

    async def read_before(
        self, conversation_id: ConversationId, *, before: Seq, limit: int = PAGE, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        """Return the last entries before a position, in order; none if the log begins there.

        The limits are the same as for `read`, counted from the last entry backwards.

        Raises:
            Unreadable: the entry before the position is damaged or missing.
        """
        ...

    async def position_of(self, conversation_id: ConversationId, kind: str, key: str) -> Seq | None:
        """Return the position of the first entry of a type that has this key (`conversation/keys.py`), by an index;
        None if there is no such entry."""
        ...

    async def head(self, conversation_id: ConversationId) -> Head:
        """Return the state of a conversation."""
        ...

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        """Return the conversations whose log ends after the given position, and those that do not exist.

        One query answers for all of them. While no process writes to the store, asking again costs next to nothing.
        """
        ...

    async def find(self, query: Query) -> ConversationPage:
        """Return a page of the conversations that meet the query."""
        ...

    async def has_approvals(self, approval_ids: Collection[ApprovalId]) -> bool:
        """Return whether one of these approvals was requested in any conversation."""
        ...

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        """Remove a conversation from lists, or list it again."""
        ...

    async def delete(self, lease: Lease) -> None:
        """Remove the log and release its lease. Its space may be reclaimed later.

        Raises:
            LeaseLost: the lease is no longer held.
        """
        ...

    async def close(self) -> None:
        """Finish writes under way, release all leases and close everything."""
        ...

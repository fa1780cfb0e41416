"""Where logs are kept: durable, and shared by every process that has the same home.

A store keeps entries as they were encoded, and beside each log what a list shows of it. It does not know what
an entry means. Who writes to a conversation holds its *lease*: only one does, and one whose lease was taken
over meanwhile cannot write any more, whatever it believes.
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
    "PAGE",
    "STATES",
    "TURN_SECONDS",
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
"""How long a client's call waits for another process: one that holds the write lock, or one that runs the turn."""
TURN_SECONDS: Final = 60.0
"""How long an append of a running turn waits for the write lock before the turn fails."""
PAGE = 2000
"""Entries that are written or read in one go, at most: nobody else can write meanwhile."""


class Owner(Struct, frozen=True, kw_only=True):
    """The process that holds a lease."""

    pid: int
    address: str
    """Where it listens to the other processes; empty: nowhere."""
    since: float
    """In seconds since the epoch."""


class Summary(Struct, frozen=True, kw_only=True):
    """What a list shows of a conversation; a fold over its log, written together with the entries."""

    title: str
    cwd: str
    model: str
    state: StateName
    updated_at: float
    """In seconds since the epoch."""
    is_active: bool = False
    """Whether something happens in it now, so that the store lists it first, also after the clock was set back.
    Not stored."""

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
    """Higher than that of every lease before it."""
    last: Seq
    """The last position when it was taken: what was not read up to here has to be read first."""


class Head(Struct, frozen=True, kw_only=True):
    """How a conversation stands."""

    last: Seq
    epoch: int
    owner: Owner | None
    """Who holds the lease now, and is alive. One that is idle need not name whoever is about to give it back."""
    summary: Summary
    archived: bool


PageCursor = tuple[float, ConversationId]
"""Where a conversation stands in a list: its last activity, and its id where two are equal."""


class Query(Struct, frozen=True, kw_only=True):
    """Which conversations are wanted: those to which all of it applies."""

    cwd: str | None = None
    """However it is written, with slashes and `.` that change nothing or without."""
    text: str | None = None
    """Some of the title or of what the user or the agent said, in upper or lower case."""
    state: StateName | None = None
    archived: bool | None = False
    """None: whether or not they are."""
    asked: ApprovalId | None = None
    """The conversation in which this question was asked."""
    after: PageCursor | None = None
    """Only what comes behind this one."""
    limit: int = 50


class ConversationListing(Struct, frozen=True, kw_only=True):
    conversation_id: ConversationId
    summary: Summary
    archived: bool
    owned: bool
    """Whether somebody holds its lease. One that is not idle and has no owner was left by a process that died."""

    @property
    def cursor(self) -> PageCursor:
        return self.summary.updated_at, self.conversation_id


class ConversationPage(Struct, frozen=True, kw_only=True):
    """One page of a list, latest activity first; then by id, the greatest first."""

    items: tuple[ConversationListing, ...]
    more: bool
    """Whether there are others behind the last one."""


class Draft(Protocol):
    """A new log that nobody sees, finds or takes before it is whole. What is left of one whose process has ended
    is removed by whoever comes next."""

    async def add(self, entries: Sequence[Entry]) -> None:
        """Write entries behind the last one, the first of all having position 1. At most `PAGE` of them."""
        ...

    async def finish(self, conversation_id: ConversationId, summary: Summary, *, archived: bool = False) -> None:
        """From now on it is a conversation, and nobody has its lease.

        Raises `StoreFailed` where there is one of that id.
        """
        ...

    async def drop(self) -> None:
        """Remove it, at once or later. Nothing happens where it is finished or dropped."""
        ...


class Store(Protocol):
    """All logs of one home.

    Everything that writes is on disk when it returns: neither the end of this process nor of the computer
    takes it back. Raises `StoreFailed` where the system refuses (a full disk); nothing was changed then.
    Where another process holds the write lock of the home, writing waits `CALL_SECONDS` or until the moment
    `until`, by the clock of the event loop, and then raises `WriteLockHeld`. Reading never waits for that lock.
    A conversation that does not exist raises `UnknownConversation`.
    """

    async def create(
        self, conversation_id: ConversationId, entries: Sequence[Entry], summary: Summary, *, archived: bool = False
    ) -> None:
        """Begin a log with these entries, which count from 1; nobody has its lease. At most `PAGE` of them.

        Raises `StoreFailed` where there is one of that id.
        """
        ...

    async def draft(self) -> Draft:
        """Begin a log that is too long for `create`."""
        ...

    async def acquire(self, conversation_id: ConversationId, *, address: str, until: float | None = None) -> Lease:
        """Take the lease and raise the epoch, in one step.

        Raises:
            OwnedElsewhere: another process, or somebody else in this one, holds it.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give it back; nothing happens where it is not held any more."""
        ...

    def append(
        self, lease: Lease, entries: Sequence[Entry], summary: Summary, *, until: float | None = None
    ) -> Future[None]:
        """Write entries after the last one, all or none. What is handed over first is written first.

        The result is there when they are on disk. It may be there at once. Cancelling it changes nothing. Without
        `until` it waits `TURN_SECONDS` for the write lock.

        Fails with:
            LeaseLost: the lease is not held any more, or the log goes on behind the place where these begin.
            StoreFailed: the system refuses, or refused what was handed over before these.
        """
        ...

    def watch(self, lost: Callable[[HomeLost], None]) -> None:
        """Have `lost` called once, in the event loop, when files of the home were removed or replaced. From then on
        every call raises `HomeLost`."""
        ...

    async def check(self) -> None:
        """Find out whether the files of the home are in their place. Raises `HomeLost`."""
        ...

    async def writable(self, *, until: float) -> None:
        """Return once this process has had the write lock of the home. Raises `WriteLockHeld`."""
        ...

    async def read(self, conversation_id: ConversationId, *, after: Seq) -> list[Entry]:
        """Entries behind a position, in order, `PAGE` of them at most; none: that was the end.

        Raises:
            Unreadable: what follows is damaged or missing.
        """
        ...

    async def head(self, conversation_id: ConversationId) -> Head: ...

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        """Return the conversations whose log ends after the given position, and those that do not exist.

        One query answers for all of them. While nothing is written to the store, asking again costs next to
        nothing.
        """
        ...

    async def find(self, query: Query) -> ConversationPage: ...

    async def asks_any(self, questions: Collection[ApprovalId]) -> bool:
        """Whether one of these questions was asked in any conversation."""
        ...

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        """Take it out of lists, or put it back."""
        ...

    async def delete(self, lease: Lease) -> None:
        """Remove the log, and give back its lease with it. The room it took may be free later.

        Raises:
            LeaseLost: the lease is not held any more.
        """
        ...

    async def close(self) -> None:
        """Finish what was begun, give back every lease, and let go of everything."""
        ...

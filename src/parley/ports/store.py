"""The interface of a store: durable logs of conversations, shared by all processes that use the same home directory
or the same PostgreSQL database.

A store contains encoded entries, and a summary of each log for lists. It decodes entries only to find their keys
(`conversation/keys.py`) and to search their text. A process that writes to a conversation holds its *lease*. A
conversation has at most one lease at a time. Each lease has a higher *epoch* (fencing token) than the previous
lease, and the store checks the epoch with every append.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal, Protocol, get_args

from msgspec import Struct

from parley.conversation.log import Entry
from parley.conversation.state import State, TurnOutcome
from parley.errors import HomeLost
from parley.wire.ids import ApprovalId, ConversationId, Seq

__all__ = [
    "CALL_SECONDS",
    "CHECKPOINT_BYTES",
    "CHECKPOINT_ENTRIES",
    "PAGE",
    "PAGE_BYTES",
    "SEARCH_BYTES",
    "SEARCH_ENTRIES",
    "STATES",
    "TURN_SECONDS",
    "Checkpoint",
    "ConversationListing",
    "ConversationPage",
    "Draft",
    "Freed",
    "Head",
    "Lease",
    "MaintainedStore",
    "Owner",
    "PageCursor",
    "Query",
    "RoleName",
    "SearchHit",
    "SearchPage",
    "SearchQuery",
    "StateName",
    "Store",
    "StoredSession",
    "StoredSignIn",
    "StoredToken",
    "Summary",
    "UnreadEnd",
    "Viewer",
]

StateName = Literal["idle", "running", "asking"]
STATES: Final[tuple[str, ...]] = get_args(StateName)
RoleName = Literal["observer", "driver", "approver", "admin"]
UnreadEnd = Literal["failed", "finished"]
"""How an unread turn ended: `failed` if it failed (`TurnOutcome.has_failed`), otherwise `finished`. A turn is
unread by a principal if it ended after the position up to which the principal has read the conversation.
"""
CALL_SECONDS: Final = 5.0
"""The maximum time, in seconds, for which a client's call waits for another process that holds the write lock or is
running the turn of the conversation.
"""
TURN_SECONDS: Final = 60.0
"""The maximum number of seconds for which an append waits for the write lock. After this time, the running turn
fails.
"""
PAGE: Final = 2000
"""The maximum number of entries that one call reads or writes. The number is limited because no other process can
write while a page is being written.
"""
PAGE_BYTES: Final = 16 * 1024 * 1024
"""The default maximum size of a page, in bytes. The size is limited because a conversation may contain many large
images.
"""
SEARCH_ENTRIES: Final = 10_000
"""The maximum number of entries that one search examines."""
SEARCH_BYTES: Final = 1024 * 1024
"""The total size of messages, in bytes, at which one search ends. The search includes the message whose size makes
the total size exceed this limit.
"""
CHECKPOINT_BYTES: Final = 256 * 1024
"""The maximum size of a checkpoint, in bytes."""
CHECKPOINT_ENTRIES: Final = 1000
"""The minimum number of entries between two checkpoints of a log."""


class Owner(Struct, frozen=True, kw_only=True):
    """The process that holds the lease of a conversation."""

    node: str
    """The id of the computer or container on which the process is running; empty if unknown. The field is needed
    because process ids are unique only within a computer or container.
    """
    pid: int
    address: str
    """The socket name or URL at which other processes can connect to the owner (`Peers.address`); empty if the
    owner is not listening.
    """
    since: float
    """The time when the owner acquired the lease, in seconds since the epoch."""

    def node_unless(self, own: str) -> str:
        """Return `node` if it is known and differs from `own`, the id of the computer or container of this process.
        Otherwise, return an empty string.
        """
        return "" if self.node == own else self.node


class Summary(Struct, frozen=True, kw_only=True):
    """The fields of a conversation that are shown in a list of conversations.

    The summary is a projection of the log and is written together with the entries.
    """

    title: str
    cwd: str
    model: str
    state: StateName
    updated_at: float
    """The time of the last activity in the conversation, in seconds since the epoch."""
    is_active: bool = False
    """True if `updated_at` is the current time; False if it is an earlier time, as in an import. If the field is
    True, the store lists the conversation first, even if the clock was set back. This field is not stored.
    """
    outcome: TurnOutcome | None = None
    """The outcome of the last turn that has ended; None before the end of the first turn."""

    @classmethod
    def of(cls, state: State, *, is_active: bool = False) -> Summary:
        return cls(
            title=state.title,
            cwd=state.cwd,
            model=state.model,
            state=state.phase.value,
            updated_at=state.updated_at,
            is_active=is_active,
            outcome=state.outcome,
        )


class Lease(Struct, frozen=True, kw_only=True):
    """The right to append to one conversation."""

    conversation_id: ConversationId
    epoch: int
    """The fencing token, which is higher than the epoch of every earlier lease."""
    last: Seq
    """The last position in the log when the lease was granted. The holder must read the log up to this position
    before it appends.
    """


class Head(Struct, frozen=True, kw_only=True):
    """The current state of a conversation in the store."""

    last: Seq
    epoch: int
    owner: Owner | None
    """The process that holds the lease; None if no process holds the lease. The field may also be None while a
    process still holds the lease of an idle conversation, because the process is about to release it.
    """
    summary: Summary
    archived: bool


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The encoded projections of a log at a position. A process that loads the log restores the projections and
    applies only the later entries.
    """

    seq: Seq
    """The position of the last entry that the projections include."""
    data: bytes
    """The encoded projections, at most `CHECKPOINT_BYTES` long. The store does not interpret them."""


PageCursor = tuple[float, ConversationId]
"""A position in a list of conversations: the time of a conversation's last activity, and the conversation's id. The
id is needed because two conversations can have the same time.
"""


class Viewer(Struct, frozen=True, kw_only=True):
    """The principal that requests a list of conversations. A conversation is unread if its last turn ended after
    the position up to which this principal has read the log, and after the time `since`.
    """

    identity: str
    since: float = 0.0
    """A time in seconds since the epoch. Turns that ended at or before this time count as read."""


class Query(Struct, frozen=True, kw_only=True):
    """The conditions that a listed conversation must meet."""

    cwd: str | None = None
    """The working directory that the conversation must have; None means any directory. Redundant slashes and `.`
    are ignored.
    """
    text: str | None = None
    """A string that must occur in the title, or in a message from the user or the agent; None means any
    conversation. Case is ignored.
    """
    state: StateName | None = None
    archived: bool | None = False
    """True selects only archived conversations, False selects only conversations that are not archived, and None
    selects both.
    """
    asked: ApprovalId | None = None
    """The id of an approval that the conversation must have requested; None means any conversation."""
    conversation: ConversationId | None = None
    """The id of the only conversation that may be listed; None means any conversation."""
    viewer: Viewer | None = None
    """The principal for which conversations are listed as read or unread; None means that no conversation counts as
    unread.
    """
    unread: UnreadEnd | None = None
    """`failed` selects idle, unread conversations whose last turn failed (`TurnOutcome.has_failed`). `finished`
    selects all other idle, unread conversations. None selects read and unread conversations.
    """
    after: PageCursor | None = None
    """The position in the list after which the page begins; None for the first page."""
    limit: int = 50


class ConversationListing(Struct, frozen=True, kw_only=True):
    """A conversation in a page of a list."""

    conversation_id: ConversationId
    summary: Summary
    archived: bool
    owned: bool
    """True if a process holds the lease. If the conversation is not idle and this is False, the turn of the
    conversation is orphaned.
    """
    unread: bool = False
    """True if the conversation is unread, as defined in `Viewer`, by the principal that requests the list."""

    @property
    def cursor(self) -> PageCursor:
        return self.summary.updated_at, self.conversation_id


class ConversationPage(Struct, frozen=True, kw_only=True):
    """A page of a list of conversations.

    The conversation with the latest activity is first; for equal times, the conversation with the greatest id is
    first.
    """

    items: tuple[ConversationListing, ...]
    more: bool
    """True if the list has more conversations after this page."""


class SearchQuery(Struct, frozen=True, kw_only=True):
    """A search in the messages from the user and the agent."""

    text: str
    """The text to find; not empty. Case is ignored."""
    conversation: ConversationId | None = None
    """The id of the only conversation to search; None means all conversations that are not archived."""
    before: int | None = None
    """The value of `SearchPage.next` from the previous page of the same search; None for the first page."""
    limit: int = 20
    """The maximum number of hits on the page."""


class SearchHit(Struct, frozen=True, kw_only=True):
    """A message that contains the search text."""

    conversation_id: ConversationId
    title: str
    """The title of the conversation."""
    seq: Seq
    at: float
    """The time when the message was stored, in seconds since the epoch."""
    type: str
    """The event type of the message: `user_message` or `agent_message`."""
    snippet: str
    """The part of the message that contains the first occurrence of the search text, on one line."""
    start: int
    """The offset of the search text in `snippet`, in code points."""
    end: int
    """The offset, in code points, of the first character after the search text in `snippet`."""


class SearchPage(Struct, frozen=True, kw_only=True):
    """The hits on one page of a search."""

    hits: tuple[SearchHit, ...]
    """The hits, in reverse order of storage: the message that was stored last is first."""
    next: int | None
    """The value of `SearchQuery.before` for the next page; None if all messages were searched."""


class StoredToken(Struct, frozen=True, kw_only=True):
    """A bearer token for HTTP clients. The store contains only the digest of the token."""

    name: str
    """The name of the token, which no other stored token has."""
    digest: bytes
    """The SHA-256 digest of the token. The token has 256 random bits."""
    role: RoleName
    conversation_id: ConversationId | None = None
    """The only conversation to which the token gives access; None means all conversations."""
    created_at: float
    """The time when the token was created, in seconds since the epoch."""
    expires_at: float | None = None
    used_at: float | None = None
    """The time of the last use, in seconds since the epoch; None if the token was never used. Uses are stored with
    a delay, so the last use may be some minutes later than this time.
    """

    @property
    def token_id(self) -> str:
        """The id of the token.

        The id, which is not secret, distinguishes the token from a removed token with the same name.
        """
        return self.digest.hex()[:16]


class StoredSession(Struct, frozen=True, kw_only=True):
    """A session of an HTTP client. The store contains only the digest of the session id."""

    digest: bytes
    """The SHA-256 digest of the session id. The session id has 256 random bits."""
    principal: str
    """The string that identifies the principal to which the session belongs (`Principal.session_owner`)."""
    data: bytes
    """The state of the session. The store does not interpret it."""
    used_at: float
    """The time of the last use, in seconds since the epoch. Uses are stored with a delay, so the last use may be
    some minutes later than this time.
    """


class StoredSignIn(Struct, frozen=True, kw_only=True):
    """A browser that is signed in to the web page, or an unused one-time code with which a browser can sign in. The
    store contains only digests of the secrets.
    """

    digest: bytes
    """The SHA-256 digest of the browser's cookie or of the one-time code."""
    secret: bytes = b""
    """The SHA-256 digest of the secret that the page sends in a header, in addition to the cookie; empty for a
    one-time code.
    """
    token: bytes = b""
    """The SHA-256 digest of the bearer token with which the person signed in. Empty if the person signed in with a
    one-time code, and if this object is an unused one-time code.
    """
    created_at: float
    """The time when the person signed in or the one-time code was created, in seconds since the epoch."""
    used_at: float
    """The time of the last use, in seconds since the epoch. Uses are stored with a delay, so the last use may be
    some minutes later than this time.
    """
    push: bytes | None = None
    """The push subscription of the browser; None if the browser has no subscription. The store does not interpret
    the subscription.
    """

    @property
    def is_code(self) -> bool:
        return not self.secret


class Freed(Struct, frozen=True, kw_only=True):
    """The number and size of unused blobs that were removed or can be removed. A blob is a large part of an entry,
    such as an image, that is stored separately from the entry.
    """

    blobs: int
    bytes: int
    """The total size of these blobs as they are stored, in bytes."""


class Draft(Protocol):
    """A log that is being written in pages, and that is invisible until it is complete. The store removes the
    drafts of processes that have ended.
    """

    async def add(self, entries: Sequence[Entry]) -> None:
        """Write `entries`, at most `PAGE`, after the last entry of the draft. The first entry of a draft must have
        position 1.
        """
        ...

    async def finish(
        self,
        conversation_id: ConversationId,
        summary: Summary,
        *,
        archived: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Make the draft visible as a conversation without an owner. `checkpoint` is a checkpoint of the draft;
        None if there is no checkpoint. `archived` is True for an archived conversation.

        Turns in the draft count as read by every principal.

        Raises:
            StoreFailed: a conversation with this id exists.
        """
        ...

    async def drop(self) -> None:
        """Remove the draft. Do nothing if the draft was finished or already removed. The entries may be removed
        after this call has returned.
        """
        ...


class Store(Protocol):
    """The logs of all conversations in one home directory or one PostgreSQL database.

    A write is on disk when its call returns, and survives a crash of the process or of the computer. If the
    operating system refuses a write, for example because the disk is full, the call raises `StoreFailed` and
    changes nothing. A call for a conversation that does not exist raises `UnknownConversation`.

    While another process holds the write lock, a write waits for `CALL_SECONDS` or, if `until` is given, until that
    time on the event loop's clock. If the lock is still held at this time, the write raises `WriteLockHeld`. Reads
    never wait for this lock.
    """

    async def create(
        self, conversation_id: ConversationId, entries: Sequence[Entry], summary: Summary, *, archived: bool = False
    ) -> None:
        """Create a conversation without an owner. Its log contains `entries`, at most `PAGE`, beginning at position
        1. `archived` is True for an archived conversation.

        Every principal counts as having read these entries.

        Raises:
            StoreFailed: a conversation with this id exists.
        """
        ...

    async def draft(self) -> Draft:
        """Begin a draft and return it. A draft is a log that is too long for `create` and is therefore written in
        pages.
        """
        ...

    async def acquire(
        self,
        conversation_id: ConversationId,
        *,
        address: str,
        until: float | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> Lease:
        """Acquire the lease of a conversation, and return the lease. Its epoch is higher than the epoch of every
        earlier lease. `address` is stored as `Owner.address`.

        `on_lost` is called at most once, in the event loop, when the store detects that another process has
        acquired the lease or deleted the conversation. The store detects this in `check`, or soon after an append
        has failed with `LeaseLost`. `on_lost` is not called after the holder's own `release`, `delete` or `close`.
        After the loss, appends fail with `LeaseLost`, and there is nothing to release.

        Raises:
            OwnedElsewhere: another process, or another caller in this process, holds the lease. The caller may try
                again later.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Release the lease. Do nothing if the lease is no longer held."""
        ...

    def append(
        self, lease: Lease, entries: Sequence[Entry], summary: Summary, *, until: float | None = None
    ) -> Future[None]:
        """Append either all of `entries` or none, and replace the summary of the conversation. Appends are executed
        in the order of the calls.

        The returned future is done when the entries are on disk, which may be immediately. Cancelling the future
        does not stop the append. If `until` is None, the append waits for the write lock for `TURN_SECONDS`.

        Fails with:
            LeaseLost: the lease is no longer held, or the log already has an entry at the first position of
                `entries`.
            StoreFailed: the operating system or the database could not execute the write or an earlier append.
        """
        ...

    def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> Future[None]:
        """Replace the checkpoint of the log to which the lease belongs. The checkpoint is written after all appends
        that were submitted earlier. The returned future is done when the checkpoint is on disk.

        A checkpoint is an optimisation, so a caller may ignore a failure. The checkpoint is not saved if it is
        fewer than `CHECKPOINT_ENTRIES` entries after the checkpoint that is already saved.

        Fails with:
            ValueError: the data is larger than `CHECKPOINT_BYTES`.
            LeaseLost: the lease is no longer held, or the log ends before the checkpoint.
            StoreFailed: the operating system or the database could not execute the write.
        """
        ...

    async def checkpoint(self, conversation_id: ConversationId) -> Checkpoint | None:
        """Return the saved checkpoint of the log; None if there is no checkpoint or the checkpoint cannot be
        decoded.
        """
        ...

    def watch(self, lost: Callable[[HomeLost], None]) -> None:
        """Register the callback `lost`. It is called once with the error, in the event loop, when the store detects
        that files of the home directory were removed or replaced.

        After that, every call that needs these files raises `HomeLost`.
        """
        ...

    async def check(self) -> None:
        """Check that the files of the home directory are in place, and detect lost leases. For each lost lease,
        call the callback `on_lost` that was passed to `acquire`.

        Raises:
            HomeLost: files were removed or replaced.
        """
        ...

    async def writable(self, *, until: float) -> None:
        """Wait until this process can acquire the write lock, but at most until the time `until` on the event
        loop's clock. Another process may acquire the lock before the next write.

        Raises:
            WriteLockHeld: another process still holds the lock at the time `until`.
        """
        ...

    async def read(
        self,
        conversation_id: ConversationId,
        *,
        after: Seq,
        limit: int = PAGE,
        max_bytes: int = PAGE_BYTES,
        visible_only: bool = False,
    ) -> list[Entry]:
        """Return a page of the entries after the position `after`, in order; an empty list if the log has no later
        entries.

        A page has at most `limit` entries, and never more than `PAGE`. The page ends with the entry that makes the
        page larger than `max_bytes`. If `visible_only` is true, the page may omit entries that clients do not see,
        except for the last entry of the page, whose position shows where the next page begins.

        Raises:
            Unreadable: the next entry is damaged or missing.
        """
        ...

    async def read_before(
        self, conversation_id: ConversationId, *, before: Seq, limit: int = PAGE, max_bytes: int = PAGE_BYTES
    ) -> list[Entry]:
        """Return a page of the last entries before the position `before`, in order; an empty list if the log has no
        earlier entries.

        The limits are the same as for `read`, counted backwards from the last entry.

        Raises:
            Unreadable: the entry before the position is damaged or missing.
        """
        ...

    async def position_of(self, conversation_id: ConversationId, kind: str, key: str) -> Seq | None:
        """Return the position of the first entry that has the type `kind` and the key `key`
        (`conversation/keys.py`); None if there is no such entry.

        This is fast, because the store uses an index and does not read the log.
        """
        ...

    async def head(self, conversation_id: ConversationId) -> Head:
        """Return the current state of a conversation in the store."""
        ...

    async def changed_since(self, ends: Mapping[ConversationId, Seq]) -> list[ConversationId]:
        """Return the ids of the conversations in `ends` that have new entries or no longer exist. `ends` maps each
        conversation to the last position that the caller knows.

        One query handles all conversations. Repeated calls are cheap while no process writes to the store.
        """
        ...

    async def find(self, query: Query) -> ConversationPage:
        """Return a page of the conversations that match the query."""
        ...

    async def search(self, query: SearchQuery) -> SearchPage:
        """Return a page of the messages that contain the text of `query`. The message that was stored last is
        first.

        A call examines at most `SEARCH_ENTRIES` entries and about `SEARCH_BYTES` of messages. A page may therefore
        have few or no hits even if later pages have hits. Messages that were stored after the first page was read
        are not on later pages.
        """
        ...

    async def has_approvals(self, approval_ids: Collection[ApprovalId]) -> bool:
        """Return whether any conversation has requested an approval with one of these ids. The approval may already
        be settled.
        """
        ...

    async def archive(self, conversation_id: ConversationId, *, archived: bool) -> None:
        """Archive a conversation if `archived` is True; restore it from the archive if `archived` is False. Do
        nothing if the conversation already has this state.

        Lists omit archived conversations by default.
        """
        ...

    async def mark_read(self, conversation_id: ConversationId, reader: str, seq: Seq) -> bool:
        """Record that a principal has read the log up to the position `seq`. Return False, and change nothing, if
        this position or a later position is already recorded.

        `reader` is the identity of the principal (`Viewer.identity`).
        """
        ...

    async def delete(self, lease: Lease, *, leave_entries: bool = False) -> None:
        """Delete the conversation and release its lease. The disk space may be reclaimed later.

        If `leave_entries` is True, the entries stay in the store until the next call of `tidy`, or of `delete`
        without this flag. This is faster if many conversations are deleted one after another.

        Raises:
            LeaseLost: the lease is no longer held.
        """
        ...

    async def add_token(self, token: StoredToken) -> bool:
        """Store a token. Return False, and store nothing, if its name is in use."""
        ...

    async def tokens(self) -> list[StoredToken]:
        """Return all tokens, ordered by name."""
        ...

    async def remove_token(self, name: str) -> bool:
        """Remove a token, and the read marks and the sign-ins of its principal. Return False if no token has this
        name.
        """
        ...

    async def note_tokens_used(self, used: Mapping[bytes, float]) -> None:
        """Store the times when tokens were last used. `used` maps the digest of a token to a time in seconds since
        the epoch. Removed tokens are ignored.
        """
        ...

    async def save_session(self, session: StoredSession, *, replacing: bytes | None) -> bool:
        """Store `session` if the currently stored state of this session (`StoredSession.data`) is `replacing`. If
        `replacing` is None, store the session only if no session with its digest is stored.

        Return True if the session is stored, even if it was stored by an earlier call whose result was lost. Return
        False and change nothing if another process has stored another state or has removed the session.
        """
        ...

    async def session(self, digest: bytes) -> StoredSession | None:
        """Return the session with the digest `digest`; None if there is no such session."""
        ...

    async def session_revisions(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        """Return a mapping from the digest of each session in `digests` to the SHA-256 digest of its state
        (`StoredSession.data`). Sessions that are not stored are left out.
        """
        ...

    async def note_sessions_used(self, used: Mapping[bytes, float]) -> None:
        """Store the times when sessions were last used. `used` maps the digest of a session to a time in seconds
        since the epoch. Removed sessions are ignored. If the stored time is later, it is kept.
        """
        ...

    async def remove_sessions(self, digests: Collection[bytes]) -> None:
        """Remove the sessions with these digests. Digests without a session are ignored."""
        ...

    async def remove_unused_sessions(self, *, since: float) -> None:
        """Remove the sessions that were last used before the given time, in seconds since the epoch."""
        ...

    async def add_sign_in(self, sign_in: StoredSignIn) -> None:
        """Store a new sign-in or a new one-time code. If the store already contains the digest of `sign_in`,
        nothing is changed.
        """
        ...

    async def subscribe_sign_in(self, digest: bytes, push: bytes | None) -> bool:
        """Store `push` as the push subscription of the sign-in with the digest `digest`. If `push` is None, remove
        the subscription. Return False, and store nothing, if the sign-in was removed.
        """
        ...

    async def sign_in(self, digest: bytes) -> StoredSignIn | None:
        """Return the sign-in or the one-time code with the digest `digest`; None if neither exists."""
        ...

    async def sign_ins(self) -> list[StoredSignIn]:
        """Return all sign-ins and one-time codes, ordered by digest."""
        ...

    async def note_sign_ins_used(self, used: Mapping[bytes, float]) -> None:
        """Store the times when sign-ins were last used. `used` maps the digest of a sign-in to a time in seconds
        since the epoch. Removed sign-ins are ignored.
        """
        ...

    async def remove_sign_ins(self, digests: Collection[bytes]) -> int:
        """Remove the sign-ins and one-time codes with these digests, and return the number of sign-ins and codes
        that this call removed. If several callers remove the same digest at the same time, only one call counts it.
        """
        ...

    async def close(self) -> None:
        """Finish the writes in progress, release all leases and close all files."""
        ...


class MaintainedStore(Store, Protocol):
    """A store that can report and remove data that it no longer needs."""

    async def unused_blobs(self) -> Freed:
        """Return the number and size of the blobs that `tidy` would remove."""
        ...

    async def log_bytes(self, conversation_id: ConversationId) -> int:
        """Return the total size of the entries of a log, in bytes; 0 if the conversation does not exist.

        Raises:
            Unreadable: the log is damaged.
        """
        ...

    async def reclaimable_bytes(self) -> int:
        """Return an estimate of the size of the data that `tidy` would remove, in bytes. Blobs are not included."""
        ...

    async def tidy(self) -> Freed:
        """Remove the log entries of deleted conversations, and unused blobs.

        Return the number and size of the blobs that this store object has removed since the last call of `tidy`, in
        this call or when conversations were deleted. The work is done in steps, and other processes can write
        between two steps.
        """
        ...

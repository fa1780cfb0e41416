"""Follows a conversation that another process owns, over a connection to that process.

The owner sends entries and deltas in order, and this process adds them to its log. Commands are sent to the
owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import asdict

from parley.conversation.errors import EarlierEntriesNeeded
from parley.conversation.log import Entry, ItemKind
from parley.conversation.state import Phase
from parley.errors import ApprovalIsSettled, NotOwned, ParleyError, StoreFailed
from parley.runtime.approvals import OpenApprovals
from parley.runtime.durable_log import DurableLog
from parley.runtime.errors import RemoteRefusal
from parley.runtime.peer_registry import PeerConnection, PeerNews
from parley.runtime.recipients import Recipients
from parley.wire.ids import START, Seq
from parley.wire.jsonrpc import ErrorObject, Message, encode, error_of
from parley.wire.peers import (
    NOT_OWNER,
    NOT_WRITTEN,
    REFUSED,
    Follow,
    Followed,
    PeerDelta,
    PeerEntry,
    PeerOutput,
    PeerRead,
    PeerReleased,
    PeerSettlement,
    Unfollow,
)

__all__ = ["FOLLOW_SECONDS", "RemoteOwner", "refusal"]

log = logging.getLogger(__name__)

FOLLOW_SECONDS: Final = 2.0
"""The maximum time, in seconds, for which this process waits for the owner to accept its `Follow` request. After
that time, this process reads the conversation from the store, because the owner may have been stopped (SIGSTOP).
"""


class RemoteOwner:
    """The owner of one conversation, as seen by a process that follows the owner over a connection."""

    def __init__(
        self,
        durable_log: DurableLog,
        approvals: OpenApprovals,
        recipients: Recipients,
        connection: PeerConnection,
        *,
        process: str,
        applied: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        """Create the object. `follow` begins to follow the owner.

        `process` is the description of the owner in error messages. `applied` is called after entries from the
        owner have been added to the log. If following has begun and then ends without a call of `end`,
        `over` is called once.
        """
        self.process = process
        self._log, self._approvals, self._recipients, self._connection = (
            durable_log,
            approvals,
            recipients,
            connection,
        )
        self._applied, self._over = applied, over
        self._begun = self.is_over = False
        self._last = START
        """The last position in the owner's log when following began."""
        self._following: asyncio.Future[None] | None = None
        self._audience = PeerRead(
            conversation_id=durable_log.id, is_read=False, can_be_asked=False, may_end_at_limit=False
        )

    async def follow(self) -> None:
        """Begin to follow the owner. The owner sends all entries after the last durable entry in the log of this
        process. Following may have ended again when the call returns (`is_over`).

        Raises:
            NotOwned: the other process does not own the conversation, does not respond, or has ended.
        """
        self._connection.users.add(self)
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                while not self._begun:
                    await self._request_to_follow()
        except TimeoutError:
            self.end()
            raise NotOwned from None
        except BaseException:
            self.end()
            raise
        if not self.is_over:
            self._approvals.subscribe(self, self._report_readers)
            self._report_readers()

    async def _request_to_follow(self) -> None:
        self._following = asyncio.get_running_loop().create_future()
        after = self._log.log.durable
        request = Follow(conversation_id=self._log.id, after=after)
        self.send(Follow.METHOD, request, answered=partial(self._followed, after, self._following))
        await self._following

    def _followed(self, after: Seq, following: asyncio.Future[None], answer: Raw | ParleyError) -> None:
        """Complete the future `following` after `answer`, the owner's response to a `Follow` request. If the
        response is an error, set this error on the future.

        Otherwise, begin to follow the owner if the log still ends at the position `after`. If the log now contains
        further entries from an earlier connection, do not begin; the caller then sends another `Follow` request.
        """
        if following.done():
            return
        if isinstance(answer, ParleyError):
            following.set_exception(answer)
            return
        if self._log.attach_source(self, after=after):
            self._last = msgspec.json.decode(answer, type=Followed).last
            self._connection.followed[self._log.id] = self
            self._begun = True
        following.set_result(None)

    def end(self) -> None:
        """Stop following the owner. Do not call the callback `over`, which reports that following has ended."""
        if self.is_over:
            return
        self.is_over = True
        self._approvals.unsubscribe(self)
        self._connection.users.discard(self)
        if self._connection.followed.get(self._log.id) is self:
            del self._connection.followed[self._log.id]
            self._log.detach_source()
        self._connection.notify(Unfollow.METHOD, encode(Unfollow(conversation_id=self._log.id)))
        if self._following is not None and not self._following.done():
            self._following.set_exception(NotOwned())

    def lost(self) -> None:
        """Stop following the owner because the connection is broken. If following had begun, call the callback
        `over`, which reports that following has ended. Do nothing if following has already ended.
        """
        if not self.is_over:
            self.end()
            if self._begun:
                self._over()

    def send(self, method: str, params: Struct, *, answered: Callable[[Raw | ParleyError], None]) -> None:
        """Send a request to the owner. `answered` is called with the result, or with the error that the owner
        reports, before clients see any effect of the request.

        `answered` is not called if the connection breaks before the response arrives.

        Raises:
            NotOwned: following has ended.
        """
        if self.is_over:
            raise NotOwned

        def take(message: Message) -> None:
            if (error := error_of(message)) is not None:
                answered(refusal(error))
                if error.code == NOT_OWNER:
                    self.lost()  # the process refuses all later requests as well
                return
            answered(Raw(b"{}") if message.result is UNSET else message.result)

        self._connection.request(method, encode(params), answered=take)

    def _report_readers(self) -> None:
        """Report to the owner whether clients of this process are reading the conversation, and whether one of them
        can be asked to decide an approval. The owner needs this report to decide how long an approval waits.
        """
        recipients = self._recipients
        can_be_asked = recipients.can_be_asked(self._approvals.open)
        audience = PeerRead(
            conversation_id=self._log.id,
            is_read=recipients.is_read or can_be_asked,
            can_be_asked=can_be_asked,
            full=self._approvals.knows_limits,
            may_end_at_limit=recipients.may_end_at_limit,
        )
        if audience != self._audience and not self.is_over:
            self._audience = audience
            self._connection.notify(PeerRead.METHOD, encode(audience))

    def on_notification(self, news: PeerNews) -> None:
        if not self._log.has_source(self):
            return  # this process has become the owner in the meantime
        match news:
            case PeerDelta(item=item, type=kind, offset=offset, text=text):
                self._log.mirror(item, ItemKind(kind), offset, text)
            case PeerOutput(item=item, call_id=call_id, stream=stream, offset=offset, data=data):
                self._log.mirror_output(item, call_id, stream, offset, data)
            case PeerReleased():
                self.lost()  # another process continues or ends the turn
            case PeerEntry(seq=seq) if seq == self._log.log.durable + 1:
                entry = Entry.stored(seq, news.at, news.type, is_event=news.is_event, body=bytes(news.body))
                try:
                    self._log.apply_remote([entry])
                except EarlierEntriesNeeded:
                    self.lost()  # the next read of the store computes the projections from the whole log
                    return
                self._applied()
                if self._log.projections.state.phase is Phase.IDLE and seq > self._last:
                    self.lost()
            case PeerEntry(seq=seq):
                log.warning("%s: received entry %d after %d", self._log.id, seq, self._log.log.durable)
                self.lost()  # the missing entries are in the store


def refusal(error: ErrorObject) -> ParleyError:
    """Return the exception that callers in this process get for the error object in the owner's response."""
    if error.code == REFUSED and error.name == ApprovalIsSettled.code and error.data is not UNSET:
        with suppress(msgspec.DecodeError):  # an older version sends other data
            return ApprovalIsSettled(**asdict(msgspec.json.decode(error.data, type=PeerSettlement)))
    if error.code == REFUSED:
        return RemoteRefusal(error.message, error.name)
    if error.code == NOT_WRITTEN:
        return StoreFailed(error.message)
    # Any other error is a bug in the owner, or a request that an older version does not know.
    return NotOwned() if error.code == NOT_OWNER else RemoteRefusal(error.message, error.name)

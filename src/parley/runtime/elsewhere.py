"""A conversation whose turn runs in another process, seen through a connection to that one.

What happens there is told here entry by entry and delta by delta, and is shown to whoever reads here; messages,
answers and interrupts are passed on. Nobody else knows how processes speak to each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from parley.conversation.log import Entry, ItemKind
from parley.conversation.state import Phase
from parley.errors import NotOwned, OwnedElsewhere, ParleyError, StoreFailed
from parley.ports.peers import Link, Peers
from parley.runtime.book import Book
from parley.runtime.errors import RemoteRefusal
from parley.wire.ids import START, ConversationId, Seq
from parley.wire.jsonrpc import ErrorObject, Message, encode, error_of
from parley.wire.peers import (
    NOT_OWNER,
    NOT_WRITTEN,
    REFUSED,
    Changed,
    Follow,
    Followed,
    PeerDelta,
    PeerEntry,
    PeerOutput,
    PeerRead,
    Unfollow,
)

__all__ = ["FOLLOW_SECONDS", "Elsewhere", "Neighbours"]

log = logging.getLogger(__name__)

FOLLOW_SECONDS: Final = 2.0
"""How long another process may take to let us follow. One that runs needs a moment; of one that was stopped we read
what is on disk."""

_DECODERS: Final[dict[str, msgspec.json.Decoder[PeerEntry | PeerDelta | PeerOutput]]] = {
    cls.METHOD: msgspec.json.Decoder(cls) for cls in (PeerEntry, PeerDelta, PeerOutput)
}


class Elsewhere:
    """One conversation that another process runs, as long as it does."""

    def __init__(self, book: Book, pid: int, link: _Shared, *, over: Callable[[], None]) -> None:
        """`over` is called once, if it began: the turn is over, or nobody is there any more who could tell."""
        self.pid = pid
        self._book, self._link, self._over = book, link, over
        self._begun = self._ended = False
        self._last = START
        """Where the log stood there when we began."""
        self._waiting: set[asyncio.Future[Raw]] = set()
        self._audience = PeerRead(conversation_id=book.id, is_read=False, can_be_asked=False)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to hear."""
        return self._ended

    async def begin(self) -> None:
        """Follow from the last entry that is known here. It may be over when this returns.

        Raises:
            NotOwned: that process does not run it, does not answer, or is gone.
        """
        self._link.users.add(self)
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                while not self._begun:
                    after = self._book.log.durable
                    wish = Follow(conversation_id=self._book.id, after=after)
                    await self.ask(Follow.METHOD, wish, answered=partial(self._take_answer, after))
        except TimeoutError:
            self.end()
            raise NotOwned from None
        except BaseException:
            self.end()
            raise

    def _take_answer(self, after: Seq, answer: Raw) -> None:
        """What was told before this belongs to an earlier following. If more was read from disk since we asked, we
        ask again: what is told must go on exactly where the log ends."""
        if self._book.be_told(by=self, after=after):
            self._last = msgspec.json.decode(answer, type=Followed).last
            self._link.followed[self._book.id] = self
            self._begun = True

    def end(self) -> None:
        """Follow no longer."""
        if self._ended:
            return
        self._ended = True
        self._link.users.discard(self)
        if self._link.followed.get(self._book.id) is self:
            del self._link.followed[self._book.id]
            self._book.be_told_no_more()
        self._link.notify(Unfollow.METHOD, encode(Unfollow(conversation_id=self._book.id)))
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(NotOwned())

    def read_by(self, *, is_read: bool, can_be_asked: bool, full: bool) -> None:
        """Who is there on this side: whoever waits for an answer has to know."""
        audience = PeerRead(conversation_id=self._book.id, is_read=is_read, can_be_asked=can_be_asked, full=full)
        if audience != self._audience and not self._ended:
            self._audience = audience
            self._link.notify(PeerRead.METHOD, encode(audience))

    async def ask(
        self, method: str, params: Struct, *, answered: Callable[[Raw], None] = lambda result: None
    ) -> None:
        """Have something done there; `answered` is called before anything that follows from it is shown.

        Raises:
            NotOwned: that process does not run it, or is gone. It may have been done all the same.
            RemoteRefusal: it was refused, in words for the client.
            StoreFailed: it cannot be written down there.
        """
        if self._ended:
            raise NotOwned
        answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._waiting.add(answer)

        def take(message: Message) -> None:
            error = error_of(message)
            if answer.done():
                if error is not None and error.code == NOT_OWNER:
                    self.lost()  # we are told nothing any more, and whoever asked has gone
                return
            if error is not None:
                answer.set_exception(_refusal(error))
                return
            result = Raw(b"{}") if message.result is UNSET else message.result
            try:
                answered(result)
            except Exception as failure:
                answer.set_exception(failure)
            else:
                answer.set_result(result)

        try:
            self._link.request(method, encode(params), answered=take)
            await answer
        finally:
            self._waiting.discard(answer)

    # --- what happens there ------------------------------------------------------------

    def hear(self, told: PeerEntry | PeerDelta | PeerOutput) -> None:
        if not self._book.is_told_by(self):
            return  # we have taken it over meanwhile
        match told:
            case PeerDelta(item=item, type=kind, offset=offset, text=text):
                self._book.mirror(item, ItemKind(kind), offset, text)
            case PeerOutput(item=item, call_id=call_id, stream=stream, offset=offset, data=data):
                self._book.mirror_output(item, call_id, stream, offset, data)
            case PeerEntry(seq=seq) if seq == self._book.log.durable + 1:
                entry = Entry.kept(seq, told.at, told.type, is_event=told.is_event, body=bytes(told.body))
                self._book.take([entry])
                if self._book.folds.state.phase is Phase.IDLE and seq > self._last:
                    self.lost()
            case PeerEntry(seq=seq):
                log.warning("%s: entry %d was told behind %d", self._book.id, seq, self._book.log.durable)
                self.lost()  # the disk has what is missing

    def lost(self) -> None:
        """There is nothing more to hear."""
        if not self._ended:
            self.end()
            if self._begun:
                self._over()


def _refusal(error: ErrorObject) -> ParleyError:
    if error.code == REFUSED:
        return RemoteRefusal(error.message, error.name)
    return StoreFailed(error.message) if error.code == NOT_WRITTEN else NotOwned()


class _Shared:
    """One connection to another process, for all conversations that it runs."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.users: set[Elsewhere] = set()
        self.followed: dict[ConversationId, Elsewhere] = {}
        """Those of them that are told what happens."""

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        """Raises NotOwned: the connection is gone."""
        if self.link is None:
            raise NotOwned
        self.link.request(method, params, answered=answered)

    def notify(self, method: str, params: bytes) -> None:
        if self.link is not None:
            self.link.notify(method, params)

    def hear(self, method: str, params: Raw) -> None:
        if (decoder := _DECODERS.get(method)) is None:
            return
        told = decoder.decode(params)
        if (elsewhere := self.followed.get(told.conversation_id)) is not None:
            elsewhere.hear(told)

    def gone(self) -> None:
        self.link = None
        for elsewhere in tuple(self.users):
            elsewhere.lost()


class Neighbours:
    """The other processes of the home."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._links: dict[str, _Shared] = {}
        self._connecting = asyncio.Lock()
        self._deaf = False

    @property
    def address(self) -> str:
        """Where this process listens to the others."""
        return self._peers.address

    async def listen(self) -> None:
        """Be there for them. Where that cannot be, they read what happens here when it is written down."""
        if self._deaf:
            return
        try:
            await self._peers.listen()
        except StoreFailed as error:
            self._deaf = True
            log.warning("%s", error)

    def tell(self, conversation_id: ConversationId) -> None:
        """Something begins in a conversation, or it is gone."""
        self._peers.tell_all(Changed.METHOD, encode(Changed(conversation_id=conversation_id)))

    def has_others(self) -> bool:
        """Whether another process uses the home now."""
        return self._peers.has_others()

    async def follow(self, book: Book, owner: OwnedElsewhere, *, over: Callable[[], None]) -> Elsewhere:
        """Raises NotOwned: that process does not run it, does not answer, or is gone."""
        elsewhere = Elsewhere(book, owner.pid, await self._link(owner.address), over=over)
        await elsewhere.begin()
        return elsewhere

    async def _link(self, address: str) -> _Shared:
        async with self._connecting:
            shared = self._links.get(address)
            if shared is None or shared.link is None:
                shared = _Shared()
                gone = partial(self._gone, address, shared)
                link = await self._peers.connect(address, hear=shared.hear, gone=gone) if address else None
                if link is None:
                    raise NotOwned
                shared.link = link
                self._links[address] = shared
        return shared

    def _gone(self, address: str, shared: _Shared) -> None:
        if self._links.get(address) is shared:
            del self._links[address]
        shared.gone()

    async def close(self) -> None:
        await self._peers.close()

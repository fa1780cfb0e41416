"""The connections to the other processes that use the home directory, one for each process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import msgspec
from msgspec import Raw

from parley.errors import NotOwned, StoreFailed
from parley.ports.peers import Link, Peers
from parley.wire.ids import ConversationId
from parley.wire.jsonrpc import Message, encode
from parley.wire.peers import Changed, PeerDelta, PeerEntry, PeerOutput, PeerReleased, TakeOver

__all__ = ["Follower", "PeerConnection", "PeerNews", "PeerRegistry"]

log = logging.getLogger(__name__)

PeerNews = PeerEntry | PeerDelta | PeerOutput | PeerReleased
"""A notification that an owner sends to a process that follows it: an entry, a delta, command output, or the end of
the ownership.
"""

_DECODERS: Final[dict[str, msgspec.json.Decoder[PeerNews]]] = {
    cls.METHOD: msgspec.json.Decoder(cls) for cls in (PeerEntry, PeerDelta, PeerOutput, PeerReleased)
}


class Follower(Protocol):
    """Follows one conversation that another process owns."""

    def on_notification(self, news: PeerNews) -> None: ...

    def lost(self) -> None:
        """Stop following, because the connection to the owner is broken."""
        ...


class PeerConnection:
    """One connection to another process, shared by all conversations that the other process owns."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.users: set[Follower] = set()
        self.followed: dict[ConversationId, Follower] = {}
        """The conversations that this process follows over this connection."""

    @property
    def version(self) -> str:
        """The version of the protocol between nodes on this connection (`wire/nodes.py`); empty if the other
        process is not a node or the connection is broken.
        """
        return "" if self.link is None else self.link.version

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        """Send a request. `answered` is called with the response, but is not called if the connection breaks before
        the response arrives.

        Raises:
            NotOwned: the connection is already broken.
        """
        if self.link is None:
            raise NotOwned
        self.link.request(method, params, answered=answered)

    def notify(self, method: str, params: bytes) -> None:
        if self.link is not None:
            self.link.notify(method, params)

    def on_notification(self, method: str, params: Raw) -> None:
        if (decoder := _DECODERS.get(method)) is None:
            return
        news = decoder.decode(params)
        if (follower := self.followed.get(news.conversation_id)) is not None:
            follower.on_notification(news)

    def lost(self) -> None:
        self.link = None
        for follower in tuple(self.users):
            follower.lost()


class PeerRegistry:
    """The connections to the other processes that use the home directory."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._connections: dict[str, PeerConnection] = {}
        self._connecting = asyncio.Lock()
        self._cannot_listen = False

    @property
    def address(self) -> str:
        """The address at which this process listens for other processes."""
        return self._peers.address

    async def listen(self) -> None:
        """Listen for other processes. If this process cannot listen, the other processes read new entries from the
        store instead.
        """
        if self._cannot_listen:
            return
        try:
            await self._peers.listen()
        except StoreFailed as error:
            self._cannot_listen = True
            log.warning("%s", error)

    def announce(self, conversation_id: ConversationId) -> None:
        """Notify other processes that a turn is beginning in a conversation, or that the conversation was changed
        or deleted.
        """
        self._peers.notify_all(Changed.METHOD, encode(Changed(conversation_id=conversation_id)))

    def announce_take_over(self, conversation_id: ConversationId, *, by: str, at: float) -> None:
        """Notify other processes that a client has opened an exclusive stream of a conversation (`TakeOver`).

        `by` is the name of the client's principal. `at` is the time of the takeover, in seconds since the epoch.
        """
        taken_over = TakeOver(conversation_id=conversation_id, by=by, at=at)
        self._peers.notify_all(TakeOver.METHOD, encode(taken_over))

    def has_peers(self) -> bool:
        """Return whether any other process is using the home directory now."""
        return self._peers.has_others()

    def can_reach(self, address: str) -> bool:
        """Return whether this process can connect to the process that listens at an address. A process can connect
        to the processes that use the same home directory. A node can also connect to other nodes.
        """
        return self._peers.can_reach(address)

    async def connect(self, address: str) -> PeerConnection:
        """Return the connection to the process that listens at an address. Open the connection if there is none
        yet.

        Raises:
            NotOwned: no process listens at the address.
        """
        async with self._connecting:
            connection = self._connections.get(address)
            if connection is None or connection.link is None:
                connection = PeerConnection()
                on_lost = partial(self._lost, address, connection)
                link = (
                    await self._peers.connect(address, on_notification=connection.on_notification, on_lost=on_lost)
                    if address
                    else None
                )
                if link is None:
                    raise NotOwned
                connection.link = link
                self._connections[address] = connection
        return connection

    def _lost(self, address: str, connection: PeerConnection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]
        connection.lost()

    async def close(self) -> None:
        await self._peers.close()

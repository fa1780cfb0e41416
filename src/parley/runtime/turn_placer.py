"""Finds the node that runs the next turn of one conversation, and sends the command for the turn to this node."""

from __future__ import annotations

import asyncio

from msgspec import UNSET, Raw

from parley.errors import NotOwned, OwnerUnresponsive
from parley.ports.nodes import Node, Placement
from parley.runtime.commands import Command, LocalConversation
from parley.runtime.errors import NoNodeForDirectory
from parley.runtime.peer_registry import PeerNews
from parley.runtime.remote_owner import refusal
from parley.wire.jsonrpc import Message, encode, error_of
from parley.wire.nodes import FIRST_VERSION
from parley.wire.peers import Place

__all__ = ["TurnPlacer"]


class TurnPlacer:
    """Finds the node that runs the next turn of one conversation, and sends commands to this node."""

    def __init__(self, placement: Placement, local: LocalConversation) -> None:
        self._placement, self._local = placement, local
        self._waiting: asyncio.Timeout | None = None

    async def node_for(self, command: Command) -> Node | None:
        """Return the node that must execute a command that begins or resumes a turn; None if it is this node.

        Raises:
            NoNodeForDirectory: no node can run the turn.
            OwnerUnresponsive: a node that received the command did not respond, and no other node can run the turn.
            StoreFailed: the database cannot be reached.
        """
        directory = command.directory(self._local)
        if not directory.path and directory.repository is None:
            return None
        try:
            return await self._placement.node_for(directory, refused=command.refused_by)
        except NoNodeForDirectory:
            if command.unanswered is not None:
                raise command.unanswered from None  # that node may still execute the command
            raise

    async def send(self, node: Node, command: Command, *, takes_over: bool) -> Raw | None:
        """Send a command to a node for execution, and return the result that the node sends.

        If `takes_over` is True, the request contains no command, and the node only takes over the conversation.

        If the node refuses the command, is stopping or has ended, add the node to `refused_by` of the command and
        return None.

        Raises:
            OwnerUnresponsive: the node did not respond before the deadline of the command.
            ParleyError: the command fails on the node with this error, as it would for a client of that node.
        """
        request = None if takes_over else command.placed_request(self._local)
        place = (
            Place(conversation_id=self._local.log.id)
            if request is None
            else Place(conversation_id=self._local.log.id, method=request.METHOD, params=Raw(encode(request)))
        )
        silent = OwnerUnresponsive(f"the node {node.id}")
        answer = _Answer()
        sent = False
        try:
            async with asyncio.timeout_at(command.deadline.at) as self._waiting:
                connection = await self._local.peers.connect(node.url)
                if connection.version == FIRST_VERSION:
                    raise NotOwned  # the node runs an older version of Parley, and begins only its own turns
                connection.users.add(answer)
                try:
                    connection.request(Place.METHOD, encode(place), answered=answer.take)
                    sent = True
                    return await answer.result
                finally:
                    connection.users.discard(answer)
        except NotOwned:  # the node refuses the command, or the connection is broken
            if sent and answer.is_lost and request is not None:
                command.unanswered = silent
            command.refused_by.add(node.id)
            return None
        except TimeoutError:
            command.unanswered = silent if sent else command.unanswered
            raise silent from None
        finally:
            self._waiting = None

    def stop_waiting(self) -> None:
        """Stop waiting for the response of a node, because the server is shutting down."""
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())


class _Answer:
    """The response of a node to one request. If the connection breaks before the response arrives, the future
    `result` fails with `NotOwned`.
    """

    def __init__(self) -> None:
        self.result: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self.is_lost = False
        """True if the connection broke before the response arrived."""

    def take(self, message: Message) -> None:
        if self.result.done():
            return
        if (error := error_of(message)) is not None:
            self.result.set_exception(refusal(error))
        else:
            self.result.set_result(Raw(b"{}") if message.result is UNSET else message.result)

    def on_notification(self, news: PeerNews) -> None:
        pass  # there are no notifications, because the request follows no conversation

    def lost(self) -> None:
        if not self.result.done():
            self.is_lost = True
            self.result.set_exception(NotOwned())

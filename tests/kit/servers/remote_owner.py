"""A conversation whose turn another process owns, and a fake of that process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

import msgspec
from msgspec import Raw, Struct

from kit.servers.fake_link import FakeLink
from kit.servers.lives import Life
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.state import Phase
from parley.runtime.conversation import Conversation
from parley.wire.ids import ApprovalId, EventId, Seq
from parley.wire.jsonrpc import ErrorObject, Message, encode
from parley.wire.peers import Follow, Followed, InterruptTurn, RenameConversation, SettleApproval, Submit, Submitted

__all__ = ["FollowedTurn", "Owner"]


class Owner(FakeLink):
    """A fake owner of the turn, which implements `Peers` and the only link. Every process can follow it."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.is_silent = False
        """True if requests to follow are not answered either."""
        self.passed_on: list[str] = []
        """The requests that the owner received, in order."""
        self.interrupted: list[EventId | None] = []
        """The turns that the owner was asked to interrupt."""
        self.answer_requests: list[SettleApproval] = []
        """The answers to approvals that the owner was sent."""
        self.waiting: list[Callable[[Message], None]] = []
        """The callbacks of requests without an answer."""
        self._came = asyncio.Event()

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        if method == Follow.METHOD and not self.is_silent:
            after = msgspec.json.decode(params, type=Follow).after
            _answer(answered, Followed(last=after))
            return
        self.passed_on.append(_named(method, params))
        if method == InterruptTurn.METHOD:
            self.interrupted.append(msgspec.json.decode(params, type=InterruptTurn).event_id)
        elif method == SettleApproval.METHOD:
            self.answer_requests.append(msgspec.json.decode(params, type=SettleApproval))
        self.waiting.append(answered)
        self._came.set()

    async def asked(self, number: int) -> None:
        """Wait until the owner has received this many requests."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(self.passed_on) < number:
                self._came.clear()
                await self._came.wait()

    def answers(self, result: Struct | None = None) -> None:
        """Answer the oldest request."""
        _answer(self.waiting.pop(0), result or Submitted(event_id=None, first=Seq(1)))

    def refuses(self, code: int, message: str) -> None:
        self.waiting.pop(0)(Message(id=1, error=Raw(encode(ErrorObject(code, message)))))


class FollowedTurn:
    """A turn that waits for an approval in the first `Life` and is followed in the second.

    Use it as a context manager.
    """

    here: Conversation
    there: Conversation

    def __init__(self, home: str, store: SlowStore | None = None, does: str = "run slow") -> None:
        self.store = store or SlowStore()
        self.owner, self._does = Owner("of the second"), does
        self.first = Life(home, self.store, peers=Owner("of the first"))
        self.second = Life(home, self.store, peers=self.owner)

    async def __aenter__(self) -> Self:
        self.there = await self.first.create()
        await self.first.send(self.there, self._does)
        await self.first.until(self.there, Phase.ASKING)
        self.here = await self.second.find(self.there.id)
        assert self.here._ownership.remote is not None
        return self

    async def __aexit__(self, *error: object) -> None:
        for life in (self.second, self.first):
            await life.stop()

    @property
    def approval(self) -> ApprovalId:
        assert self.here.approvals.open is not None
        return self.here.approvals.open.approval_id

    def owner_is_killed(self) -> None:
        self.first.killed(self.there)
        self.owner.on_lost()


def _named(method: str, params: bytes) -> str:
    match method:
        case Submit.METHOD:
            (item,) = msgspec.json.decode(params, type=Submit).content
            return item.text  # type: ignore[union-attr]  # tests send texts
        case RenameConversation.METHOD:
            return "title"
        case InterruptTurn.METHOD:
            return "interrupt"
        case Follow.METHOD:
            return "follow"
        case _:
            return "answer"


def _answer(answered: Callable[[Message], None], result: Struct) -> None:
    answered(Message(id=1, result=Raw(encode(result))))

"""Following another process: its entries are applied once, in order, from the last known position."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from kit.builders.events import agent_message, task_complete, task_started, user_message
from kit.builders.records import renamed, settings_chosen, turn_ended, turn_started
from kit.servers.fake_link import FakeLink
from kit.servers.local_server import StandingClock
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.log import Entry, ItemKind
from parley.errors import NotOwned, OwnedElsewhere, ParleyError, StoreFailed
from parley.ports.store import PAGE, PAGE_BYTES
from parley.runtime.approvals import OpenApprovals
from parley.runtime.durable_log import DurableLog
from parley.runtime.errors import RemoteRefusal
from parley.runtime.peer_registry import PeerRegistry
from parley.runtime.recipients import Recipients
from parley.runtime.remote_owner import RemoteOwner
from parley.wire.ids import ConversationId, ItemId, Seq
from parley.wire.jsonrpc import ErrorObject, Message, encode
from parley.wire.peers import (
    NOT_OWNER,
    NOT_WRITTEN,
    REFUSED,
    Follow,
    Followed,
    PeerDelta,
    PeerEntry,
    RenameConversation,
    Unfollow,
)

CONVERSATION = ConversationId("67e55044-10b1-426f-9247-bb680e5fe0c8")
OWNER = OwnedElsewhere(pid=7, address="of 7")
TURN = (turn_started(), task_started(), user_message("go"))
END = (task_complete("Done"), turn_ended())


class Owner(FakeLink):
    """A fake of the other process. It implements `Peers` and the only link to the process."""

    address = "of us"

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.methods: list[str] = []
        self.is_there = True
        self._answered: Callable[[Message], None] = lambda message: None

    async def connect(
        self, address: str, *, on_notification: Callable[[str, Raw], None], on_lost: Callable[[], None]
    ) -> Any:
        assert address == OWNER.address
        self.on_notification, self.on_lost = on_notification, on_lost
        return self if self.is_there else None

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        self._answered = answered
        self.asked.put_nowait((method, msgspec.json.decode(params)))

    def notify(self, method: str, params: bytes) -> None:
        self.methods.append(method)

    async def next(self) -> tuple[str, Any]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.asked.get()

    def answers(self, result: Struct) -> None:
        self._answered(Message(id=1, result=Raw(encode(result))))

    def refuses(self, code: int, message: str) -> None:
        self._answered(Message(id=1, error=Raw(encode(ErrorObject(code, message)))))

    def tells(self, *entries: Entry) -> None:
        for one in entries:
            params = PeerEntry(
                conversation_id=CONVERSATION,
                seq=one.seq,
                at=one.at,
                type=one.type,
                is_event=one.is_event,
                body=Raw(one.body),
            )
            self.on_notification(params.METHOD, Raw(encode(params)))

    def says(self, offset: int, text: str) -> None:
        params = PeerDelta(
            conversation_id=CONVERSATION, item=ItemId("i1"), type=ItemKind.MESSAGE, offset=offset, text=text
        )
        self.on_notification(params.METHOD, Raw(encode(params)))


class GatedStore(SlowStore):
    """A store whose reads return when the gate is open, with the data at the time of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()

    async def read(
        self,
        conversation_id: ConversationId,
        *,
        after: Seq,
        limit: int = PAGE,
        max_bytes: int = PAGE_BYTES,
        visible_only: bool = False,
    ) -> list[Entry]:
        found = await super().read(
            conversation_id, after=after, limit=limit, max_bytes=max_bytes, visible_only=visible_only
        )
        self.asked.set()
        await self.gate.wait()
        return found


class Two:
    """The log of the process that runs a turn, and the log of the process that follows it."""

    def __init__(self) -> None:
        self.store = GatedStore()
        self.there = DurableLog(CONVERSATION, self.store, StandingClock())
        self.here = DurableLog(CONVERSATION, self.store, StandingClock())
        self.owner = Owner()
        self.ended = 0

    async def begin(self) -> Two:
        await self.there.create(settings_chosen())
        await self.there.acquire(address=OWNER.address)
        await self.there.append(*TURN)
        await self.here.load()
        return self

    def over(self) -> None:
        self.ended += 1

    def follow(self) -> asyncio.Task[RemoteOwner]:
        return asyncio.create_task(self._follow())

    async def _follow(self) -> RemoteOwner:
        recipients = Recipients()
        remote = RemoteOwner(
            self.here,
            OpenApprovals(self.here, recipients, clock=StandingClock()),
            recipients,
            await PeerRegistry(self.owner).connect(OWNER.address),
            process=OWNER.process,
            applied=lambda: None,
            over=self.over,
        )
        await remote.follow()
        return remote

    async def followed(self) -> RemoteOwner:
        following = self.follow()
        await self.owner.next()
        self.owner.answers(Followed(last=self.there.log.durable))
        return await following

    async def happens(self, *payloads: Any) -> list[Entry]:
        """Append entries to the owner's log without sending them yet."""
        before = self.there.log.last
        await self.there.append(*payloads)
        return self.there.log.entries[before:]


async def test_it_continues_from_what_is_known_until_the_turn_is_over() -> None:
    two = await Two().begin()
    following = two.follow()
    asked = await two.owner.next()
    two.owner.answers(Followed(last=Seq(4)))
    elsewhere = await following
    two.owner.says(0, "Hel")
    two.owner.says(3, "lo")
    open_text = two.here.log.open[ItemKind.MESSAGE].text()
    two.owner.tells(*await two.happens(agent_message("Hello")))
    before = (elsewhere.is_over, two.here.log.open)
    two.owner.tells(*await two.happens(*END))

    assert asked == (Follow.METHOD, {"conversation_id": CONVERSATION, "after": 4})
    assert (open_text, before) == ("Hello", (False, {}))
    assert two.here.log.entries == two.there.log.entries
    assert (elsewhere.is_over, two.ended, two.owner.methods) == (True, 1, [Unfollow.METHOD])


async def test_the_end_of_an_earlier_turn_does_not_end_following() -> None:
    two = await Two().begin()
    missed = await two.happens(*END, renamed("Foxes"), turn_started("2"), task_started())
    elsewhere = await two.followed()
    two.owner.tells(*missed)
    before = elsewhere.is_over
    two.owner.tells(*await two.happens(*END))

    assert (before, elsewhere.is_over) == (False, True)


async def test_it_may_be_over_in_the_moment_in_which_it_begins() -> None:
    two = await Two().begin()
    following = two.follow()
    await two.owner.next()
    two.owner.answers(Followed(last=Seq(4)))
    two.owner.tells(*await two.happens(*END))
    elsewhere = await following

    assert (elsewhere.is_over, two.ended) == (True, 1)
    assert two.here.log.entries == two.there.log.entries


async def test_entries_before_the_answer_belong_to_an_earlier_following_and_are_ignored() -> None:
    two = await Two().begin()
    following = two.follow()
    await two.owner.next()
    first, second = await two.happens(agent_message("One"), agent_message("Two"))
    two.owner.says(0, "One")
    two.owner.tells(second)
    two.owner.answers(Followed(last=Seq(6)))
    await following
    two.owner.tells(first, second)

    assert two.here.log.entries == two.there.log.entries
    assert two.here.log.open == {}


async def test_after_a_read_from_disk_only_the_rest_is_requested_from_the_owner() -> None:
    two = await Two().begin()
    following = two.follow()
    await two.owner.next()
    await two.happens(agent_message("One"))
    await two.here.load()
    two.owner.answers(Followed(last=Seq(5)))
    _, again = await two.owner.next()
    two.owner.answers(Followed(last=Seq(5)))
    await following
    two.owner.tells(*await two.happens(agent_message("Two")))

    assert again["after"] == 5
    assert two.here.log.entries == two.there.log.entries


@pytest.mark.parametrize("read", ["before the owner sends them", "after the owner sent them", "after the turn"])
async def test_followed_entries_are_not_read_from_the_store_as_well(read: str) -> None:
    two = await Two().begin()
    payloads = await two.happens(agent_message("One"), *(END if read == "after the turn" else ()))
    two.store.gate.clear()
    two.store.asked.clear()
    reading = asyncio.create_task(two.here.load())
    await two.store.asked.wait()
    following = two.follow()
    await two.owner.next()
    two.owner.answers(Followed(last=Seq(4)))
    elsewhere = await following
    if read == "before the owner sends them":
        two.store.gate.set()
        await reading
    two.owner.tells(*payloads)
    two.store.gate.set()
    await reading

    assert two.here.log.entries == two.there.log.entries
    assert elsewhere.is_over is (read == "after the turn")


async def test_an_entry_that_is_not_the_next_one_ends_it_and_the_disk_has_the_rest() -> None:
    two = await Two().begin()
    elsewhere = await two.followed()
    _, second = await two.happens(agent_message("One"), agent_message("Two"))
    two.owner.tells(second)
    assert (elsewhere.is_over, two.ended, two.here.log.durable) == (True, 1, 4)

    await two.here.load()
    assert two.here.log.entries == two.there.log.entries


async def test_a_new_owner_ignores_entries_of_the_old_one() -> None:
    two = await Two().begin()
    await two.followed()
    last = await two.happens(agent_message("Last words"))
    two.store.evict(CONVERSATION)
    await two.here.acquire(address="")
    two.owner.says(0, "No")
    two.owner.tells(*last)

    assert two.here.log.entries == two.there.log.entries
    assert two.here.log.open == {}


async def test_a_refusal_has_a_text_or_means_not_the_owner() -> None:
    two = await Two().begin()
    elsewhere = await two.followed()
    request = RenameConversation(conversation_id=CONVERSATION, title="Foxes")
    outcomes: list[Raw | ParleyError] = []
    answers: list[Callable[[], None]] = [
        lambda: two.owner.answers(Followed(last=Seq(1))),
        lambda: two.owner.refuses(REFUSED, "not now"),
        lambda: two.owner.refuses(NOT_WRITTEN, "no room"),
        lambda: two.owner.refuses(NOT_OWNER, "not mine"),
    ]
    for answer in answers:
        elsewhere.send(request.METHOD, request, answered=outcomes.append)
        await two.owner.next()
        answer()
    with pytest.raises(NotOwned):
        elsewhere.send(request.METHOD, request, answered=outcomes.append)

    assert [type(outcome) for outcome in outcomes] == [Raw, RemoteRefusal, StoreFailed, NotOwned]
    assert [str(outcome) for outcome in outcomes[1:3]] == ["not now", str(StoreFailed("no room"))]
    assert (elsewhere.is_over, two.ended) == (True, 1)


@pytest.mark.parametrize("how", ["there is no process", "the process is not the owner", "the process dies"])
async def test_a_refused_follow_has_no_effect(how: str) -> None:
    two = await Two().begin()
    two.owner.is_there = how != "there is no process"
    following = two.follow()
    if two.owner.is_there:
        await two.owner.next()
        if how == "the process dies":
            two.owner.on_lost()
        else:
            two.owner.refuses(NOT_OWNER, "not mine")
    with pytest.raises(NotOwned):
        await following
    await two.happens(agent_message("One"))
    await two.here.load()

    assert two.ended == 0
    assert two.here.log.entries == two.there.log.entries


async def test_nothing_is_kept_of_a_process_that_is_gone() -> None:
    two = await Two().begin()
    following = two.follow()
    await two.owner.next()
    two.owner.answers(Followed(last=Seq(4)))
    await following
    connection = weakref.ref(two.owner.on_notification.__self__)  # type: ignore[attr-defined]  # it is a method
    two.owner.on_lost()
    vars(two.owner).clear()  # the fake has kept references, too
    del following, two
    await asyncio.sleep(0)  # the event loop drops its references to completed callbacks
    gc.collect()

    assert connection() is None

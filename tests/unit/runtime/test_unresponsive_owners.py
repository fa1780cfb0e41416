"""An owner that does not answer: commands wait until their deadline, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from kit.servers.fake_link import FakeLink
from kit.servers.lives import Life
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.state import Phase
from parley.errors import OwnerUnresponsive, ShuttingDown
from parley.ports.store import CALL_SECONDS as MAX_SECONDS
from parley.wire.jsonrpc import Message
from parley.wire.peers import Follow
from parley.wire.principals import LOCAL


class Silent(FakeLink):
    """A fake of a stopped process: implements `Peers` and the only link."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.asked: asyncio.Queue[str] = asyncio.Queue()

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        self.asked.put_nowait(method)


async def test_a_command_has_one_deadline_over_all_attempts(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, silent = SlowStore(), Silent("of the second")
    first, second = Life(home, store, peers=Silent("of the first")), Life(home, store, peers=silent)
    async with first, second:
        there = await first.create()
        here = await second.find(there.id)
        await first.send(there, "run a")
        await first.until(there, Phase.ASKING)
        await here._log.load()

        following = here.reconcile()
        asked = [await silent.asked.get()]
        calls = [
            asyncio.create_task(call) for call in (here.rename("Foxes"), here.interrupt_unfinished(principal=LOCAL))
        ]
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + MAX_SECONDS)
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), TIMEOUT_SECONDS)
        await following
        while not silent.asked.empty():
            asked.append(silent.asked.get_nowait())

    assert [type(outcome) for outcome in outcomes] == [OwnerUnresponsive, OwnerUnresponsive]
    assert asked == [Follow.METHOD]


def stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of the event loop. A task that waits for a timeout then waits forever."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)


async def test_a_shutdown_does_not_wait_for_an_owner_that_cannot_be_followed(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, silent = SlowStore(), Silent("of the second")
    first, second = Life(home, store, peers=Silent("of the first")), Life(home, store, peers=silent)
    async with first, second:
        there = await first.create()
        here = await second.find(there.id)
        await first.send(there, "run a")
        await first.until(there, Phase.ASKING)

        calls = [
            asyncio.create_task(call) for call in (here.rename("Foxes"), here.interrupt_unfinished(principal=LOCAL))
        ]
        await silent.asked.get()
        with monkeypatch.context() as patch:
            stop_the_clock(patch)
            await second.conversations.stop()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [ShuttingDown, ShuttingDown]


async def test_a_server_that_ends_does_not_wait_to_delete_what_another_does_not_give_back(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowStore()
    first, second = Life(home, store), Life(home, store)
    async with first, second:
        there = await first.create()
        here = await second.find(there.id)
        await there._log.acquire(address="")

        deleting = asyncio.create_task(here.delete())
        await asyncio.sleep(0)
        with monkeypatch.context() as patch:
            stop_the_clock(patch)
            await second.conversations.stop()
            (outcome,) = await asyncio.gather(deleting, return_exceptions=True)
        await there._log.release()

    assert isinstance(outcome, ShuttingDown)


class Followed(Silent):
    """Records the conversations that this process asks to follow."""

    def request(self, method: str, params: bytes, *, answered: Callable[[Message], None]) -> None:
        self.asked.put_nowait(msgspec.json.decode(params, type=Follow).conversation_id)


async def test_listing_approvals_waits_once_for_a_stopped_owner(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.runtime.conversation.FOLLOW_SECONDS", MAX_SECONDS)
    store, silent = SlowStore(), Followed("of the second")
    first, second = Life(home, store, peers=Silent("of the first")), Life(home, store, peers=silent)
    async with first, second:
        asking: set[str] = set()
        for _ in range(3):
            conversation = await first.create()
            await first.send(conversation, "run a")
            await first.until(conversation, Phase.ASKING)
            asking.add(conversation.id)

        looking = asyncio.create_task(second.conversations.awaiting_approval())
        followed: set[str] = set()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while followed != asking:
                followed.add(await silent.asked.get())
        looking.cancel()
        await asyncio.wait({looking})

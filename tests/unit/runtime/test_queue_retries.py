"""A queued message whose turn cannot be stored: the attempts, their delays and their end."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence

import pytest

from kit.builders.entries import FIRST, summary
from kit.builders.events import task_started, user_message
from kit.builders.logs import log_of
from kit.builders.records import message_queued, settings_chosen, turn_ended, turn_started
from kit.servers.lives import Life
from kit.servers.orphaned_turns import settle, types
from kit.servers.slow_store import DISK_FULL, SlowStore
from parley.conversation.log import Entry
from parley.conversation.state import Phase
from parley.errors import StoreFailed
from parley.ports.store import Lease, Summary
from parley.runtime.mailbox import MAX_RETRY_SECONDS
from parley.wire.principals import LOCAL


class RefusingStore(SlowStore):
    """A store that refuses to store the start of a turn while `refuses` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = True
        self.attempts = 0
        """The number of attempts to begin a turn."""

    async def fill(self, home: str) -> None:
        """Create a conversation with one queued message."""
        first = (turn_started("1"), task_started(), user_message("say One", message_id="first"))
        settings = settings_chosen(cwd=home, sandbox="danger-full-access", approval_policy="untrusted")
        log = log_of(settings, *first, message_queued("a", "say Two"), turn_ended())
        await self.create(FIRST, log.entries, summary())

    def append(
        self, lease: Lease, entries: Sequence[Entry], summary: Summary, *, until: float | None = None
    ) -> Future[None]:
        is_start = entries[0].type == "turn_started"
        self.attempts += is_start
        if not (self.refuses and is_start):
            return super().append(lease, entries, summary, until=until)
        refused: Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(StoreFailed(DISK_FULL))
        return refused


async def run_ready_tasks() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def attempts_after(life: Life, store: RefusingStore, seconds: float) -> int:
    """Advance the clock, and return the number of attempts that this has caused."""
    before = store.attempts
    life.clock.passes(seconds)
    await run_ready_tasks()
    return store.attempts - before


@pytest.fixture
async def store(home: str) -> RefusingStore:
    store = RefusingStore()
    await store.fill(home)
    return store


async def test_the_delay_between_attempts_doubles_up_to_a_limit(home: str, store: RefusingStore) -> None:
    async with Life(home, store, continues_queues=True) as life:
        conversation = await life.find(FIRST)
        await run_ready_tasks()
        first = store.attempts
        attempts = [
            [await attempts_after(life, store, delay - 0.5), await attempts_after(life, store, 0.5)]
            for delay in (1, 2, 4, 8, 16, 30, 30)
        ]
        store.refuses = False
        await attempts_after(life, store, MAX_RETRY_SECONDS)
        await life.until(conversation, Phase.IDLE)

        assert (first, attempts) == (1, [[0, 1]] * 7)
        assert types(conversation, "user_message", "turn_ended") == ["user_message", "turn_ended"] * 2


async def test_a_successful_attempt_resets_the_delay(home: str, store: RefusingStore) -> None:
    async with Life(home, store, continues_queues=True) as life:
        conversation = await life.find(FIRST)
        for delay in (1, 2, 4):
            await attempts_after(life, store, delay)
        store.refuses = False
        await attempts_after(life, store, 8)
        await life.send(conversation, "run a")
        await life.until(conversation, Phase.ASKING)
        await conversation.submit(
            user_message("say Three").content, queued=True, principal=LOCAL, accepted=lambda accepted: None
        )
        store.refuses = True
        await settle(conversation, "approved")
        await run_ready_tasks()

        assert types(conversation, "turn_ended") == ["turn_ended"] * 3
        assert [await attempts_after(life, store, 0.5) for _ in range(2)] == [0, 1]


async def test_polling_does_not_begin_attempts(home: str, store: RefusingStore) -> None:
    async with Life(home, store, continues_queues=True) as life:
        conversation = await life.find(FIRST)
        for _ in range(10):
            await conversation.reconcile()

        assert await attempts_after(life, store, 0.5) == 0


async def test_a_command_begins_an_attempt_at_once(home: str, store: RefusingStore) -> None:
    async with Life(home, store, continues_queues=True) as life:
        conversation = await life.find(FIRST)
        store.refuses = False
        await conversation.rename("A title")
        await life.until(conversation, Phase.IDLE)
        await life.until_at_rest(conversation)

        assert store.attempts == 2
        assert await attempts_after(life, store, MAX_RETRY_SECONDS) == 0


async def test_a_conversation_is_not_evicted_before_the_next_attempt(home: str, store: RefusingStore) -> None:
    async with Life(home, store, continues_queues=True) as life:
        conversation = await life.find(FIRST)

        assert not conversation.is_evictable


async def test_no_task_remains_after_shutdown(home: str, store: RefusingStore) -> None:
    async with Life(home, store, continues_queues=True) as life:
        await life.find(FIRST)
        await attempts_after(life, store, 1)
    await run_ready_tasks()

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_no_attempt_follows_a_deletion(home: str, store: RefusingStore) -> None:
    async with Life(home, store, continues_queues=True) as life:
        await life.find(FIRST)
        await life.conversations.delete(FIRST)

        assert await attempts_after(life, store, MAX_RETRY_SECONDS) == 0
    await run_ready_tasks()

    assert asyncio.all_tasks() == {asyncio.current_task()}

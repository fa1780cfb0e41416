"""Messages that are sent and queued, edits, removals, interrupts, resumes and restarts, in any order, against a
model of the queue.
"""

from __future__ import annotations

import asyncio
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.servers.lives import Life
from kit.servers.slow_store import SlowStore
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.state import Phase
from parley.runtime.conversation import Conversation
from parley.runtime.errors import NotQueued
from parley.runtime.message_intake import Accepted
from parley.wire.events import QueueChanged, UserMessage, decode_event
from parley.wire.ids import MessageId
from parley.wire.items import TextItem, text_of
from parley.wire.principals import LOCAL

ROUNDS: Final = 400
"""A number of event loop iterations that is larger than the longest chain of callbacks.

A complete turn takes about thirty.
"""

contents = st.sampled_from("01")
SAYS: Final = {"0": "say Yes", "1": "run make"}
"""The texts of the messages.

The turn of message 0 ends at once, and the turn of message 1 waits for an approval.
"""
places = st.integers(0, 3)
steps = st.one_of(
    st.tuples(st.just("send")),
    st.tuples(st.just("queue"), contents),
    st.tuples(st.just("queue"), contents),
    st.tuples(st.just("edit"), places, contents),
    st.tuples(st.just("remove"), places),
    st.tuples(st.just("repeat"), places),
    st.tuples(st.just("approve")),
    st.tuples(st.just("approve")),
    st.tuples(st.just("interrupt")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("restart"), st.booleans()),
)


class Expected:
    """The expected state of the conversation, computed only from the rules of the queue."""

    def __init__(self) -> None:
        self.is_asking = self.is_paused = False
        self.waiting: dict[str, str] = {}
        self.begun: list[tuple[str, str]] = []
        """The messages that the agent got, in order."""

    def send(self, message_id: str) -> str:
        """Send a message that may join the running turn, and return its content.

        A message that joins a turn requests no command.
        """
        content = "0" if self.is_asking else "1"
        self.begun.append((message_id, content))
        self.is_asking, self.is_paused = True, False
        return content

    def queue(self, message_id: str, content: str) -> None:
        if self.is_asking or self.waiting:
            self.waiting[message_id] = content
            self.is_paused = False
        else:
            self._begin(message_id, content)
        self.go_on()

    def _begin(self, message_id: str, content: str) -> None:
        self.begun.append((message_id, content))
        self.is_asking, self.is_paused = content == "1", False

    def go_on(self) -> None:
        while self.waiting and not self.is_asking and not self.is_paused:
            message_id = next(iter(self.waiting))
            self._begin(message_id, self.waiting.pop(message_id))

    def resume(self) -> None:
        if not self.is_asking and self.waiting:
            self.is_paused = False
        self.go_on()

    def interrupt(self) -> None:
        if self.is_asking:
            self.is_asking, self.is_paused = False, True


class Play:
    """One conversation on successive servers with one store, and its expected state."""

    def __init__(self, home: str) -> None:
        self._home, self._store = home, SlowStore()
        self.expected = Expected()
        self._life: Life
        self._conversation: Conversation
        self._sent: list[tuple[str, str]] = []
        """All messages that were queued, with their original contents."""
        self._number = 0

    async def start(self) -> None:
        self._life = Life(self._home, self._store)
        self._conversation = await self._life.create()

    async def restart(self, *, kill: bool) -> None:
        if kill:
            self._life.killed(self._conversation)
        await self._life.stop()
        self._life = Life(self._home, self._store)
        self._conversation = await self._life.find(self._conversation.id)

    async def stop(self) -> None:
        await self._life.stop()

    async def settle_down(self) -> None:
        for _ in range(ROUNDS):
            await asyncio.sleep(0)

    async def deliver(self, message_id: str, content: str, *, queued: bool) -> bool:
        taken: list[Accepted] = []
        await self._conversation.submit(
            (TextItem(text=SAYS[content]),),
            principal=LOCAL,
            message_id=MessageId(message_id),
            queued=queued,
            accepted=taken.append,
        )
        assert [one.message_id for one in taken] == [message_id]
        return taken[0].is_queued

    def new_id(self) -> str:
        self._number += 1
        return f"m{self._number}"

    async def do(self, step: tuple[Any, ...]) -> None:
        expected, conversation = self.expected, self._conversation
        match step:
            case ("send",):
                message_id = self.new_id()
                await self.deliver(message_id, expected.send(message_id), queued=False)
            case ("queue", content):
                message_id = self.new_id()
                self._sent.append((message_id, content))
                waits = expected.is_asking or bool(expected.waiting)
                assert await self.deliver(message_id, content, queued=True) is waits
                expected.queue(message_id, content)
            case ("repeat", place) if self._sent:
                message_id, content = self._sent[place % len(self._sent)]
                assert await self.deliver(message_id, content, queued=True) is (message_id in expected.waiting)
            case ("edit", place, content):
                await self._change(place, content)
            case ("remove", place):
                await self._change(place, None)
            case ("approve",) if expected.is_asking:
                assert conversation.approvals.open is not None
                approval = conversation.approvals.open.request.approval_id
                await conversation.approvals.answer(approval, "approved", by="client", principal=LOCAL)
                expected.is_asking = False
                expected.go_on()
            case ("interrupt",):
                await conversation.interrupt_unfinished(principal=LOCAL)
                expected.interrupt()
            case ("resume",):
                await conversation.resume_queue(principal=LOCAL)
                expected.resume()
            case ("restart", kill):
                await self.restart(kill=kill)
            case _:
                pass
        await self.settle_down()

    async def _change(self, place: int, content: str | None) -> None:
        waiting, conversation = self.expected.waiting, self._conversation
        if place >= len(waiting):
            with pytest.raises(NotQueued):
                await conversation.remove_queued(
                    MessageId(next(iter(dict(self.expected.begun)), "unknown")), principal=LOCAL
                )
            return
        message_id = list(waiting)[place]
        if content is None:
            del waiting[message_id]
            await conversation.remove_queued(MessageId(message_id), principal=LOCAL)
        else:
            waiting[message_id] = content
            await conversation.edit_queued(MessageId(message_id), (TextItem(text=SAYS[content]),), principal=LOCAL)

    async def check(self) -> None:
        expected, conversation = self.expected, self._conversation
        listed = {one.message_id: text_of(one.content) for one in await conversation.queued()}
        events = [decode_event(entry.encoded) for entry in conversation.log.entries if entry.is_event]
        begun = [(one.message_id, text_of(one.content)) for one in events if isinstance(one, UserMessage)]
        shown = [one for one in events if isinstance(one, QueueChanged)]
        is_paused = expected.is_paused and bool(expected.waiting)

        assert list(listed.items()) == [(name, SAYS[one]) for name, one in expected.waiting.items()]
        assert begun == [(name, SAYS[one]) for name, one in expected.begun]
        assert conversation.is_queue_paused is is_paused
        assert conversation.phase is (Phase.ASKING if expected.is_asking else Phase.IDLE)
        if shown:
            assert (shown[-1].messages, shown[-1].paused) == (tuple(listed), is_paused)


async def play(script: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as home:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            played = Play(home)
            await played.start()
            try:
                for step in script:
                    await played.do(step)
                    await played.check()
            finally:
                await played.stop()


@pytest.mark.promises("queue.order", "queue.durable", "queue.pause", "queue.once")
@given(script=st.lists(steps, min_size=4, max_size=20))
@example(script=[("send",), ("queue", "0"), ("interrupt",), ("send",)])
def test_the_queue_is_what_the_model_says(script: list[tuple[Any, ...]]) -> None:
    asyncio.run(play(script))

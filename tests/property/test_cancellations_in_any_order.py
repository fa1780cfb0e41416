"""Calls, cancellations, interrupts and answers in any order: which requests get a response.

Several may arrive in one read.
"""

from __future__ import annotations

import asyncio
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.servers.local_server import LocalClient, LocalServer
from kit.system.commands import TIMEOUT_SECONDS
from parley.runtime.conversation import Conversation
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

INTERRUPTED: Final = " Turn interrupted"

Step = tuple[Any, ...]
Script = list[tuple[Step, bool]]

places = st.integers(0, 20)
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("codex-reply"), st.integers(0, 2)),
    st.tuples(st.just("send"), st.integers(0, 2)),
    st.tuples(st.just("stream")),
    st.tuples(st.just("read")),
    st.tuples(st.just("status")),
    st.tuples(st.just("cancel"), places),
    st.tuples(st.just("cancel"), places),
    st.tuples(st.just("cancel"), places),
    st.tuples(st.just("interrupt")),
    st.tuples(st.just("answer")),
    st.tuples(st.just("answer")),
    st.tuples(st.just("stall")),
    st.tuples(st.just("resume")),
)
scripts: st.SearchStrategy[Script] = st.lists(st.tuples(steps, st.booleans()), min_size=4, max_size=25)
"""Operations, each with a flag.

If the flag is True, the event loop runs until all callbacks are done. Operations without a run in between arrive in
one read.
"""

MAY_BE_ENDED: Final = frozenset({"codex-reply", "send", "stream", "read"})
"""The requests that a cancellation can end before their answer."""


class Caller:
    """One client of one conversation, and the results of its requests."""

    def __init__(self, client: LocalClient, conversation: Conversation) -> None:
        self.client, self.conversation = client, conversation
        self.kinds: dict[int, str] = {}
        self.cancelled_in_time: set[int] = set()
        """Requests that were cancelled before their answer."""
        self.interrupts = 0
        self._answered: set[int] = set()

    def answers_to(self, request_id: int) -> list[Any]:
        return [one for one in self.client.messages if "method" not in one and one["id"] == request_id]

    def received(self, request_id: int) -> list[Any]:
        """Return the events that a call was sent."""
        return [
            one["params"]["msg"]
            for one in self.client.messages
            if one.get("method") == "codex/event" and one["params"]["_meta"]["requestId"] == request_id
        ]

    def call(self, kind: str, tool: str, **arguments: Any) -> None:
        its = {"sessionId" if tool == "codex-reply" else "conversation_id": self.conversation.id}
        self.kinds[self.client.call(tool, **its, **arguments)] = kind

    def do(self, step: Step) -> None:
        match step:
            case ("codex-reply", number):
                self.call("codex-reply", "codex-reply", prompt=str(number))
            case ("send", number):
                content = [{"type": "text", "text": str(number)}]
                self.call("send", "conversationSendMessage", content=content)
            case ("stream",):
                self.call("stream", "conversationStream")
            case ("read",):
                after = self.conversation.log.durable
                self.call("read", "conversationRead", after=after, wait_seconds=50)
            case ("status",):
                self.call("status", "conversationStatus")
            case ("cancel", place):
                if self.kinds:
                    request_id = list(self.kinds)[place % len(self.kinds)]
                    if not self.answers_to(request_id):
                        self.cancelled_in_time.add(request_id)
                    self.client.cancel(request_id)
            case ("interrupt",):
                self.interrupts += 1
                self.call("interrupt", "conversationInterrupt")
            case ("answer",):
                for asked in self.client.asked:
                    if asked["id"] not in self._answered:
                        self._answered.add(asked["id"])
                        self.client.answer(asked["id"], {"decision": "approved"})
            case ("stall",):
                self.client.outbox.writable = False
            case ("resume",):
                self.client.outbox.read_on()
            case _:
                raise AssertionError(step)

    def endings(self) -> list[str]:
        """Return the reasons for the ends of the turns."""
        return [
            msgspec.json.decode(entry.encoded)["why"]
            for entry in self.conversation.log.entries
            if entry.type == "turn_ended"
        ]


async def play(script: Script, version: str) -> None:
    with TemporaryDirectory() as home:
        async with asyncio.timeout(TIMEOUT_SECONDS), LocalServer(home) as server:
            caller = Caller(await server.client(version=version), await server.create())
            for step, settles in script:
                caller.do(step)
                if settles:
                    await server.settle_down()
            caller.do(("resume",))
            await server.settle_down()
            caller.do(("interrupt",))
            await server.settle_down()
            caller.do(("send", 0))  # creates events for the reads that are waiting
            await server.settle_down()
            check(caller, full=version == FULL_VERSION)


def check(caller: Caller, *, full: bool) -> None:
    ended_by_cancellation = 0
    for request_id, kind in caller.kinds.items():
        answers = len(caller.answers_to(request_id))
        if full and request_id in caller.cancelled_in_time and kind in MAY_BE_ENDED:
            assert answers <= 1
        else:
            assert answers == 1, (request_id, kind)
        if answers == 0 and kind == "codex-reply":
            interrupted = {"type": "error", "message": INTERRUPTED, "reason": "interrupted", "principal": "local"}
            assert caller.received(request_id)[-1] == interrupted
        ended_by_cancellation += request_id in caller.cancelled_in_time and kind in ("codex-reply", "send")
    if full:  # for an older client the cancellation of an answered send is an interrupt
        assert caller.endings().count("interrupted") <= caller.interrupts + ended_by_cancellation


AFTER_ITS_ANSWER: Final[Script] = [(("send", 1), True), (("cancel", 0), True), (("answer",), True)]
AT_ONCE: Final[Script] = [
    (step, False)
    for number, kind in enumerate((("codex-reply", 1), ("send", 0), ("stream",), ("read",)))
    for step in (kind, ("cancel", number))
]


@pytest.mark.promises("cancel.unanswered", "framing.one-answer")
@given(script=scripts, version=st.sampled_from([FULL_VERSION, PLAIN_VERSION]))
@example(script=AFTER_ITS_ANSWER, version=FULL_VERSION)
@example(script=AT_ONCE, version=FULL_VERSION)
@example(script=AT_ONCE, version=PLAIN_VERSION)
def test_every_request_is_answered_once_unless_its_cancellation_ended_it(script: Script, version: str) -> None:
    asyncio.run(play(script, version))

"""Approvals, answers, interrupts, and clients that connect and disconnect, in any order.

Several may arrive in one read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.servers.local_server import LocalClient, LocalServer
from kit.system.commands import TIMEOUT_SECONDS
from parley.conversation.log import LogView
from parley.runtime.conversation import Conversation

STALE = "approved_for_session"
"""The decision of answers that are sent when no approval is open. It must never settle an approval."""

clients = st.integers(0, 2)
decisions = st.sampled_from(["approved", "denied", "abort"])
steps = st.one_of(
    st.tuples(st.just("say"), clients, st.integers(0, 2)),
    st.tuples(st.just("stream"), clients),
    st.tuples(st.just("pause"), clients),
    st.tuples(st.just("leave"), clients),
    st.tuples(st.just("answer"), clients, decisions),
    st.tuples(st.just("answer"), clients, decisions),
    st.tuples(st.just("stale"), clients),
    st.tuples(st.just("tool"), clients, decisions),
    st.tuples(st.just("interrupt"), clients),
    st.tuples(st.just("time"), st.sampled_from([30, 300])),
)
scripts = st.lists(st.tuples(steps, st.booleans()), min_size=6, max_size=30)
"""Operations, each with a flag.

If the flag is True, the event loop runs after the operation. Operations without a run in between arrive in one
read.
"""


class Party:
    """Three clients of one conversation, the last of which cannot be asked.

    A client that disconnects is replaced.
    """

    def __init__(self, server: LocalServer, conversation: Conversation) -> None:
        self.server, self._conversation = server, conversation
        self.here: list[LocalClient] = []
        self.gone: list[LocalClient] = []
        self.first: dict[str, tuple[str, LocalClient | None]] = {}
        """The first decision for each approval, and the client that made it if this client had been asked."""
        self._streams: dict[LocalClient, int] = {}
        self.answered: dict[LocalClient, set[int]] = {}

    @property
    def conversation(self) -> Conversation:
        """The conversation, which may have been evicted and loaded again."""
        self._conversation = self.server.conversations.loaded(self._conversation.id) or self._conversation
        return self._conversation

    async def arrive(self, place: int) -> None:
        client = await self.server.client(capabilities={} if place == 2 else None)
        self.here.insert(place, client)
        self.answered[client] = set()

    def open_for(self, client: LocalClient) -> list[Any]:
        """Return the approvals that a client was asked for, except answered and withdrawn ones."""
        closed = self.answered[client] | {one["requestId"] for one in client.taken_back}
        return [one for one in client.asked if one["id"] not in closed]

    async def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("say", place, number):
                content = [{"type": "text", "text": str(number)}]
                wanted = {"conversation_id": self.conversation.id, "content": content}
                self.here[place].call("conversationSendMessage", **wanted)
            case ("stream", place):
                client = self.here[place]
                self._streams[client] = client.call("conversationStream", conversation_id=self.conversation.id)
            case ("pause", place):
                if (stream := self._streams.get(self.here[place])) is not None:
                    self.here[place].cancel(stream)
            case ("leave", place):
                await asyncio.sleep(0)  # lets the server handle the frames that it has read
                client = self.here.pop(place)
                client.leave()
                self.gone.append(client)
                await self.arrive(place)
            case ("answer", place, decision):
                for asked in self.open_for(self.here[place])[:1]:
                    self.answer(self.here[place], asked, decision)
            case ("stale", place):
                client = self.here[place]
                still_open = {one["id"] for one in self.open_for(client)}
                for request_id in (*(one["id"] for one in client.asked), 1000, "0"):
                    if request_id not in still_open:
                        client.answer(request_id, {"decision": STALE})
                for one in self.gone:
                    for asked in one.asked:
                        one.answer(asked["id"], {"decision": STALE})
            case ("tool", place, decision):
                if (approval := self.conversation.approvals.open) is not None:
                    self.first.setdefault(approval.approval_id, (decision, None))
                    wanted = {"approval_id": approval.approval_id, "decision": decision}
                    self.here[place].call("approvalAnswer", **wanted)
            case ("interrupt", place):
                if (approval := self.conversation.approvals.open) is not None:
                    self.first.setdefault(approval.approval_id, ("dropped", None))
                self.here[place].call("conversationInterrupt", conversation_id=self.conversation.id)
            case ("time", seconds):
                self.server.clock.passes(seconds)
            case _:
                raise AssertionError(step)

    def answer(self, client: LocalClient, asked: Any, decision: str) -> None:
        self.answered[client].add(asked["id"])
        self.first.setdefault(asked["params"]["parley_approval_id"], (decision, client))
        client.answer(asked["id"], {"decision": decision})

    async def approve_remaining(self) -> None:
        """Approve everything that is still open, with a new client."""
        last = await self.server.client()
        self.answered[last] = set()
        self.here.append(last)
        await last.stream(self.conversation.id)
        await self.server.settle_down()
        while self.conversation.state.phase.value != "idle":
            for asked in self.open_for(last):
                self.answer(last, asked, "approved")
            await self.server.settle_down()


def check_log(log: LogView, first: dict[str, tuple[str, LocalClient | None]]) -> Counter[str]:
    """Check that every approval follows its event and is settled once, by the first answer; return the
    decisions."""
    types = [entry.type for entry in log.entries]
    decisions: Counter[str] = Counter()
    still_open: str | None = None
    for place, entry in enumerate(log.entries):
        record = msgspec.json.decode(entry.encoded) if entry.encoded else {}
        if entry.type == "question_asked":
            assert types[place - 1] == "exec_approval_request"
            assert still_open is None
            still_open = record["approval_id"]
        elif entry.type == "question_settled":
            assert types[place + 1] == "approval_settled"
            assert record["approval_id"] == still_open
            if record["by"] in ("client", "tool"):
                decision, client = first[record["approval_id"]]
                assert record["decision"] == decision
                assert client is None or record["approval_id"] not in withdrawn_from(client)
            decisions[record["decision"]] += 1
            still_open = None
        elif entry.type == "turn_ended":
            assert still_open is None
    assert still_open is None
    assert types.count("turn_started") == types.count("turn_ended")
    assert types.count("question_asked") == types.count("approval_settled") == decisions.total()
    return decisions


def withdrawn_from(client: LocalClient) -> set[str]:
    """Return the approvals that were withdrawn from the client."""
    ids = {one["requestId"] for one in client.taken_back}
    return {one["params"]["parley_approval_id"] for one in client.asked if one["id"] in ids}


def check_guest(client: LocalClient, answered: set[int], *, here: bool) -> None:
    """Check that a client was asked for each approval at most once, and that unanswered ones were withdrawn."""
    ids = [one["id"] for one in client.asked]
    approvals = [one["params"]["parley_approval_id"] for one in client.asked]
    taken_back = [one["requestId"] for one in client.taken_back]
    assert ids == sorted(set(ids))
    assert len(approvals) == len(set(approvals))
    assert len(taken_back) == len(set(taken_back))
    if here:
        assert answered | set(taken_back) == set(ids)


async def play(script: list[tuple[tuple[Any, ...], bool]]) -> None:
    with TemporaryDirectory() as home:
        async with asyncio.timeout(TIMEOUT_SECONDS), LocalServer(home) as server:
            party = Party(server, await server.create({"approvals": {"timeout_seconds": 300}}))
            for place in range(3):
                await party.arrive(place)
            await party.do(("say", 0, 2))
            for step, run_tasks in script:
                await party.do(step)
                if run_tasks:
                    await server.settle_down()
            await party.approve_remaining()

            decisions = check_log(party.conversation.log, party.first)
            assert STALE not in decisions
            for client in (*party.here, *party.gone):
                check_guest(client, party.answered[client], here=client in party.here)
            ids = [asked["id"] for client in (*party.here, *party.gone) for asked in client.asked]
            assert sorted(ids) == list(range(len(ids)))
            assert len(server.decisions) <= decisions["approved"] + decisions["denied"] + decisions["timed_out"]


LEAVES_EARLY: Final[list[tuple[tuple[Any, ...], bool]]] = [
    (step, False)
    for step in (("say", 0, 0), ("stream", 1), ("say", 0, 0), ("leave", 1), ("stream", 0), ("say", 0, 1))
]
"""A script in which a client requests a stream and disconnects before the conversation is found.

This client is not asked.
"""


@pytest.mark.promises("approvals.once")
@given(script=scripts)
@example(script=LEAVES_EARLY)
def test_every_approval_is_settled_once_and_by_its_own_answer(script: list[tuple[tuple[Any, ...], bool]]) -> None:
    asyncio.run(play(script))

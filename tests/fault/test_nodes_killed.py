"""Three nodes that are killed at random while clients of each node work in all conversations.

No message is lost or doubled, no command runs twice, and no stream has a gap.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from kit.clients.chaos import SETTINGS, answer_to
from kit.servers.node_process import NodeProcess
from kit.servers.postgres import NEEDS_POSTGRES, Databases
from kit.system.commands import PATIENCE_SECONDS
from parley.client import Approval, Client, Conversation
from parley.client.errors import Disconnected, RequestFailed, ToolFailed
from parley.client.turn_result import Event, ends_turn
from parley.testing import ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import ExecCommandBegin, ExecCommandEnd, TaskStarted, UserMessage

pytestmark = [NEEDS_POSTGRES, pytest.mark.child_process]

EXPECTED = ("does not answer; was it stopped?", "Server is shutting down")
"""Errors that are expected."""


class KilledNodes:
    """Nodes that are killed and started again, each with a client that sends messages and reads streams."""

    def __init__(self, model: ScriptedModel, directory: Path, url: str, seed: int) -> None:
        self._model, self._directory, self._url, self._random = model, directory, url, Random(seed)
        self.conversations: list[str] = []
        self._unanswered: dict[str, tuple[str, str]] = {}
        """The conversation and the text of each message without an answer, by message id."""
        self.accepted: set[str] = set()
        self.streams: list[tuple[str, list[int]]] = []
        """The conversation and the received positions of each stream."""
        self.unexpected: list[str] = []
        self.kills = 0
        self._count = 0
        self._is_over = asyncio.Event()

    def node(self, name: str) -> NodeProcess:
        """Return a node that is not running yet."""
        return NodeProcess(self._model, self._directory, name, self._url, config=SETTINGS)

    async def run(self, *, seconds: float) -> None:
        async with self.node("first") as node, node.client() as client:
            self.conversations = [(await client.create(cwd=self._directory, model=MODEL)).id for _ in range(3)]
        async with asyncio.TaskGroup() as tasks:
            for name in "abc":
                tasks.create_task(self._one_after_another(name))
            await asyncio.sleep(seconds)
            self._is_over.set()

    async def _one_after_another(self, name: str) -> None:
        while not self._is_over.is_set():
            async with self.node(name) as node:
                with suppress(Disconnected):
                    async with node.client(reconnect_seconds=0, on_approval=approve) as client:
                        await self._use(node, client)

    async def _use(self, node: NodeProcess, client: Client) -> None:
        """Send messages and read streams until the node is killed or the time is over."""
        killing = asyncio.create_task(self._kill(node))
        reading = [asyncio.create_task(self._read(client.conversation(one))) for one in self.conversations]
        try:
            while not killing.done() and not self._is_over.is_set():
                await self._send(client)
                await asyncio.sleep(self._random.uniform(0, 0.1))
        finally:
            for task in (killing, *reading):
                task.cancel()
            await asyncio.gather(killing, *reading, return_exceptions=True)

    async def _kill(self, node: NodeProcess) -> None:
        await asyncio.sleep(self._random.uniform(0.5, 3))
        self.kills += 1
        node.process.kill()
        await node.process.wait()

    async def _read(self, conversation: Conversation) -> None:
        positions: list[int] = []
        self.streams.append((conversation.id, positions))
        async with conversation.stream() as stream:
            async for seen in stream.detailed():
                assert seen.meta is not None
                if isinstance(seen.meta.seq, int):
                    positions.append(seen.meta.seq)

    async def _send(self, client: Client) -> None:
        """Send a new message, or send a message again that got no answer."""
        if self._unanswered and self._random.random() < 0.5:
            message_id = self._random.choice(list(self._unanswered))
            where, words = self._unanswered.pop(message_id)
        else:
            self._count += 1
            message_id, where = str(uuid4()), self._random.choice(self.conversations)
            words = f"{self._random.choice(('say', 'run'))} {self._count}"
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await client.conversation(where).send(words, message_id=message_id)
        except (Disconnected, RequestFailed, ToolFailed, TimeoutError) as error:
            self._unanswered[message_id] = where, words
            if not isinstance(error, Disconnected) and not any(text in str(error) for text in EXPECTED):
                self.unexpected.append(f"{type(error).__name__}: {error}")
        else:
            self.accepted.add(message_id)

    async def settle(self) -> dict[str, list[tuple[int, Event]]]:
        """Send the remaining messages to a last node, wait until all turns have ended, and return the logs."""
        async with self.node("last") as node, node.client(on_approval=approve) as client:
            while self._unanswered:
                await self._send(client)
            return {one: await log_at_rest(client, client.conversation(one)) for one in self.conversations}


async def approve(approval: Approval) -> None:
    with suppress(ToolFailed, Disconnected):  # another client has answered, or the node was killed
        await approval.approve()


async def log_at_rest(client: Client, conversation: Conversation) -> list[tuple[int, Event]]:
    """Answer open approvals until a conversation is idle, and return its events with their positions."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        page = await conversation.read(limit=1)
        while page.state != "idle":
            for approval in await client.approvals(conversation.id):
                await approve(approval)
            end = (await conversation.read(after=page.seq, limit=1000)).seq
            page = await conversation.read(after=end, wait_seconds=1)
    found: list[tuple[int, Event]] = []
    page = await conversation.read(limit=1000)
    while page.events:
        found += [(one.seq, one.msg) for one in page.events]
        page = await conversation.read(after=page.seq, limit=1000)
    return found


def check(nodes: KilledNodes, logs: dict[str, list[tuple[int, Event]]], ran: Path) -> None:
    said: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    done: set[str] = set()
    for log in logs.values():
        events = [event for _, event in log]
        said.update(str(event.message_id) for event in events if isinstance(event, UserMessage))
        begun.update(event.call_id for event in events if isinstance(event, ExecCommandBegin))
        done |= {
            event.call_id.split("-")[1]
            for event in events
            if isinstance(event, ExecCommandEnd) and event.exit_code == 0
        }
        assert sum(isinstance(event, TaskStarted) for event in events) == sum(map(ends_turn, events))
    for conversation_id, positions in nodes.streams:
        stored = [seq for seq, _ in logs[conversation_id]]
        if positions:
            first = stored.index(positions[0])
            assert positions == stored[first : first + len(positions)]
    commands = Counter(ran.read_text().split() if ran.exists() else [])
    seen = sum(len(positions) for _, positions in nodes.streams)
    print(
        f"{nodes.kills} kills, {len(nodes.accepted)} messages, {sum(map(len, logs.values()))} events,"
        f" {len(nodes.streams)} streams that saw {seen}, {len(commands)} commands"
    )

    assert nodes.unexpected == []
    assert all(times == 1 for times in said.values()), f"said twice: {said}"
    assert nodes.accepted == said.keys(), f"lost or unknown: {nodes.accepted ^ said.keys()}"
    assert all(times == 1 for times in begun.values()), f"begun twice: {begun}"
    assert all(times == 1 for times in commands.values()), f"run twice: {commands}"
    assert done <= commands.keys(), f"done and not run: {done - commands.keys()}"


async def run(model: ScriptedModel, directory: Path, url: str, *, seed: int, seconds: float) -> None:
    ran = directory / "ran"
    model.set_handler(lambda request: answer_to(request, ran))
    nodes = KilledNodes(model, directory, url, seed)
    await nodes.run(seconds=seconds)
    check(nodes, await nodes.settle(), ran)


@pytest.mark.waits
@pytest.mark.promises("nodes.any-node", "nodes.node-lost")
async def test_three_nodes_that_are_killed_lose_and_double_nothing(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    await run(parley_model, tmp_path, databases.url(), seed=1, seconds=4)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2, 4))
async def test_for_a_minute_three_nodes_that_are_killed_lose_and_double_nothing(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, seed: int
) -> None:
    await run(parley_model, tmp_path, databases.url(), seed=seed, seconds=60)

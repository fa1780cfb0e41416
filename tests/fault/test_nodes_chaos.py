"""Three nodes with random faults while clients of each node work in all conversations: nodes are killed, stopped,
and cut off from the database.

No message is lost or doubled, no command runs twice, no approval is settled twice, and no stream has a gap.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

import pytest

from kit.clients.chaos import SETTINGS, answer_to
from kit.clients.shared_home import events_until, is_, log_of
from kit.servers.database_port import DatabasePort
from kit.servers.node_process import NodeProcess
from kit.servers.patched_program import SHORT_LEASE
from kit.servers.postgres import NEEDS_POSTGRES, Databases
from kit.servers.postgres_pair import postgres_pair
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.printed import PRINTED
from parley.client import Approval, Client, Conversation
from parley.client.errors import Disconnected, RequestFailed, ServerRefused, ToolFailed
from parley.client.turn_result import Event, ends_turn
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import (
    AgentMessage,
    ApprovalSettled,
    ErrorEvent,
    ExecCommandBegin,
    ExecCommandEnd,
    TaskStarted,
    UserMessage,
)

pytestmark = [NEEDS_POSTGRES, pytest.mark.child_process]

EXPECTED: Final = frozenset(
    {
        "lease_lost",
        "no_node_for_directory",
        "outcome_unknown",
        "owner_unresponsive",
        "session_not_saved",
        "shutting_down",
        "store_failed",
        "stream_end_not_saved",
    }
)
"""The codes of errors that are expected."""
ENDED: Final = (Disconnected, ServerRefused)
"""The errors of calls to a node that has ended or is about to end."""

Fault = Callable[["Chaos", NodeProcess, DatabasePort], Awaitable[None]]
"""A fault of a node. It lasts for a random time, unless it ends the node."""


async def kill(chaos: Chaos, node: NodeProcess, port: DatabasePort) -> None:
    node.process.kill()
    await node.process.wait()


async def terminate(chaos: Chaos, node: NodeProcess, port: DatabasePort) -> None:
    """Stop a node in an orderly way. It hands its turns over, or waits for them."""
    node.process.terminate()
    if (code := await node.process.wait()) != 0:
        chaos.unexpected.append(f"exit code {code} of {node.id}")


async def stop(chaos: Chaos, node: NodeProcess, port: DatabasePort) -> None:
    """Stop a node for so long that another node may take over its conversations."""
    node.process.send_signal(signal.SIGSTOP)
    try:
        await chaos.pause()
    finally:
        if node.process.returncode is None:
            node.process.send_signal(signal.SIGCONT)


async def cut(chaos: Chaos, node: NodeProcess, port: DatabasePort) -> None:
    port.refuses = True
    port.cut()
    await chaos.pause()
    port.refuses = False


async def hold(chaos: Chaos, node: NodeProcess, port: DatabasePort) -> None:
    port.hold()
    await chaos.pause()
    if chaos.random.random() < 0.5:
        port.cut()
    port.flow()


async def delay(chaos: Chaos, node: NodeProcess, port: DatabasePort) -> None:
    port.delay_seconds = chaos.random.uniform(0.01, 0.3)
    await chaos.pause()
    port.delay_seconds = 0.0


async def truncate(chaos: Chaos, node: NodeProcess, port: DatabasePort) -> None:
    """Cut the connections of a node several times in the middle of a request or of an answer."""
    for _ in range(10):
        port.cut_after(chaos.random.choice(("request", "answer")), chaos.random.randrange(400), marker=b"")
        await asyncio.sleep(chaos.random.uniform(0, 0.3))


KILLS: Final[tuple[Fault, ...]] = (kill,)
FAULTS: Final[tuple[Fault, ...]] = (kill, kill, terminate, stop, cut, hold, delay, truncate)


class Chaos:
    """Nodes with random faults, each with a client that sends messages and reads streams."""

    def __init__(
        self,
        model: ScriptedModel,
        directory: Path,
        url: str,
        seed: int,
        *,
        faults: Sequence[Fault],
        longest_seconds: float,
        has_short_leases: bool = False,
    ) -> None:
        """Create the chaos. A fault lasts at most `longest_seconds`. With `has_short_leases`, the leases of the
        nodes expire after three seconds.
        """
        self._model, self._directory, self._url, self.random = model, directory, url, Random(seed)
        self._faults, self._longest_seconds = faults, longest_seconds
        self._program: dict[str, Any] = {"program": SHORT_LEASE} if has_short_leases else {}
        self.conversations: list[str] = []
        self._unanswered: dict[str, tuple[str, str]] = {}
        """The conversation and the text of each message without an answer, by message id."""
        self.accepted: set[str] = set()
        self._accepted_at: list[float] = []
        self.streams: list[tuple[str, list[int]]] = []
        """The conversation and the received positions of each stream."""
        self.unexpected: list[str] = []
        self.happened: Counter[str] = Counter()
        """The number of each fault."""
        self.refusals: Counter[str] = Counter()
        """The number of failed calls, by error code."""
        self.nodes: list[NodeProcess] = []
        self._count = 0
        self._is_over = asyncio.Event()

    def node(self, name: str, url: str) -> NodeProcess:
        """Return a node that is not running yet."""
        node = NodeProcess(self._model, self._directory, name, url, config=SETTINGS, **self._program)
        self.nodes.append(node)
        return node

    async def pause(self) -> None:
        """Wait while a fault lasts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.random.uniform(0.1, self._longest_seconds)):
                await self._is_over.wait()

    async def run(self, *, seconds: float, disaster: Callable[[], Awaitable[None]] | None = None) -> None:
        """Run three nodes for some seconds. `disaster` happens in the middle of this time."""
        async with self.node("first", self._url) as node, node.client() as client:
            self.conversations = [(await client.create(cwd=self._directory, model=MODEL)).id for _ in range(3)]
        async with asyncio.TaskGroup() as tasks:
            for name in "abc":
                tasks.create_task(self._one_after_another(name))
            await asyncio.sleep(seconds / 2)
            if disaster is not None:
                await disaster()
            await asyncio.sleep(seconds / 2)
            self._is_over.set()

    async def _one_after_another(self, name: str) -> None:
        while not self._is_over.is_set():
            async with AsyncExitStack() as stack:
                port: DatabasePort | None = None
                url = self._url
                if "," not in url:  # the port leads to one host only
                    port = await stack.enter_async_context(DatabasePort(url))
                    url = port.url
                node = await stack.enter_async_context(self.node(name, url))
                with suppress(*ENDED):
                    async with node.client(reconnect_seconds=0, on_approval=approve) as client:
                        await self._use(node, port, client)

    async def _use(self, node: NodeProcess, port: DatabasePort | None, client: Client) -> None:
        """Send messages and read streams until the node has ended or the time is over."""
        ended = asyncio.ensure_future(node.process.wait())
        tasks = [asyncio.create_task(self._read(client.conversation(one))) for one in self.conversations]
        if port is not None:
            tasks.append(asyncio.create_task(self._hurt(node, port)))
        try:
            while not ended.done() and not self._is_over.is_set():
                await self._send(client)
                await asyncio.sleep(self.random.uniform(0, 0.1))
        finally:
            for task in (ended, *tasks):
                task.cancel()
            for error in await asyncio.gather(ended, *tasks, return_exceptions=True):
                if isinstance(error, Exception) and not isinstance(error, (*ENDED, ToolFailed)):
                    self.unexpected.append(repr(error))

    async def _hurt(self, node: NodeProcess, port: DatabasePort) -> None:
        while not self._is_over.is_set():
            await asyncio.sleep(self.random.uniform(0.5, 3))
            fault = self.random.choice(self._faults)
            self.happened[fault.__name__] += 1
            await fault(self, node, port)

    async def _read(self, conversation: Conversation) -> None:
        while True:
            positions: list[int] = []
            self.streams.append((conversation.id, positions))
            try:
                async with conversation.stream() as stream:
                    async for seen in stream.detailed():
                        assert seen.meta is not None
                        if isinstance(seen.meta.seq, int):
                            positions.append(seen.meta.seq)
            except (ToolFailed, RequestFailed) as error:
                self._note(error)
                await asyncio.sleep(0.1)

    def _note(self, error: ToolFailed | RequestFailed) -> None:
        self.refusals[error.code or ""] += 1
        if error.code not in EXPECTED:
            self.unexpected.append(f"{type(error).__name__}: {error.code}: {error}")

    async def _send(self, client: Client) -> None:
        """Send a new message, or send a message again that got no answer."""
        if self._unanswered and self.random.random() < 0.5:
            message_id = self.random.choice(list(self._unanswered))
            where, words = self._unanswered.pop(message_id)
        else:
            self._count += 1
            message_id, where = str(uuid4()), self.random.choice(self.conversations)
            words = f"{self.random.choice(('say', 'run'))} {self._count}"
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await client.conversation(where).send(words, message_id=message_id)
        except (*ENDED, RequestFailed, ToolFailed) as error:
            self._unanswered[message_id] = where, words
            if isinstance(error, RequestFailed | ToolFailed):
                self._note(error)
        except TimeoutError:
            self._unanswered[message_id] = where, words
            self.unexpected.append(f"no answer to {words!r}")
        else:
            self.accepted.add(message_id)
            self._accepted_at.append(time.monotonic())

    @property
    def longest_gap_seconds(self) -> float:
        """The longest time between two accepted messages, in seconds."""
        return max(after - before for before, after in pairwise(self._accepted_at))

    async def settle(self) -> dict[str, list[tuple[int, Event]]]:
        """Send the remaining messages to a last node, wait until all turns have ended, and return the logs."""
        async with self.node("last", self._url) as node, node.client(on_approval=approve) as client:
            while self._unanswered:
                await self._send(client)
            return {one: await log_at_rest(client, client.conversation(one)) for one in self.conversations}


async def approve(approval: Approval) -> None:
    with suppress(ToolFailed, Disconnected):  # another client has answered, or the node was killed
        await approval.approve()


async def log_at_rest(client: Client, conversation: Conversation) -> list[tuple[int, Event]]:
    """Answer open approvals until a conversation is idle, and return its events with their positions."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
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


def check(chaos: Chaos, logs: dict[str, list[tuple[int, Event]]], ran: Path) -> str:
    """Check the logs, and return a sentence with the numbers."""
    said: Counter[str] = Counter()
    begun: Counter[str] = Counter()
    settled: Counter[str] = Counter()
    done: set[str] = set()
    for log in logs.values():
        events = [event for _, event in log]
        said.update(str(event.message_id) for event in events if isinstance(event, UserMessage))
        begun.update(event.call_id for event in events if isinstance(event, ExecCommandBegin))
        settled.update(event.approval_id for event in events if isinstance(event, ApprovalSettled))
        done |= {
            event.call_id.split("-")[1]
            for event in events
            if isinstance(event, ExecCommandEnd) and event.exit_code == 0
        }
        assert sum(isinstance(event, TaskStarted) for event in events) == sum(map(ends_turn, events))
    for conversation_id, positions in chaos.streams:
        stored = [seq for seq, _ in logs[conversation_id]]
        if positions:
            first = stored.index(positions[0])
            assert positions == stored[first : first + len(positions)]
    commands = Counter(ran.read_text().split() if ran.exists() else [])
    tracebacks = [node.stderr_text() for node in chaos.nodes if "Traceback" in node.stderr_text()]

    assert not tracebacks, tracebacks[0]
    assert not chaos.unexpected, "\n".join(chaos.unexpected)
    assert all(times == 1 for times in said.values()), f"said twice: {said}"
    assert chaos.accepted == said.keys(), f"lost or unknown: {chaos.accepted ^ said.keys()}"
    assert all(times == 1 for times in begun.values()), f"begun twice: {begun}"
    assert all(times == 1 for times in settled.values()), f"settled twice: {settled}"
    assert all(times == 1 for times in commands.values()), f"run twice: {commands}"
    assert done <= commands.keys(), f"done and not run: {done - commands.keys()}"
    seen = sum(len(positions) for _, positions in chaos.streams)
    return (
        f"nodes: {dict(chaos.happened)}, {len(chaos.accepted)} messages, {sum(map(len, logs.values()))} events,"
        f" {len(chaos.streams)} streams with {seen} events, {len(commands)} commands, {len(settled)} approvals,"
        f" failed calls {dict(chaos.refusals)}, {chaos.longest_gap_seconds:.2f} s without an accepted message"
    )


Record = Callable[[str, object], None]


async def run(
    chaos: Chaos,
    model: ScriptedModel,
    ran: Path,
    record_property: Record,
    *,
    seconds: float,
    disaster: Callable[[], Awaitable[None]] | None = None,
) -> None:
    model.set_handler(lambda request: answer_to(request, ran))
    await chaos.run(seconds=seconds, disaster=disaster)
    record_property(PRINTED, check(chaos, await chaos.settle(), ran))


@pytest.mark.waits
@pytest.mark.promises("nodes.any-node", "nodes.node-lost")
async def test_three_nodes_with_short_faults_lose_and_double_nothing(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, record_property: Record
) -> None:
    chaos = Chaos(parley_model, tmp_path, databases.url(), 1, faults=FAULTS, longest_seconds=1)
    await run(chaos, parley_model, tmp_path / "ran", record_property, seconds=4)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2, 3))
async def test_for_a_minute_three_nodes_that_are_killed_lose_and_double_nothing(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, seed: int, record_property: Record
) -> None:
    chaos = Chaos(parley_model, tmp_path, databases.url(), seed, faults=KILLS, longest_seconds=0.1)
    await run(chaos, parley_model, tmp_path / "ran", record_property, seconds=60)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(4, 6))
async def test_for_two_minutes_three_nodes_with_faults_beyond_their_leases_lose_and_double_nothing(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, seed: int, record_property: Record
) -> None:
    chaos = Chaos(
        parley_model,
        tmp_path,
        databases.url(),
        seed,
        faults=FAULTS,
        longest_seconds=6,
        has_short_leases=True,
    )
    await run(chaos, parley_model, tmp_path / "ran", record_property, seconds=120)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(8, 10))
async def test_nodes_continue_when_the_primary_is_killed_and_a_late_standby_is_promoted(
    parley_model: ScriptedModel, tmp_path: Path, seed: int, record_property: Record
) -> None:
    """The standby stores all data and applies none of it until it is promoted."""
    async with postgres_pair(recovery_min_apply_delay="1h") as pair:
        chaos = Chaos(parley_model, tmp_path, pair.url, seed, faults=(), longest_seconds=1)

        async def fail_over() -> None:
            await pair.kill_primary()
            await pair.promote()

        await run(chaos, parley_model, tmp_path / "ran", record_property, seconds=20, disaster=fail_over)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_for_five_minutes_three_nodes_with_faults_beyond_real_leases_lose_and_double_nothing(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases, record_property: Record
) -> None:
    chaos = Chaos(parley_model, tmp_path, databases.url(), 10, faults=FAULTS, longest_seconds=25)
    await run(chaos, parley_model, tmp_path / "ran", record_property, seconds=300)


@pytest.mark.long
@pytest.mark.promises("nodes.fenced")
async def test_a_node_that_was_stopped_beyond_its_lease_is_fenced_and_serves_again(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    parley_model.says("Written by the stopped node", HOLD, " and too late")
    parley_model.says("Written by the other node")
    parley_model.says("Written later")
    a, b = [NodeProcess(parley_model, tmp_path, name, databases.url(), program=SHORT_LEASE) for name in "ab"]
    async with asyncio.timeout(TIMEOUT_SECONDS), a, b, a.client() as one, b.client() as two:
        here = await one.create(cwd=tmp_path, model=MODEL)
        there = two.conversation(here.id)
        await here.send("go")
        await parley_model.wait_until_held()
        a.process.send_signal(signal.SIGSTOP)
        async with there.stream() as stream:
            events = await events_until(stream, is_(ErrorEvent))
            result = await (await there.send("go on")).result()
            parley_model.release()
            a.process.send_signal(signal.SIGCONT)
            again = await (await here.send("and again")).result()
            events += await events_until(stream, lambda event: "later" in getattr(event, "message", ""))
        logs = await log_of(here), await log_of(there)

    assert isinstance(events[-1], AgentMessage)
    assert "killed or lost its connection to the database" in str(events)
    assert (result.text, again.text) == ("Written by the other node", "Written later")
    assert logs[0] == logs[1]
    assert "stopped node" not in str(logs[0])
    assert "Traceback" not in a.stderr_text()

"""Measures nodes that share a PostgreSQL database: the latency of deltas between nodes, the time of a failover, and
the cost of idle conversations.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final

from bench.appending import BODY, summary
from bench.database import database_cpu_seconds, database_url, postgres_server
from bench.homes import write_conversations
from bench.latency import DELTAS, HANDED_OVER, PAUSE_SECONDS, model_in_hand, paced
from bench.model import BEGIN, STREAM_HEAD, delta_event
from bench.report import Row
from bench.resident import HttpPeer, Resident, resident
from bench.servers import Parley
from parley.conversation.log import Entry
from parley.stores.postgres.store import PostgresStore
from parley.testing.sending import chunk
from parley.wire.ids import ConversationId, Seq

if TYPE_CHECKING:
    from kit.servers.postgres import PostgresServer

__all__ = ["failover", "idle_conversations", "node_latency", "running_nodes"]

SETTINGS: Final = ("workspace.mode=shared", "serve.drain_seconds=0")
SAME_NODE: Final = "parley, same node"
FAILOVERS: Final = 5
IDLE: Final = 10_000
STREAMS: Final = 250
"""The number of idle conversations that one client streams."""
IDLE_SECONDS: Final = 10.0
BEFORE_SECONDS: Final = 1.0
"""The time for which events are appended before the primary is killed, in seconds."""


@contextmanager
def running_nodes(base_url: str, store_url: str, count: int) -> Iterator[list[Resident]]:
    """Run nodes that share a database and a file system until the block ends."""
    env = {"PARLEY_STORE_URL": store_url, "PARLEY_NODE_TOKEN": secrets.token_hex(32)}
    with ExitStack() as stack:
        yield [
            stack.enter_context(resident(base_url, env=env, settings=(*SETTINGS, f"node.id=node-{number}")))
            for number in range(count)
        ]


# --- latency ---------------------------------------------------------------------------


def node_latency() -> list[Row]:
    """Measure the latency of one delta to a client of another node and to a client of the same node."""
    with (
        model_in_hand() as (base_url, handed_over),
        postgres_server() as (server, _),
        running_nodes(base_url, server.url, 2) as (owner, other),
        HttpPeer(owner) as sender,
    ):
        taken = {}
        for name, node in ((SAME_NODE, owner), (Parley.name, other)):
            conversation = sender.create(owner.work)
            with HttpPeer(node) as reader:
                reader.follow(conversation)
                sender.say(conversation, "hello")  # warm up: the first turn loads the HTTP library
                reader.until_ended()
                sender.say(conversation, HANDED_OVER.decode())
                with handed_over.get(timeout=30) as reply:
                    reply.sendall(STREAM_HEAD + chunk(BEGIN))
                    delta = chunk(delta_event())

                    def one(reader: HttpPeer = reader, delta: bytes = delta) -> None:
                        reply.sendall(delta)
                        while not reader.read()[0]:
                            pass

                    taken[name] = quantiles(paced(one), n=100)
    return [
        Row(
            what=f"latency of one delta to a client of another node, {name}",
            unit="ms",
            values={server_name: cuts[index] * 1000 for server_name, cuts in taken.items()},
            notes=(f"{DELTAS} deltas over HTTP, one every {PAUSE_SECONDS * 1000:g} ms",) if index == 49 else (),
        )
        for name, index in (("p50", 49), ("p99", 98))
    ]


# --- failover --------------------------------------------------------------------------


def failover() -> list[Row]:
    of_nodes = [_node_failover() for _ in range(FAILOVERS)]
    of_databases = [_database_failover() for _ in range(FAILOVERS)]
    return [
        Row(
            what="failover of a node, p50",
            unit="ms",
            values={Parley.name: median(of_nodes) * 1000},
            notes=(
                "from the kill of the node that runs the turn until another node has begun a new turn of the"
                f" conversation; median of {FAILOVERS}, at most {max(of_nodes) * 1000:,.0f} ms",
            ),
        ),
        Row(
            what="failover of the database, p50",
            unit="ms",
            values={Parley.name: median(of_databases) * 1000},
            notes=(
                "from the kill of the primary, with an immediate promotion of the synchronous standby, until the"
                f" next acknowledged append; median of {FAILOVERS}, at most {max(of_databases) * 1000:,.0f} ms",
            ),
        ),
    ]


def _node_failover() -> float:
    with (
        model_in_hand() as (base_url, handed_over),
        postgres_server() as (server, _),
        running_nodes(base_url, server.url, 2) as (owner, other),
        HttpPeer(owner) as sender,
        HttpPeer(other) as reader,
    ):
        conversation = sender.create(owner.work)
        reader.follow(conversation)
        sender.say(conversation, "hello")
        reader.until_ended()
        sender.say(conversation, HANDED_OVER.decode())
        with handed_over.get(timeout=30):
            owner.process.kill()
            began = time.perf_counter()
            reader.say(conversation, "hello")  # returns when the message is stored and its turn has begun
            return time.perf_counter() - began


def _database_failover() -> float:
    with postgres_server(with_standby=True) as (primary, standby):
        assert standby is not None
        return asyncio.run(_append_during_failover(primary, standby))


async def _append_during_failover(primary: PostgresServer, standby: PostgresServer) -> float:
    import asyncpg

    store = PostgresStore(database_url(primary, standby))
    name = ConversationId("00000000-0000-4000-8000-000000000000")
    await store.create(name, [], summary(0.0))
    lease = await store.acquire(name, address="")
    acknowledged: list[float] = []
    killed_at = 0.0

    async def append() -> None:
        seq = lease.last
        while not killed_at or acknowledged[-1] < killed_at:
            seq = Seq(seq + 1)
            await store.append(lease, [Entry(seq, time.time(), "agent_message", True, BODY)], summary(0.0))
            acknowledged.append(time.perf_counter())

    appending = asyncio.ensure_future(append())
    await asyncio.sleep(BEFORE_SECONDS)
    await asyncio.to_thread(primary.kill)
    killed_at = time.perf_counter()
    promoting = await asyncpg.connect(standby.url)
    await promoting.execute("SELECT pg_promote(false)")
    await promoting.close()
    await appending
    await store.close()
    return acknowledged[-1] - killed_at


# --- idle conversations ----------------------------------------------------------------


def idle_conversations(base_url: str) -> list[Row]:
    with (
        postgres_server() as (server, _),
        running_nodes(base_url, server.url, 1) as (node,),
        ExitStack() as stack,
    ):
        ids = asyncio.run(_stored(server.url))
        stack.enter_context(HttpPeer(node)).follow(ids[0])  # warm up
        before = node.resident_kib()
        for first in range(0, IDLE, STREAMS):
            stack.enter_context(HttpPeer(node)).follow_all(ids[first : first + STREAMS])
        after = node.resident_kib()
        node_cpu, database_cpu = node.cpu_seconds(), database_cpu_seconds(server)
        time.sleep(IDLE_SECONDS)
        node_cpu, database_cpu = node.cpu_seconds() - node_cpu, database_cpu_seconds(server) - database_cpu
    note = f"{IDLE:,} idle conversations on one node, which {IDLE // STREAMS} HTTP clients stream"
    return [
        Row(
            what="memory per streamed idle conversation", unit="KiB", values={Parley.name: (after - before) / IDLE}
        ),
        Row(
            what="CPU of a node with 10,000 idle conversations",
            unit="%",
            values={Parley.name: node_cpu / IDLE_SECONDS * 100},
            notes=(note,),
        ),
        Row(
            what="CPU of its database",
            unit="%",
            values={Parley.name: database_cpu / IDLE_SECONDS * 100},
        ),
    ]


async def _stored(url: str) -> Sequence[ConversationId]:
    store = PostgresStore(url)
    try:
        return await write_conversations(store, IDLE, at_once=20)
    finally:
        await store.close()

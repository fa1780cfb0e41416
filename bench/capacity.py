"""The capacity of nodes that share one PostgreSQL primary: a model, its measured costs, and a comparison with runs.

`python -m bench.capacity` measures the costs with one and two nodes on this computer, predicts the throughput of
one, two and three nodes, runs them, and prints the predictions beside the measured values. It then computes how
many conversations, clients and deltas per second nodes on computers of their own carry, and where they saturate.
`--costs FILE` uses the costs of an earlier run instead.

The model is a list of resources. Each unit of work costs CPU time on each resource:

- A node is one Python process, so it uses at most one core.
- The primary has a number of cores. Its group commits are limited by the syncs of its disk.
- On one computer, all processes share the cores. The model and the clients of the benchmark also need them.

The throughput is limited by the resource that is used up first.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Struct

from bench.database import database_cpu_seconds, postgres_server
from bench.model import deltas_of, running_model_process
from bench.nodes import running_nodes
from bench.pipe import Gone
from bench.resident import HttpPeer, Resident
from bench.servers import process_cpu_seconds

if TYPE_CHECKING:
    from kit.servers.postgres import PostgresServer

__all__ = ["Costs", "Load", "Prediction", "Site", "Work", "largest", "predict"]

CONVERSATIONS: Final = 24
"""The number of conversations in which turns run at the same time, in a measured run."""
RUN_SECONDS: Final = 6.0
WARM_UP_SECONDS: Final = 1.0
SHORT, LONG, MIXED = 1, 10_000, 200
"""The numbers of deltas in a turn: the costs of a turn, the costs of a delta, and the turns of the comparison."""
USABLE: Final = 0.7
"""The share of a resource that a deployment should use, so that latency stays low and one node may fail."""
NODES: Final = (1, 2, 3)
RESERVE_KIB: Final = 120 * 1024
"""The memory of a node without conversations, in KiB."""


# --- the model -------------------------------------------------------------------------


class Work(Struct, frozen=True, kw_only=True):
    """CPU seconds for one unit of work, by process."""

    node: float = 0.0
    """On the node that runs the turn."""
    other: float = 0.0
    """On the node to which the client is connected, if it is another one."""
    database: float = 0.0
    rest: float = 0.0
    """In the model and the clients of the benchmark. In a deployment, these run elsewhere."""


class Costs(Struct, frozen=True, kw_only=True):
    """The measured costs."""

    turn: Work
    """One turn with one delta: its message, its events and its commits."""
    delta: Work
    """One more delta of a turn, to one client of the same node."""
    remote_turn: Work
    """Additional costs of a turn if its client is connected to another node."""
    remote_delta: Work
    """Additional costs of a delta if its client is connected to another node."""
    conversation_kib: float = 24.0
    """The memory of a conversation that is loaded, in KiB (measure `idle`)."""
    client_kib: float = 68.0
    """The memory of an HTTP client with a session, a stream and a connection, in KiB (measure `http`)."""


class Load(Struct, frozen=True, kw_only=True):
    """The kind of work."""

    deltas: int
    """The number of deltas in a turn."""
    remote: float
    """The share of the turns whose client is connected to another node."""


class Site(Struct, frozen=True, kw_only=True):
    """The computers."""

    nodes: int
    database_cores: float
    shared_cores: float | None = None
    """The number of cores if everything runs on one computer; None if each node and the primary have their own."""


class Prediction(NamedTuple):
    turns: float
    """Turns per second."""
    deltas: float
    """Deltas per second."""
    limit: str
    """The resource that is used up first."""


def _cost(costs: Costs, load: Load) -> Work:
    """Return the costs of one turn."""

    def total(name: str) -> float:
        local = getattr(costs.turn, name) + getattr(costs.delta, name) * (load.deltas - 1)
        remote = getattr(costs.remote_turn, name) + getattr(costs.remote_delta, name) * (load.deltas - 1)
        return float(local + remote * load.remote)

    return Work(**{name: total(name) for name in Work.__struct_fields__})


def predict(costs: Costs, load: Load, site: Site) -> Prediction:
    """Return the highest throughput."""
    one = _cost(costs, load)
    # Each node runs turns and forwards the turns of the others, in equal shares.
    limits = {
        "the nodes (one core each)": site.nodes / (one.node + one.other),
        "the primary": site.database_cores / one.database if one.database else float("inf"),
    }
    if site.shared_cores is not None:
        limits["the cores of the computer"] = site.shared_cores / (one.node + one.other + one.database + one.rest)
    limit = min(limits, key=lambda name: limits[name])
    return Prediction(limits[limit], limits[limit] * load.deltas, limit)


def largest(costs: Costs, load: Load, database_cores: float) -> int:
    """Return the number of nodes from which another node adds nothing, because the primary is used up."""
    one = _cost(costs, load)
    return max(1, round(database_cores / one.database * (one.node + one.other)))


# --- runs ------------------------------------------------------------------------------

_ENDED: Final = re.compile(rb'"method":"task_complete","params":\{[^\n]*?"conversation_id":"([^"]+)"')


class Run(NamedTuple):
    """What one run did, and the CPU time that it used."""

    turns: int
    seconds: float
    nodes: list[float]
    """The CPU time of each node, in seconds."""
    database: float
    rest: float


def run(nodes: int, *, deltas: int, clients: Sequence[int]) -> Run:
    """Run turns without a pause in all conversations.

    `clients` are the nodes to which the clients are connected, relative to the node that runs the turn: 0 is the
    same node. The conversations are distributed over the nodes and these positions.
    """
    with (
        running_model_process() as (base_url, model_pid),
        postgres_server() as (server, _),
        running_nodes(base_url, server.url, nodes) as cluster,
        ExitStack() as stack,
    ):
        turns = _Turns(deltas)
        for number in range(CONVERSATIONS):
            owner = number % nodes
            client = (owner + clients[number // nodes % len(clients)]) % nodes
            turns.add(stack, cluster[owner], cluster[client])
        turns.begin()
        turns.until(time.perf_counter() + WARM_UP_SECONDS)
        before, began, ended = _cpu(cluster, server, model_pid), time.perf_counter(), turns.ended
        turns.until(began + RUN_SECONDS)
        seconds, ended = time.perf_counter() - began, turns.ended - ended
        after = _cpu(cluster, server, model_pid)
    used = [late - early for early, late in zip(before, after, strict=True)]
    return Run(ended, seconds, used[:-2], used[-2], used[-1])


def _cpu(cluster: Sequence[Resident], server: PostgresServer, model_pid: int) -> list[float]:
    own = time.process_time()
    nodes = [node.cpu_seconds() for node in cluster]
    return [*nodes, database_cpu_seconds(server), process_cpu_seconds(model_pid) + own]


class _Turns:
    """Conversations in which a new turn begins as soon as the last one has ended."""

    def __init__(self, deltas: int) -> None:
        self._text = deltas_of(deltas)
        self._senders: dict[str, HttpPeer] = {}
        self._readers: list[HttpPeer] = []
        self.ended = 0
        """The number of turns that have ended."""

    def add(self, stack: ExitStack, owner: Resident, client: Resident) -> None:
        """Create a conversation whose turns run on the node `owner`, with a client of the node `client`."""
        sender, reader = stack.enter_context(HttpPeer(owner)), stack.enter_context(HttpPeer(client))
        conversation = sender.create(owner.work)
        reader.follow(conversation)
        self._senders[conversation] = sender
        self._readers.append(reader)
        reader.name = conversation

    def begin(self) -> None:
        for conversation, sender in self._senders.items():
            sender.say(conversation, self._text)

    def until(self, at: float) -> None:
        """Read all streams, and begin new turns, until a time of `time.perf_counter()`."""
        with selectors.DefaultSelector() as selector:
            for reader in self._readers:
                assert reader.stream is not None
                selector.register(reader.stream, selectors.EVENT_READ, reader)
            while (left := at - time.perf_counter()) > 0:
                for key, _ in selector.select(left):
                    reader = key.data
                    if reader.read()[1]:
                        self.ended += 1
                        self._senders[reader.name].say(reader.name, self._text)


# --- costs -----------------------------------------------------------------------------


def measured_costs() -> Costs:
    """Measure the costs, in runs whose clients are connected to the node of the turn, and to another node."""
    local = [_per_turn(run(1, deltas=deltas, clients=(0,))) for deltas in (SHORT, LONG)]
    apart = [_per_turn_apart(deltas) for deltas in (SHORT, LONG)]
    turn, delta = _split(*local)
    remote_turn, remote_delta = _split(*apart)
    return Costs(
        turn=turn, delta=delta, remote_turn=_minus(remote_turn, turn), remote_delta=_minus(remote_delta, delta)
    )


def _per_turn(one: Run) -> Work:
    if not one.turns:
        raise Gone("no turn ended")
    return Work(node=sum(one.nodes) / one.turns, database=one.database / one.turns, rest=one.rest / one.turns)


def _per_turn_apart(deltas: int) -> Work:
    """Return the costs of a turn whose client is connected to another node. Half of them are those of that node."""
    return _per_turn(run(2, deltas=deltas, clients=(1,)))


def _split(short: Work, long: Work) -> tuple[Work, Work]:
    """Return the costs of a turn with one delta, and of each further delta."""
    each = {name: max(0.0, getattr(long, name) - getattr(short, name)) / (LONG - SHORT) for name in _NAMES}
    return short, Work(**each)


def _minus(one: Work, other: Work) -> Work:
    """Return additional costs. Both nodes count as `other`, because each node has both roles."""
    return Work(
        other=max(0.0, one.node - other.node),
        database=max(0.0, one.database - other.database),
        rest=max(0.0, one.rest - other.rest),
    )


_NAMES: Final = Work.__struct_fields__


# --- the report ------------------------------------------------------------------------


def compare(costs: Costs, cores: float) -> list[str]:
    """Run one, two and three nodes on this computer, and return the predictions beside the measured values."""
    lines = [
        f"turns of {MIXED} deltas per second on this computer ({cores:g} cores for everything):",
        "  nodes  clients         predicted  measured  ratio  cores used  for these cores  ratio  limit",
    ]
    for nodes in NODES:
        for name, clients in {"same node": (0,), "half remote": (0, 1)}.items():
            if nodes == 1 and name != "same node":
                continue
            load = Load(deltas=MIXED, remote=sum(clients) / len(clients))
            found = predict(costs, load, Site(nodes=nodes, database_cores=cores, shared_cores=cores))
            one = run(nodes, deltas=MIXED, clients=clients)
            rate = one.turns / one.seconds
            used = (sum(one.nodes) + one.database + one.rest) / one.seconds
            # Other programs may use the computer too, and turns wait for syncs of the disk.
            given = predict(costs, load, Site(nodes=nodes, database_cores=cores, shared_cores=used))
            ratio, ratio_given = rate / found.turns, rate / given.turns
            lines.append(
                f"  {nodes:5}  {name:14}  {found.turns:9,.1f}  {rate:8,.1f}  {ratio:5.2f}  {used:10.2f}"
                f"  {given.turns:15,.1f}  {ratio_given:5.2f}  {found.limit}"
            )
    return lines


def sizes(costs: Costs, memory_gib: float) -> list[str]:
    """Return the capacity of nodes on computers of their own. `memory_gib` is the memory of each node."""
    load = Load(deltas=MIXED, remote=0.5)
    kib = memory_gib * 1024 * 1024 - RESERVE_KIB
    clients, conversations = kib / (costs.client_kib + costs.conversation_kib), kib / costs.conversation_kib
    lines = [
        f"at {USABLE:.0%} of the nodes, turns of {MIXED} deltas, half of the clients at another node,"
        f" {memory_gib:g} GiB for each node:",
        "  nodes  primary cores  turns/s  deltas/s  clients  loaded conversations  limit of turns",
    ]
    for cores in (2, 8):
        for nodes in (1, 2, 3, 5, 10, 20):
            found = predict(costs, load, Site(nodes=nodes, database_cores=cores))
            turns, deltas = found.turns * USABLE, found.deltas * USABLE
            lines.append(
                f"  {nodes:5}  {cores:13}  {turns:7,.0f}  {deltas:8,.0f}  {nodes * clients * USABLE:7,.0f}"
                f"  {nodes * conversations * USABLE:20,.0f}  {found.limit}"
            )
        lines.append(f"  a primary with {cores} cores is used up by {largest(costs, load, cores)} nodes")
    return lines


def _table(costs: Costs) -> list[str]:
    lines = ["CPU microseconds        node   other  primary   model and clients"]
    for name in ("turn", "delta", "remote_turn", "remote_delta"):
        one: Work = getattr(costs, name)
        node, other, database, rest = (getattr(one, part) * 1e6 for part in _NAMES)
        lines.append(f"  {name:16} {node:10,.1f} {other:7,.1f} {database:8,.1f} {rest:19,.1f}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description="Compute the capacity of nodes.")
    parser.add_argument(
        "--costs", type=Path, metavar="FILE", help="use the costs in this file, and measure nothing"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the measured costs to this file")
    parser.add_argument(
        "--memory", type=float, default=2.0, metavar="GIB", help="the memory of a node (default: 2)"
    )
    arguments = parser.parse_args()
    if arguments.costs is not None:
        costs = msgspec.json.decode(arguments.costs.read_bytes(), type=Costs)
        print("\n".join((*_table(costs), "", *sizes(costs, arguments.memory))))
        return 0
    costs = measured_costs()
    if arguments.save is not None:
        arguments.save.write_bytes(msgspec.json.format(msgspec.json.encode(costs)) + b"\n")
    cores = len(os.sched_getaffinity(0))
    print("\n".join((*_table(costs), "", *compare(costs, cores), "", *sizes(costs, arguments.memory))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

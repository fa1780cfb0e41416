"""Measures HTTP clients of a resident server: the rate of deltas to many clients, the time of one call, and the
memory of an idle client."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import quantiles
from typing import Final

from bench.model import deltas_of
from bench.report import Row
from bench.resident import HttpPeer, resident, until_all_ended
from bench.servers import Parley, ParleyRunning

__all__ = ["http"]

CLIENTS: Final = {1: 50_000, 10: 20_000, 100: 4_000}
"""The number of deltas in a turn, by the number of clients that stream the conversation."""
CALLS: Final = 500
IDLE: Final = 200
ON_STDIO: Final = "parley, stdio"


def http(base_url: str, *, repetitions: int) -> list[Row]:
    rows = [_deltas(base_url, clients, deltas, repetitions) for clients, deltas in CLIENTS.items()]
    return [*rows, *_calls(base_url), _memory(base_url)]


def _deltas(base_url: str, clients: int, deltas: int, repetitions: int) -> Row:
    best, merged = 0.0, 0
    for _ in range(repetitions):
        with resident(base_url) as server, ExitStack() as stack:
            peers = [stack.enter_context(HttpPeer(server)) for _ in range(clients)]
            conversation = peers[0].create(server.work)
            for peer in peers:
                peer.follow(conversation)
            peers[0].say(conversation, "hello")  # warm up: the first turn loads the HTTP library
            until_all_ended(peers)
            began = time.perf_counter()
            peers[0].say(conversation, deltas_of(deltas))
            counts = until_all_ended(peers)
            rate = deltas / (time.perf_counter() - began)
        if rate > best:
            best, merged = rate, clients * deltas - sum(counts)
    who = "1 HTTP client" if clients == 1 else f"{clients} HTTP clients"
    return Row(
        what=f"deltas, 1 conversation to {who}",
        unit="/s",
        values={Parley.name: best},
        notes=(
            f"{deltas:,} deltas, {best * clients:,.0f} events/s to all clients together; best of {repetitions}; "
            f"{merged:,} deltas were merged into others",
        ),
    )


def _calls(base_url: str) -> list[Row]:
    with resident(base_url) as server, HttpPeer(server) as peer:
        conversation = peer.create(server.work)
        over_http = _timed(lambda: peer.tool("conversationStatus", conversation_id=conversation))
    with Parley().ready(base_url) as running:
        assert isinstance(running, ParleyRunning)
        opened = running.open()
        over_stdio = _timed(lambda: running.tool("conversationStatus", {"conversation_id": opened}))
    return [
        Row(
            what=f"one call over HTTP, {name}",
            unit="ms",
            values={Parley.name: over_http[index] * 1000, ON_STDIO: over_stdio[index] * 1000},
            notes=(f"{CALLS} sequential calls of `conversationStatus`",),
        )
        for name, index in (("p50", 49), ("p99", 98))
    ]


def _timed(one: Callable[[], object]) -> list[float]:
    times = []
    for _ in range(CALLS + CALLS // 10):
        began = time.perf_counter()
        one()
        times.append(time.perf_counter() - began)
    return quantiles(times[-CALLS:], n=100)


def _memory(base_url: str) -> Row:
    with resident(base_url) as server, ExitStack() as stack:
        first = stack.enter_context(HttpPeer(server))
        conversation = first.create(server.work)
        first.follow(conversation)
        before = server.resident_kib()
        for _ in range(IDLE):
            stack.enter_context(HttpPeer(server)).follow(conversation)
        after = server.resident_kib()
    return Row(
        what="memory of an idle HTTP client",
        unit="KiB",
        values={Parley.name: (after - before) / IDLE},
        notes=(f"{IDLE} clients, each with a session, a stream of one conversation and an open connection",),
    )

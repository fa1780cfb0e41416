"""Measures the deltas per second from the HTTP stream of the model to a client on stdio."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

from bench.model import deltas_of
from bench.pipe import Gone
from bench.report import Row
from bench.servers import CodexAppServer, CodexMcp, EphemeralParley, Parley, PlainParley, Server

__all__ = ["durability", "many_conversations", "many_messages", "one_conversation"]

DELTAS: Final = 100_000
CONVERSATIONS: Final = 100
MESSAGES: Final = 2_000
ANSWER: Final = b'"result":'
"""A marker that occurs in each response to a request, and in no event of these turns."""

NEWEST_RATIO: Final = 6
ORIGINAL_RATIO: Final = 20
MANY_PER_SECOND: Final = 100_000
SLOWEST_SHARE: Final = 0.5
DURABILITY_PERCENT: Final = 10
PAIRS: Final = 4
"""The number of pairs of runs in each repetition: one run with and one run without `--ephemeral`."""
LONG_TURN: Final = 5_000
"""The number of deltas in a long turn."""
SHORT_TURN: Final = 1_000
"""The number of deltas in a short turn. The cost of durability is constant per turn, so the slowdown is largest
with short turns."""


class _Run(NamedTuple):
    per_second: float
    """The number of received deltas per second."""
    merged: int
    """The number of deltas that the server merged into others, in the turns that ended."""
    stuck: int
    """The number of turns that did not end."""
    slowest: float
    """The rate of the slowest conversation, as a share of the mean rate."""


def _run(server: Server, base_url: str, *, conversations: int, deltas: int) -> _Run:
    """Run one turn of `deltas` deltas in each of `conversations` conversations. All turns start at once."""
    with server.ready(base_url) as running:
        running.run_short_turn()  # warm up: the first turn loads the HTTP library
        opened = [running.open_followed() for _ in range(conversations)]
        began, arrivals = running.run_turns(opened, deltas_of(deltas))
    ended = len(arrivals.ended_at)
    if not ended:
        raise Gone(f"{server.name} completed no turn")
    took = max(arrivals.ended_at) - began
    rates = [deltas / (ended_at - began) for ended_at in arrivals.ended_at]
    return _Run(
        per_second=arrivals.deltas / took,
        merged=deltas * ended - arrivals.deltas,
        stuck=conversations - ended,
        slowest=min(rates) / fmean(rates),
    )


def _best(
    rounds: Sequence[Sequence[Server]], run: Callable[[Server], _Run], report: Callable[[str], None]
) -> dict[str, _Run]:
    """Return the best run of each server. The servers alternate, so that other load on the computer affects all of
    them."""
    best: dict[str, _Run] = {}
    for servers in rounds:
        for server in servers:
            one = run(server)
            report(f"  {server.name}: {one.per_second:,.0f}/s")
            before = best.get(server.name)
            if before is None or (-one.stuck, one.per_second) > (-before.stuck, before.per_second):
                best[server.name] = one
    return best


def one_conversation(
    base_url: str, peers: Sequence[Server], *, repetitions: int, report: Callable[[str], None]
) -> list[Row]:
    def run(server: Server) -> _Run:
        return _run(server, base_url, conversations=1, deltas=DELTAS)

    best = _best([[Parley(), PlainParley(), *peers]] * repetitions, run, report)
    ours = best[Parley.name].per_second
    each_alone = not best[Parley.name].merged
    kept, notes = None, [f"{DELTAS:,} deltas of 8 characters, one HTTP chunk each; best of {repetitions}"]
    if newest := best.get(CodexAppServer.name):
        kept = each_alone and ours >= NEWEST_RATIO * newest.per_second
        notes.append(f"{ours / newest.per_second:.1f} × {CodexAppServer.name}")
    if original := best.get(CodexMcp.name):
        kept = each_alone and kept is not False and ours >= ORIGINAL_RATIO * original.per_second
        notes.append(f"{ours / original.per_second:.1f} × {CodexMcp.name}")
    values = {name: one.per_second for name, one in best.items() if name != PlainParley.name}
    return [
        Row(
            what="deltas, 1 conversation",
            unit="/s",
            values=values,
            budget=f"≥ {NEWEST_RATIO} × app-server, ≥ {ORIGINAL_RATIO} × mcp",
            kept=kept,
            notes=(*notes, *_oddities(best)),
        ),
        Row(
            what="deltas, without event_meta",
            unit="/s",
            values={Parley.name: best[PlainParley.name].per_second},
        ),
    ]


def many_conversations(
    base_url: str, peers: Sequence[Server], *, repetitions: int, report: Callable[[str], None]
) -> list[Row]:
    def run(server: Server) -> _Run:
        return _run(server, base_url, conversations=CONVERSATIONS, deltas=SHORT_TURN)

    # Each peer runs only once, because one run takes almost a minute.
    best = _best([[Parley(), *peers], *([Parley()] for _ in range(repetitions - 1))], run, report)
    ours = best[Parley.name]
    note = f"{SHORT_TURN:,} deltas in each conversation; best of {repetitions}, with peers one run"
    return [
        Row(
            what=f"deltas, {CONVERSATIONS} conversations together",
            unit="/s",
            values={name: one.per_second for name, one in best.items()},
            budget=f"≥ {MANY_PER_SECOND:,} /s",
            kept=ours.per_second >= MANY_PER_SECOND and not ours.merged and not ours.stuck,
            notes=(note, *_oddities(best)),
        ),
        Row(
            what="slowest conversation, share of the mean rate",
            unit="",
            values={name: one.slowest for name, one in best.items()},
            budget=f"≥ {SLOWEST_SHARE}",
            kept=ours.slowest >= SLOWEST_SHARE,
        ),
    ]


def many_messages(base_url: str, *, report: Callable[[str], None]) -> list[Row]:
    """Measure how fast Parley handles one short message to each of `MESSAGES` conversations, all sent at once."""
    with Parley().ready(base_url) as running:
        running.run_short_turn()  # warm up: the first turn loads the HTTP library
        opened = [running.open_followed() for _ in range(MESSAGES)]
        cpu_before = running.cpu_seconds()
        began = time.perf_counter()
        numbers = running.pipe.next_ids(MESSAGES)
        running.pipe.write(
            *(
                {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                for number, (method, params) in zip(
                    numbers, (running.turn(one, "hello") for one in opened), strict=True
                )
            )
        )
        accepted = completed = 0
        accepted_after, block = 0.0, b""
        while completed < MESSAGES:
            whole, _, block = (block + running.pipe.read()).rpartition(b"\n")
            completed += whole.count(running.end)
            if accepted < MESSAGES:
                accepted += whole.count(ANSWER)
                accepted_after = time.perf_counter() - began
        completed_after = time.perf_counter() - began
        cpu = running.cpu_seconds() - cpu_before
    report(f"  {Parley.name}: {MESSAGES / completed_after:,.0f}/s")
    note = f"one short message to each of {MESSAGES:,} conversations, all sent at once"
    return [
        Row(what="messages accepted", unit="/s", values={Parley.name: MESSAGES / accepted_after}, notes=(note,)),
        Row(what="turns completed for these messages", unit="/s", values={Parley.name: MESSAGES / completed_after}),
        Row(what="CPU time of the server per message", unit="ms", values={Parley.name: cpu / MESSAGES * 1000}),
    ]


def durability(base_url: str, *, repetitions: int, report: Callable[[str], None]) -> list[Row]:
    """Measure the slowdown that durability causes, by comparison with `--ephemeral`.

    Without `--ephemeral`, each event with a position is on disk before the server sends it.
    """
    lengths = ((1, DELTAS), (CONVERSATIONS, LONG_TURN), (CONVERSATIONS, SHORT_TURN))
    return [_durability(base_url, conversations, deltas, repetitions, report) for conversations, deltas in lengths]


def _durability(
    base_url: str, conversations: int, deltas: int, repetitions: int, report: Callable[[str], None]
) -> Row:
    def run(server: Server) -> _Run:
        return _run(server, base_url, conversations=conversations, deltas=deltas)

    # The slowdown is smaller than the variation between two runs of one server. So each comparison uses two
    # consecutive runs, the order of the two servers alternates, and the median of all comparisons counts.
    found: list[tuple[float, float]] = []
    for number in range(PAIRS * repetitions):
        servers: list[Server] = [Parley(), EphemeralParley()]
        rates = {server.name: run(server).per_second for server in (servers if number % 2 else servers[::-1])}
        found.append((rates[Parley.name], rates[EphemeralParley.name]))
        report(f"  {found[-1][0]:,.0f}/s, with --ephemeral {found[-1][1]:,.0f}/s")
    percent = median((1 - kept / ephemeral) * 100 for kept, ephemeral in found)
    a_turn = median((1 / kept - 1 / ephemeral) * deltas * 1000 for kept, ephemeral in found)
    kept, ephemeral = (median(rates) for rates in zip(*found, strict=True))
    is_short = deltas == SHORT_TURN
    who = "1 conversation" if conversations == 1 else f"{conversations} {'short turns' if is_short else 'turns'}"
    return Row(
        what=f"slowdown by durability, {who}",
        unit="%",
        values={Parley.name: percent},
        budget=f"≤ {DURABILITY_PERCENT} %",
        kept=percent <= DURABILITY_PERCENT,
        notes=(
            f"{deltas:,} deltas per turn: {kept:,.0f}/s, with --ephemeral {ephemeral:,.0f}/s; "
            f"median of {len(found)} pairs of runs",
            *([f"durability costs {a_turn:.2f} ms per turn, independently of its length"] if is_short else []),
        ),
    )


def _oddities(best: dict[str, _Run]) -> list[str]:
    merged = [f"{name} merged {one.merged:,} deltas into others" for name, one in best.items() if one.merged > 0]
    stuck = [f"{name}: {one.stuck:,} turns did not end" for name, one in best.items() if one.stuck]
    return [*(merged or ["each delta was a separate notification"]), *stuck]

"""The program `python -m bench`. It measures Parley and its peers in one run, prints a table and writes JSON."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence

from bench.chat import chat
from bench.cli import cli
from bench.client import through_client
from bench.commands import command_output, commands
from bench.conversations import idle_memory, opening
from bench.http import http
from bench.latency import latency
from bench.loading import loading
from bench.million import million
from bench.model import running_model
from bench.nodes import failover, idle_conversations, node_latency
from bench.page import page
from bench.patches import patches
from bench.peers import fetch_peers
from bench.pipe import Gone
from bench.postgres import postgres
from bench.relay import relay
from bench.report import RESULTS, NotAvailable, Row, begin_report, table, write_json
from bench.sandbox import sandboxed
from bench.servers import Server
from bench.sharing import sharing
from bench.snapshot import snapshot
from bench.startup import full_home, startup
from bench.store import store
from bench.throughput import durability, many_conversations, many_messages, one_conversation

__all__: list[str] = []

Measure = Callable[[str, Sequence[Server], int], list[Row]]
"""A function that runs one measure. Its arguments are the base URL of the model, the peers, and the number of
repetitions."""

MEASURES: dict[str, Measure] = {
    "deltas": lambda url, peers, times: one_conversation(url, peers, repetitions=times, report=_report),
    "many": lambda url, peers, times: many_conversations(url, peers, repetitions=times, report=_report),
    "messages": lambda url, peers, times: many_messages(url, report=_report),
    "durability": lambda url, peers, times: durability(url, repetitions=times, report=_report),
    "client": lambda url, peers, times: through_client(url, repetitions=times),
    "startup": lambda url, peers, times: startup(url, peers),
    "full-home": lambda url, peers, times: full_home(url),
    "opening": lambda url, peers, times: opening(url, peers, repetitions=times),
    "memory": lambda url, peers, times: idle_memory(url, peers),
    "snapshot": lambda url, peers, times: snapshot(url, repetitions=times),
    "loading": lambda url, peers, times: loading(url, repetitions=times),
    "http": lambda url, peers, times: http(url, repetitions=times),
    "page": lambda url, peers, times: page(url, repetitions=times),
    "chat": lambda url, peers, times: chat(url),
    "cli": lambda url, peers, times: cli(url),
    "relay": lambda url, peers, times: relay(url, repetitions=times),
    "latency": lambda url, peers, times: latency(peers),
    "sharing": lambda url, peers, times: sharing(),
    "commands": lambda url, peers, times: commands(url, peers, repetitions=times),
    "sandbox": lambda url, peers, times: sandboxed(peers, repetitions=times),
    "output": lambda url, peers, times: command_output(url, peers, repetitions=times),
    "patch": lambda url, peers, times: patches(url, repetitions=times),
    "store": lambda url, peers, times: store(repetitions=times),
    "postgres": lambda url, peers, times: postgres(repetitions=times),
    "node-latency": lambda url, peers, times: node_latency(),
    "failover": lambda url, peers, times: failover(),
    "idle": lambda url, peers, times: idle_conversations(url),
    "million": lambda url, peers, times: million(),
}


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Parley and its peers in one run.")
    parser.add_argument(
        "measures", nargs="*", metavar="MEASURE", help=f"a measure to run: {', '.join(MEASURES)} (default: all)"
    )
    parser.add_argument(
        "--repeat", type=int, default=3, help="number of repetitions; the best one counts (default: 3)"
    )
    parser.add_argument("--no-peers", action="store_true", help="measure only Parley")
    arguments = parser.parse_args()
    if unknown := set(arguments.measures) - set(MEASURES):
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    return arguments


def main() -> int:
    """Run the selected measures, print the table and write the JSON file.

    Returns:
        1 if Parley misses a budget or a measure fails, otherwise 0.
    """
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the exit also ends the started servers
    report = begin_report()
    peers: list[Server] = []
    if arguments.no_peers:
        report.not_measured.append("the peers, because of --no-peers")
    else:
        peers, missing = fetch_peers(_report)
        report.not_measured += missing
    failed = False
    with running_model() as base_url:
        for name in arguments.measures or MEASURES:
            _report(name)
            try:
                report.rows += MEASURES[name](base_url, peers, arguments.repeat)
            except NotAvailable as why:
                report.not_measured.append(f"{name}: {why}")
            except Gone as gone:
                report.not_measured.append(f"{name}: {gone}")
                failed = True
    write_json(report)
    print(table(report))
    _report(f"written to {RESULTS}")
    return int(failed or any(row.kept is False for row in report.rows))


if __name__ == "__main__":
    sys.exit(main())

"""Measures the latency of one delta on an idle server.

The benchmark is both the model and the client of the server. The latency is the time from the write of one delta to
the model socket to the arrival of its notification on the client pipe. The baseline is a short program that only
forwards bytes from a socket to its stdout.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Final

from bench.model import BEGIN, NOT_FOUND, SHORT_REPLY, STREAM_HEAD, delta_event
from bench.pipe import Pipe
from bench.report import BARE, Row
from bench.servers import Parley, Server
from parley.testing.sending import chunk

__all__ = ["DELTAS", "HANDED_OVER", "PAUSE_SECONDS", "latency", "model_in_hand", "paced"]

DELTAS: Final = 500
PAUSE_SECONDS: Final = 0.005
P50_MS: Final = 0.5
HANDED_OVER: Final = b"hand this over"
"""A message that makes the model of `model_in_hand` hand its connection over to the benchmark."""

_ECHO_PROGRAM: Final = """\
import os, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as model:
    while data := model.recv(65536):
        os.write(1, data)
"""


def latency(peers: Sequence[Server]) -> list[Row]:
    taken = {server.name: _through(server) for server in (Parley(), *peers)}
    taken[BARE] = _through_echo()
    hundredths = {name: quantiles(times, n=100) for name, times in taken.items()}
    p50 = {name: cuts[49] * 1000 for name, cuts in hundredths.items()}
    return [
        Row(
            what="latency of one delta on an idle server, p50",
            unit="ms",
            values=p50,
            budget=f"≤ {P50_MS} ms",
            kept=p50[Parley.name] <= P50_MS,
            notes=(
                f"{DELTAS} deltas, one every {PAUSE_SECONDS * 1000:g} ms, from the model socket to the client pipe",
                f"{BARE} only forwards bytes from a socket to its stdout",
            ),
        ),
        Row(
            what="latency of one delta on an idle server, p99",
            unit="ms",
            values={name: cuts[98] * 1000 for name, cuts in hundredths.items()},
        ),
    ]


def _through(server: Server) -> list[float]:
    with model_in_hand() as (base_url, handed_over), server.ready(base_url) as running:
        running.run_short_turn()  # warm up: the first turn loads the HTTP library
        conversation = running.open_followed()
        method, params = running.turn(conversation, HANDED_OVER.decode())
        running.pipe.request(method, params)
        with handed_over.get(timeout=30) as reply:
            reply.sendall(STREAM_HEAD + chunk(BEGIN))
            delta = chunk(delta_event())

            def one() -> None:
                reply.sendall(delta)
                running.pipe.line_with(running.delta)

            return paced(one)


def _through_echo() -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        pipe = Pipe(
            (sys.executable, "-c", _ECHO_PROGRAM, str(port)), env={}, cwd=Path.cwd(), stderr=Path("/dev/null")
        )
        reply, _ = listening.accept()
        with reply:
            reply.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = b"x" * len(delta_event()) + b"\n"

            def one() -> None:
                reply.sendall(line)
                pipe.line()

            times = paced(one)
        pipe.close()
        return times


def paced(one: Callable[[], None]) -> list[float]:
    """Call a function repeatedly, with a pause before each call. Return the time of each call in seconds, without
    the calls that warm up."""
    times: list[float] = []
    for _ in range(DELTAS + DELTAS // 10):
        time.sleep(PAUSE_SECONDS)
        began = time.perf_counter()
        one()
        times.append(time.perf_counter() - began)
    return times[-DELTAS:]


@contextmanager
def model_in_hand() -> Iterator[tuple[str, queue.Queue[socket.socket]]]:
    """Run a model that gives short replies. A request that contains `HANDED_OVER` gets no reply: the model puts its
    connection into a queue instead.

    Yields:
        The base URL of the model, and the queue.
    """
    handed_over: queue.Queue[socket.socket] = queue.Queue()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, handed_over), daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", handed_over
        listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts connections


def _accept(listening: socket.socket, handed_over: queue.Queue[socket.socket]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # the socket was shut down
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve, args=(connection, handed_over), daemon=True).start()


def _serve(connection: socket.socket, handed_over: queue.Queue[socket.socket]) -> None:
    with connection.makefile("rb") as incoming:
        while first := incoming.readline():
            length = 0
            while line := incoming.readline().strip().lower():
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            body = incoming.read(length)
            if b"/responses" in first and HANDED_OVER in body:
                handed_over.put(connection)
                return
            connection.sendall(SHORT_REPLY if b"/responses" in first else NOT_FOUND)
    connection.close()

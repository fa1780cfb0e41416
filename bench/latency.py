"""What a server adds to the way of one delta when it has nothing else to do.

Here we are the model and the client at once: one delta goes into the socket, and the clock stops
when its notification comes out of the pipe. For comparison the same through a program of a few
lines that does nothing but pass on what it reads.
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
            what="one delta when idle, p50",
            unit="ms",
            values=p50,
            budget=f"≤ {P50_MS} ms",
            kept=p50[Parley.name] <= P50_MS,
            notes=(
                f"{DELTAS} deltas, one every {PAUSE_SECONDS * 1000:g} ms, from our socket back to our pipe",
                f"{BARE} passes bytes from a socket to its stdout and does nothing else",
            ),
        ),
        Row(
            what="one delta when idle, p99",
            unit="ms",
            values={name: cuts[98] * 1000 for name, cuts in hundredths.items()},
        ),
    ]


def _through(server: Server) -> list[float]:
    with model_in_hand() as (base_url, handed_over), server.ready(base_url) as running:
        running.run_short_turn()  # what is loaded once is loaded now
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
    """How long each took; the first ones only warm up."""
    times: list[float] = []
    for _ in range(DELTAS + DELTAS // 10):
        time.sleep(PAUSE_SECONDS)
        began = time.perf_counter()
        one()
        times.append(time.perf_counter() - began)
    return times[-DELTAS:]


@contextmanager
def model_in_hand() -> Iterator[tuple[str, queue.Queue[socket.socket]]]:
    """A model that says a word, but hands the connection over to us when it is told to."""
    handed_over: queue.Queue[socket.socket] = queue.Queue()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, handed_over), daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", handed_over
        listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


def _accept(listening: socket.socket, handed_over: queue.Queue[socket.socket]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # it was closed
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

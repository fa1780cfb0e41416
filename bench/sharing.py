"""What it costs to follow a conversation that another process of the home runs.

As in `latency.py` we are the model and the client: one delta goes into the socket of the process that runs the
turn, and the clock stops when its notification comes out of the pipe of the other process.
"""

from __future__ import annotations

from statistics import quantiles

from bench.latency import DELTAS, HANDED_OVER, PAUSE_SECONDS, model_in_hand, paced
from bench.model import BEGIN, STREAM_HEAD, delta_event
from bench.report import Row
from bench.servers import Parley, ParleyRunning
from parley.testing.sending import chunk

__all__ = ["sharing"]


def sharing() -> list[Row]:
    hundredths = quantiles(_to_another_process(), n=100)
    return [
        Row(
            what="one delta to a client of another process, p50",
            unit="ms",
            values={Parley.name: hundredths[49] * 1000},
            notes=(f"{DELTAS} deltas, one every {PAUSE_SECONDS * 1000:g} ms; within one process: `latency`",),
        ),
        Row(
            what="one delta to a client of another process, p99",
            unit="ms",
            values={Parley.name: hundredths[98] * 1000},
        ),
    ]


def _to_another_process() -> list[float]:
    server = Parley()
    with (
        model_in_hand() as (base_url, handed_over),
        server.home(base_url) as (environ, work),
        server.start_in(environ, work) as owner,
        server.start_in(environ, work) as other,
    ):
        assert isinstance(other, ParleyRunning)
        owner.initialize()
        other.initialize()
        owner.run_short_turn()  # what is loaded once is loaded now
        conversation = owner.open()
        other.stream(conversation, event_meta=True)
        owner.pipe.request(*owner.turn(conversation, HANDED_OVER.decode()))
        with handed_over.get(timeout=30) as reply:
            reply.sendall(STREAM_HEAD + chunk(BEGIN))
            delta = chunk(delta_event())

            def one() -> None:
                reply.sendall(delta)
                other.pipe.line_with(other.delta)

            return paced(one)

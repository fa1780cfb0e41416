"""Measures the latency of one delta to a client of another process.

Two servers share one home. The first server runs the turn, and the client of the second server streams the
conversation. As in `latency.py`, the benchmark is both the model and the client. The latency is the time from the
write of one delta to the model socket of the first server to the arrival of its notification on the client pipe of
the second server.
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
            what="latency of one delta to a client of another process, p50",
            unit="ms",
            values={Parley.name: hundredths[49] * 1000},
            notes=(f"{DELTAS} deltas, one every {PAUSE_SECONDS * 1000:g} ms; for one process see `latency`",),
        ),
        Row(
            what="latency of one delta to a client of another process, p99",
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
        owner.run_short_turn()  # warm up: the first turn loads the HTTP library
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

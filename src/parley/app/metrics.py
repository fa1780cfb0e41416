"""The metrics of a server.

Some metrics are counted from telemetry reports, and the values of others are read from the parts of the server.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from parley.common.metrics import Counter, Gauge, Histogram, Labels, render
from parley.common.telemetry import Operation, telemetry
from parley.runtime.registry import ConversationRegistry
from parley.version import __version__

__all__ = ["ServerMetrics"]

SHORT: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The upper bounds of the histogram buckets, in seconds, for operations that wait only for this process."""
LONG: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""The upper bounds of the histogram buckets, in seconds, for operations that wait for models, commands or
people.
"""
LAG_SECONDS: Final = 1.0
"""The interval between two measurements of the delay of the event loop, in seconds."""

Metrics = tuple[Counter | Histogram | Gauge, ...]


class ServerMetrics:
    """Observes the telemetry of one server process, and provides its metrics."""

    wants_content = False

    def __init__(
        self,
        conversations: ConversationRegistry,
        *,
        clients: Callable[[], int],
        wal_bytes: Callable[[], int | None],
        free_bytes: Callable[[], int | None],
        is_store_available: Callable[[], bool],
    ) -> None:
        """Create the metrics, and begin to observe the telemetry of this process.

        `clients` returns the number of connected clients. `wal_bytes` returns the size of the write-ahead log of
        the store, and `free_bytes` returns the free space on the disk of this log, both in bytes. `wal_bytes` and
        `free_bytes` return None if the store is not a file. `is_store_available` returns whether the store can be
        used.
        """
        self._conversations = conversations
        self.requests = Counter(
            "parley_client_requests_total", "Requests of clients, by method and outcome.", ("method", "outcome")
        )
        self.request_seconds = Histogram(
            "parley_client_request_duration_seconds",
            "Time until a request of a client was handled. Requests that wait for a turn include the turn.",
            ("method",),
            bounds=LONG,
        )
        self.turns = Counter("parley_turns_total", "Turns that have ended in this process.", ("outcome",))
        self.turn_seconds = Histogram(
            "parley_turn_duration_seconds", "Duration of turns, including waits for approvals.", bounds=LONG
        )
        self.model_requests = Counter(
            "parley_model_requests_total",
            "Requests to models, by provider and status: an HTTP status, or the code of an error.",
            ("provider", "status"),
        )
        self.model_retries = Counter(
            "parley_model_retries_total", "Retries after transient errors of a provider.", ("provider",)
        )
        self.model_seconds = Histogram(
            "parley_model_request_duration_seconds", "Duration of requests to models.", ("provider",), bounds=LONG
        )
        self.first_seconds = Histogram(
            "parley_model_first_chunk_seconds",
            "Time until the first part of a model's response.",
            ("provider",),
            bounds=LONG,
        )
        self.tokens = Counter(
            "parley_tokens_total",
            "Tokens that providers have reported. Cached input is also input, and reasoning is also output.",
            ("provider", "model", "type"),
        )
        self.cost = Counter(
            "parley_cost_total", "Cost of responses in the currency of the prices.", ("provider", "model")
        )
        self.tool_calls = Counter("parley_tool_calls_total", "Calls of tools by models.", ("tool", "outcome"))
        self.tool_seconds = Histogram(
            "parley_tool_call_duration_seconds",
            "Duration of calls of tools, including waits for approvals.",
            ("tool",),
            bounds=LONG,
        )
        self.approvals = Counter("parley_approvals_total", "Decided approvals.", ("kind", "decision"))
        self.approval_seconds = Histogram(
            "parley_approval_wait_seconds", "Time until an approval was decided.", bounds=LONG
        )
        self.appends = Counter("parley_store_appends_total", "Writes to the store.", ("outcome",))
        self.append_seconds = Histogram(
            "parley_store_append_seconds", "Time until a write to the store was durable.", bounds=SHORT
        )
        self.lag_seconds = Histogram(
            "parley_event_loop_lag_seconds", "Delay of the event loop, measured once a second.", bounds=SHORT
        )
        self.metrics: Metrics = (
            Gauge("parley_info", "The version of the server.", lambda: {(__version__,): 1.0}, ("version",)),
            Gauge(
                "parley_start_time_seconds", "Time of the start, in seconds since the epoch.", _always(time.time())
            ),
            Gauge("parley_clients", "Connected clients.", lambda: {(): clients()}),
            Gauge("parley_conversations_loaded", "Conversations in memory.", self._loaded),
            Gauge("parley_turns_running", "Turns that this process runs, including waiting ones.", self._running),
            Gauge("parley_approvals_waiting", "Turns of this process that wait for an approval.", self._asking),
            Gauge("parley_queued_messages", "Queued messages of the conversations in memory.", self._queued),
            Gauge("parley_leases", "Leases that this process holds.", self._leases),
            Gauge("parley_store_available", "1 if the store can be used.", lambda: {(): is_store_available()}),
            Gauge("parley_store_wal_bytes", "Size of the write-ahead log of SQLite.", lambda: _known(wal_bytes())),
            Gauge("parley_store_free_bytes", "Free space on the disk of SQLite.", lambda: _known(free_bytes())),
            Gauge("parley_resident_memory_bytes", "Memory of the process.", lambda: _known(_memory())),
            Gauge("parley_deltas_total", "Deltas that turns have produced.", lambda: {(): telemetry.deltas}),
            Gauge("parley_events_total", "Events that were appended.", lambda: {(): telemetry.events}),
            *(one for one in vars(self).values() if isinstance(one, Counter | Histogram)),
        )
        for one in self.metrics:
            if isinstance(one, Gauge) and one.name.endswith("_total"):
                one.kind = "counter"
        self._lag: asyncio.TimerHandle | None = None
        telemetry.add(self)

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        self.watch_loop()
        return render(self.metrics)

    def watch_loop(self) -> None:
        """Begin to measure the delay of the event loop, if the measurement has not begun yet. The measurement needs
        a timer that wakes an idle server, so it does not begin before this call.
        """
        if self._lag is None:
            loop = asyncio.get_running_loop()
            self._lag = loop.call_later(LAG_SECONDS, self._measure_lag, loop, loop.time() + LAG_SECONDS)

    def _measure_lag(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.lag_seconds.observe(max(0.0, loop.time() - due))
        self._lag = loop.call_later(LAG_SECONDS, self._measure_lag, loop, loop.time() + LAG_SECONDS)

    def close(self) -> None:
        """Stop observing the telemetry and measuring the delay of the event loop."""
        telemetry.remove(self)
        if self._lag is not None:
            self._lag.cancel()

    # --- reports -----------------------------------------------------------------------

    def started(self, operation: Operation) -> None:
        pass

    def ended(self, operation: Operation) -> None:
        fields, outcome, seconds = operation.fields, operation.outcome, operation.seconds
        match operation.name:
            case "client_request":
                self.requests.add(fields["method"], outcome)
                self.request_seconds.observe(seconds, fields["method"])
            case "turn":
                self.turns.add(outcome)
                self.turn_seconds.observe(seconds)
            case "model_request":
                self._model_request(operation)
            case "tool_call":
                self.tool_calls.add(fields["tool"], outcome)
                self.tool_seconds.observe(seconds, fields["tool"])
            case "approval":
                self.approvals.add(fields["kind"], outcome)
                self.approval_seconds.observe(seconds)
            case _:
                pass

    def _model_request(self, operation: Operation) -> None:
        fields = operation.fields
        provider, model = fields["provider"], fields["model"]
        self.model_requests.add(provider, fields.get("status", operation.outcome))
        self.model_seconds.observe(operation.seconds, provider)
        if "first_seconds" in fields:
            self.first_seconds.observe(fields["first_seconds"], provider)
        if fields.get("retries"):
            self.model_retries.add(provider, by=fields["retries"])
        for kind in ("input", "cached_input", "output", "reasoning_output"):
            if used := fields.get(f"{kind}_tokens"):
                self.tokens.add(provider, model, kind.removesuffix("_output"), by=used)
        if fields.get("cost"):
            self.cost.add(provider, model, by=fields["cost"])

    def noted(self, name: str, fields: dict[str, Any]) -> None:
        pass

    def measured(self, name: str, seconds: float, outcome: str) -> None:
        if name == "store_append":
            self.appends.add(outcome)
            self.append_seconds.observe(seconds)

    # --- parts of the server -----------------------------------------------------------

    def _loaded(self) -> Mapping[Labels, float]:
        return {(): sum(1 for _ in self._conversations)}

    def _running(self) -> Mapping[Labels, float]:
        return {(): sum(one.turn is not None for one in self._conversations)}

    def _asking(self) -> Mapping[Labels, float]:
        return {(): sum(one.turn is not None and one.approvals.open is not None for one in self._conversations)}

    def _queued(self) -> Mapping[Labels, float]:
        return {(): sum(one.queue_length for one in self._conversations)}

    def _leases(self) -> Mapping[Labels, float]:
        return {(): sum(one.is_owner for one in self._conversations)}


def _always(value: float) -> Callable[[], Mapping[Labels, float]]:
    return lambda: {(): value}


def _known(value: float | None) -> Mapping[Labels, float]:
    return {} if value is None else {(): value}


def _memory() -> int | None:
    """Return the resident memory of this process in bytes; None if the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None

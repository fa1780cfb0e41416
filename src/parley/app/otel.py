"""Sends traces and metrics to an OpenTelemetry collector, if the standard variables `OTEL_*` enable this.

Names and attributes follow the semantic conventions for generative AI. Only this module and `collector_session.py`
import the OpenTelemetry libraries and `requests`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from parley.common.metrics import Counter, Gauge, Histogram, Labels
from parley.common.secret_values import SecretValues
from parley.common.telemetry import Operation, telemetry
from parley.common.threads import start_thread
from parley.version import __version__

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

    from parley.app.metrics import ServerMetrics

__all__ = ["OpenTelemetry", "open_telemetry"]

log = logging.getLogger(__name__)

EXTRA: Final = "parley-server[otel]"
READ_SECONDS: Final = 2.0
"""The maximum time, in seconds, for which the thread that exports metrics waits for the event loop."""
CLOSE_SECONDS: Final = 1.0
"""The maximum time, in seconds, for which a shutdown waits for the last export."""

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_ATTRIBUTES: Final = {
    "method": "rpc.method",
    "client_id": "parley.client.id",
    "conversation_id": "gen_ai.conversation.id",
    "turn_id": "parley.turn.id",
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_input_tokens": "gen_ai.usage.cache_read.input_tokens",
    "tool": "gen_ai.tool.name",
    "call_id": "gen_ai.tool.call.id",
    "error": "error.type",
    "first_seconds": "gen_ai.response.time_to_first_chunk",
}
"""A mapping from fields of an operation to the names of span attributes. The attribute of any other field is called
`parley.` followed by the name of the field.
"""
_OPERATIONS: Final = {"turn": "invoke_agent", "model_request": "chat", "tool_call": "execute_tool"}
"""A mapping from the names of operations to values of the span attribute `gen_ai.operation.name`."""
_FAILED: Final = frozenset({"failed", "refused", "unknown_tool"})


def open_telemetry(environ: Mapping[str, str], metrics: Callable[[], ServerMetrics]) -> OpenTelemetry | None:
    """Begin to send traces, metrics or both, as the variables in `environ` enable them. Return the object that
    sends them; None if nothing is sent.

    `metrics` returns the metrics of the server. It is called only if metrics are sent.
    """
    traces, numbers = _is_on(environ, "TRACES"), _is_on(environ, "METRICS")
    if not (traces or numbers):
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        log.warning("OTEL_* variables are set, but nothing is sent: install %s", EXTRA)
        return None
    try:
        return OpenTelemetry(environ, metrics() if numbers else None, has_traces=traces)
    except Exception as error:  # a variable is invalid; the libraries raise errors of many types
        why = SecretValues(environ).redact(str(error))
        log.warning("OpenTelemetry cannot be used, and nothing is sent: %s: %s", type(error).__name__, why)
        return None


def _is_on(environ: Mapping[str, str], signal: str) -> bool:
    """Return whether the variables in `environ` enable `signal`, which is `TRACES` or `METRICS`."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower()
    if exporter:
        if exporter not in ("otlp", "none"):
            log.warning("OTEL_%s_EXPORTER=%s is not supported, expected otlp or none", signal, exporter)
        return exporter == "otlp"
    return bool(environ.get(_ENDPOINT) or environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))


class OpenTelemetry:
    """Sends traces, metrics or both to an OpenTelemetry collector. If traces are enabled, the instance observes the
    telemetry of this process.
    """

    def __init__(self, environ: Mapping[str, str], metrics: ServerMetrics | None, *, has_traces: bool) -> None:
        from opentelemetry.sdk.resources import Resource

        self.wants_content = environ.get(_CONTENT, "").strip().lower() in ("1", "true")
        self._secrets = SecretValues(environ)
        if not log.isEnabledFor(logging.DEBUG):
            logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # the library warns about each attempt
        # Variables take precedence over these defaults.
        resource = Resource.create({"service.name": "parley", "service.version": __version__})
        if environ.get("OTEL_SERVICE_NAME"):
            resource = resource.merge(Resource({"service.name": environ["OTEL_SERVICE_NAME"]}))
        self._exporters: list[OTLPSpanExporter | OTLPMetricExporter] = []
        self._traces: TracerProvider | None = None
        self._numbers: MeterProvider | None = None
        if metrics is not None:
            self._loop = asyncio.get_running_loop()
            self._numbers = self._send_metrics(resource, metrics, environ)
        if has_traces:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor

            self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
            span_exporter = OTLPSpanExporter(session=_session(environ))
            self._exporters.append(span_exporter)
            self._traces.add_span_processor(BatchSpanProcessor(span_exporter))
            self._tracer = self._traces.get_tracer("parley", __version__)
            telemetry.add(self)
            telemetry.takes_parents = True

    # --- traces ------------------------------------------------------------------------

    def started(self, operation: Operation) -> None:
        from opentelemetry import trace

        kind = trace.SpanKind.INTERNAL
        if operation.name == "client_request":
            kind = trace.SpanKind.SERVER
        elif operation.name == "model_request":
            kind = trace.SpanKind.CLIENT
        span = self._tracer.start_span(_span_name(operation), context=_parent(operation), kind=kind)
        operation.handle = span
        if (name := _OPERATIONS.get(operation.name)) is not None:
            span.set_attribute("gen_ai.operation.name", name)

    def ended(self, operation: Operation) -> None:
        from opentelemetry import trace

        span: trace.Span | None = operation.handle
        if span is None:
            return
        for name, value in operation.fields.items():
            if value is not None and name != "traceparent":
                given = value if isinstance(value, bool | int | float) else self._secrets.redact(str(value))
                span.set_attribute(_ATTRIBUTES.get(name, f"parley.{name}"), given)
        span.set_attribute("parley.outcome", operation.outcome)
        if self.wants_content:
            for name, text in operation.content.items():
                span.set_attribute(f"parley.content.{name}", self._secrets.redact(text))
        if operation.outcome in _FAILED:
            span.set_status(trace.StatusCode.ERROR)
        if (tool := operation.fields.get("tool")) and operation.name == "client_request":
            span.update_name(f"{operation.fields['method']} {tool}")
        span.end()

    def noted(self, name: str, fields: dict[str, Any]) -> None:
        pass

    def measured(self, name: str, seconds: float, outcome: str) -> None:
        pass

    # --- metrics -----------------------------------------------------------------------

    def _send_metrics(self, resource: Any, metrics: ServerMetrics, environ: Mapping[str, str]) -> MeterProvider:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

        histograms = [one for one in metrics.metrics if isinstance(one, Histogram)]
        views = [
            View(instrument_name=one.name, aggregation=ExplicitBucketHistogramAggregation(one.bounds))
            for one in histograms
        ]
        exporter = OTLPMetricExporter(session=_session(environ))
        self._exporters.append(exporter)
        reader = PeriodicExportingMetricReader(exporter)
        provider = MeterProvider([reader], resource=resource, views=views, shutdown_on_exit=False)
        meter = provider.get_meter("parley", __version__)
        for one in metrics.metrics:
            if isinstance(one, Histogram):
                instrument = meter.create_histogram(one.name, unit="s", description=one.about)
                one.recorded = lambda seconds, labels, one=one, instrument=instrument: instrument.record(
                    seconds, dict(zip(one.labels, labels, strict=True))
                )
            elif one.kind == "counter":
                meter.create_observable_counter(one.name, [self._reader(one)], description=one.about)
            else:
                meter.create_observable_gauge(one.name, [self._reader(one)], description=one.about)
        metrics.watch_loop()
        return provider

    def _reader(self, metric: Counter | Gauge) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return the callback that reads a metric.

        The exporter calls the callback in its own thread. The callback waits until the event loop has read the
        metric.
        """

        def read_into(found: Future[dict[Labels, float]]) -> None:
            try:
                found.set_result(dict(metric.values if isinstance(metric, Counter) else metric.read()))
            except Exception as error:
                found.set_exception(error)

        def read(options: CallbackOptions) -> Iterable[Observation]:
            from opentelemetry.metrics import Observation

            reading: Future[dict[Labels, float]] = Future()
            try:
                self._loop.call_soon_threadsafe(read_into, reading)
                found = reading.result(READ_SECONDS)
            except (RuntimeError, TimeoutError):
                return []  # the event loop is blocked or closed
            return [
                Observation(float(value), dict(zip(metric.labels, labels, strict=True)))
                for labels, value in found.items()
            ]

        return read

    async def close(self, *, seconds: float) -> None:
        """Stop observing the telemetry, and send the remaining traces and metrics.

        The method returns after at most `seconds` or `CLOSE_SECONDS`, whichever is less. Data that has not been
        sent by then is discarded.
        """
        telemetry.remove(self)
        telemetry.takes_parents = False
        loop, closed = asyncio.get_running_loop(), asyncio.Event()
        with suppress(MemoryError, RuntimeError):  # no thread can be started
            start_thread(partial(self._close, loop, closed), name="close-telemetry")
            try:
                async with asyncio.timeout(min(seconds, CLOSE_SECONDS)):
                    await closed.wait()
            except TimeoutError:
                log.warning("the last traces or metrics were not sent, because the collector does not respond")
        for exporter in self._exporters:
            exporter.shutdown()  # stop the attempts to send

    def _close(self, loop: asyncio.AbstractEventLoop, closed: asyncio.Event) -> None:
        for provider in (self._traces, self._numbers):
            try:
                if provider is not None:
                    provider.shutdown()
            except Exception as error:  # the collector may not be reachable
                log.info("the last traces or metrics were not sent: %s", type(error).__name__)
        with suppress(RuntimeError):  # the event loop may be closed
            loop.call_soon_threadsafe(closed.set)


def _session(environ: Mapping[str, str]) -> Any:
    """Return the HTTP session for an exporter. Return None if an environment variable names a credential provider,
    which then provides the session.
    """
    from parley.app.collector_session import CollectorSession

    return None if any(name.endswith("_CREDENTIAL_PROVIDER") for name in environ) else CollectorSession()


def _span_name(operation: Operation) -> str:
    fields = operation.fields
    match operation.name:
        case "client_request":
            return str(fields["method"])
        case "turn":
            return "invoke_agent parley"
        case "model_request":
            return f"chat {fields['model']}"
        case "tool_call":
            return f"execute_tool {fields['tool']}"
        case name:
            return name


def _parent(operation: Operation) -> Any:
    """Return the trace context of the operation that caused `operation`. If no operation caused it, return the
    context of the client's trace, or an empty context if the client has no trace.
    """
    from opentelemetry import trace
    from opentelemetry.context import Context

    if operation.parent is not None and operation.parent.handle is not None:
        return trace.set_span_in_context(operation.parent.handle, Context())
    given = operation.fields.get("traceparent")
    if isinstance(given, str) and _TRACEPARENT.fullmatch(given):
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        return TraceContextTextMapPropagator().extract({"traceparent": given}, Context())
    return Context()

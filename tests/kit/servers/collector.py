"""A collector of OpenTelemetry on the loopback, which decodes what it receives over HTTP."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["Collector", "Span"]


class Span:
    """A received span."""

    def __init__(self, span: Any) -> None:
        self.name: str = span.name
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        self.attributes = {one.key: _value(one.value) for one in span.attributes}
        self.has_failed = span.status.code == 2


class Collector:
    """Receives traces and metrics. `async with Collector() as collector`."""

    def __init__(self) -> None:
        self.spans: dict[str, list[Span]] = {}
        """The received spans, by name."""
        self.metrics: dict[str, Any] = {}
        """The newest data of each received metric, by name."""
        self.bodies = b""
        self.headers: list[dict[str, str]] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/traces", self._traces)
        app.router.add_post("/v1/metrics", self._metrics)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def until_spans(self, name: str, count: int = 1) -> list[Span]:
        """Wait until the collector has received `count` spans of a name, and return them."""
        while len(self.spans.get(name, ())) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.spans[name]

    async def _traces(self, request: web.Request) -> web.Response:
        found = ExportTraceServiceRequest.FromString(await self._body(request))
        for resource in found.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.setdefault(span.name, []).append(Span(span))
        self._changed.set()
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        found = ExportMetricsServiceRequest.FromString(await self._body(request))
        for resource in found.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics |= {one.name: one for one in scope.metrics}
        self._changed.set()
        return web.Response()

    async def _body(self, request: web.Request) -> bytes:
        body = await request.read()
        self.bodies += body
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return body


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))

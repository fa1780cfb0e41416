"""The variables that turn OpenTelemetry on (`parley.app.otel`)."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from parley.app import otel
from parley.app.collector_session import MAX_RESPONSE_BYTES, CollectorSession
from parley.app.metrics import ServerMetrics
from parley.common.telemetry import telemetry

ON = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}


def no_metrics() -> ServerMetrics:
    raise AssertionError("metrics are not sent")


@pytest.mark.parametrize(
    ("environ", "warning"),
    [
        ({}, ""),
        ({"OTEL_SERVICE_NAME": "x"}, ""),
        ({**ON, "OTEL_SDK_DISABLED": "TRUE"}, ""),
        ({**ON, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, ""),
        (
            {**ON, "OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none"},
            "OTEL_TRACES_EXPORTER=console is not supported, expected otlp or none",
        ),
    ],
)
def test_nothing_is_sent_unless_the_variables_ask_for_it(
    environ: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert otel.open_telemetry(environ, no_metrics) is None
    assert [record.getMessage() for record in caplog.records] == ([warning] if warning else [])


def test_a_missing_package_is_named_in_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otel, "find_spec", lambda name: None)

    assert otel.open_telemetry(ON, no_metrics) is None
    assert "nothing is sent: install parley-server[otel]" in caplog.text


async def test_a_shutdown_without_time_left_does_not_wait_for_the_collector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_connected, is_closed = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_connected.set()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        is_closed.set()

    monkeypatch.setattr(otel, "CLOSE_SECONDS", 1e6)
    async with asyncio.timeout(TIMEOUT_SECONDS), await asyncio.start_server(hang, "127.0.0.1", 0) as collector:
        port = collector.sockets[0].getsockname()[1]
        for name, value in {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "OTEL_BSP_SCHEDULE_DELAY": "1",
        }.items():
            monkeypatch.setenv(name, value)
        sending = otel.open_telemetry(os.environ, no_metrics)
        assert sending is not None
        with telemetry.operation("turn"):
            pass
        await has_connected.wait()
        await sending.close(seconds=0.0)
        await is_closed.wait()

    assert "because the collector does not respond" in caplog.text


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_an_endless_response_of_a_collector_is_not_read(encoding: str) -> None:
    sent, ended = 0, asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nConnection: close\r\n\r\n".encode())
        with suppress(ConnectionError):  # the session closes the connection
            while sent < 1_000_000_000:
                writer.write(b"x" * 65536)
                sent += 65536
                await writer.drain()
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    async with asyncio.timeout(TIMEOUT_SECONDS), await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces"
        with CollectorSession() as session:
            response = await asyncio.to_thread(session.post, url, data=b"x")
        await ended.wait()

    assert response.content == (b"x" * MAX_RESPONSE_BYTES if encoding == "identity" else b"")
    assert sent < 1_000_000_000

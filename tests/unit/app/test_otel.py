"""The variables that turn OpenTelemetry on (`parley.app.otel`)."""

from __future__ import annotations

import pytest

from parley.app import otel
from parley.app.metrics import ServerMetrics

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

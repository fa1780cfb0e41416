"""A pytest plugin that reports the CPU time of every test, with the processes that the test started.

`--cpu-report FILE` writes one JSON object with the seconds by test, and prints the total of each test file.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

__all__: list[str] = []

PROPERTY: Final = "cpu seconds"
SHOWN_FILES: Final = 40


def _used() -> float:
    """Return the CPU seconds of this process and of the processes that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-report", metavar="FILE", help="write the CPU seconds of each test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cpu-report"):
        config.pluginmanager.register(_CpuReport(config), "cpu-report")


class _CpuReport:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = 0.0
        self._seconds: dict[str, float] = {}
        self._collected = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._began = _used()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((PROPERTY, _used() - self._began))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            # The report of a test that ended its process has no CPU time.
            times = (float(str(value)) for name, value in report.user_properties if name == PROPERTY)
            self._seconds[report.nodeid] = next(times, 0.0)

    def pytest_collection_finish(self) -> None:
        self._collected = _used()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        Path(self._config.getoption("--cpu-report")).write_text(json.dumps(self._seconds))
        files: dict[str, float] = defaultdict(float)
        for test, seconds in self._seconds.items():
            files[test.partition("::")[0]] += seconds
        terminalreporter.section("CPU seconds")
        for name, seconds in sorted(files.items(), key=lambda row: -row[1])[:SHOWN_FILES]:
            terminalreporter.write_line(f"{seconds:8.2f}  {name}")
        terminalreporter.write_line(f"{sum(files.values()):8.2f}  all tests")
        terminalreporter.write_line(
            f"{_used():8.2f}  the whole run, {self._collected:.2f} of it before the first test"
        )

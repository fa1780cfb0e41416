"""Fixtures and options of all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kit.servers.in_process import InProcessServer
from kit.servers.postgres import Databases, end_shared_server, no_postgres, shared_server
from kit.servers.preloaded import allow_copies, end_preloaded
from kit.system.printed import PRINTED
from parley.testing.home import Home

pytest_plugins = ["kit.system.cpu_report", "kit.system.workers"]

# No test uses the certificates of the system. Without this setting, each of a thousand servers would read all of
# them.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "kit/system/nobody.pem")

# A shell that starts the tests in the background makes them ignore SIGINT, and the programs that they start would
# inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A child process that crashes writes the stacks of its threads to stderr, which failed tests show.
os.environ["PYTHONFAULTHANDLER"] = "1"

# Properties have no deadline, so that a busy computer does not fail them. `make test` uses the same examples in
# every run, so that an unrelated change does not fail because of an older bug. `make test-long` uses more examples,
# and new ones.
_any = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
settings.register_profile("quick", _any, max_examples=25, derandomize=True)
settings.register_profile("random", _any, max_examples=25)
settings.register_profile("long", _any, max_examples=200)
settings.load_profile("quick")


# The objects that collecting tests creates live until the end, so the garbage collector need not examine them.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--child-processes", action="store_true", help="start every server as a child process")


@pytest.fixture
def servers_in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run servers in the process of the test, except where a test is marked with `child_process`."""
    if (
        not request.config.getoption("--child-processes")
        and request.node.get_closest_marker("child_process") is None
    ):
        monkeypatch.setattr(Home, "server_class", InProcessServer)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start `parley` as copies of one process, except where a test is marked with `fresh_process`."""
    allow_copies(
        not item.config.getoption("--child-processes") and item.get_closest_marker("fresh_process") is None
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send reports from the workers without keywords, which nothing reads and which are most of their bytes."""
    report = yield
    report.keywords = {}
    return report


@pytest.fixture
def databases() -> Iterator[Databases]:
    """Return a factory for PostgreSQL databases. Skip the test if PostgreSQL is not installed."""
    if (why := no_postgres()) is not None:
        pytest.skip(why)
    created = Databases(shared_server())
    yield created
    created.close()


def pytest_sessionfinish() -> None:
    end_preloaded()
    end_shared_server()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines that tests have recorded for the summary."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == PRINTED and report.when == "call":
                    terminalreporter.write_line(value)

"""A pytest plugin that runs the tests in copies of the process that has collected them.

`--workers N` starts N copies, the workers. Collecting the tests takes seconds, and is done once. Each worker takes
the tests of one file after the other, so that fixtures of a module are set up once. One worker takes all tests that
use Chromium, so that it is started once. Further workers run only the
tests that mostly wait, so that the other tests use the processor in the meantime.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple

import pytest

from kit.servers.preloaded import end_preloaded

__all__: list[str] = []

NUMBER_BYTES: Final = 4

WAITING_WORKERS: Final = 4
"""The maximum number of workers that run only tests with the marker `waits`."""

SHARED_FIXTURES: Final = frozenset({"browser"})
"""The fixtures that take much CPU time to set up. One worker runs all tests that use such a fixture, except tests
that are marked with `long` or `waits`, which any worker runs.
"""

HANG_SECONDS: Final = 60.0
"""How long after its time limit a test may end. A shorter time limit counts twice instead.

At the limit, pytest-timeout raises an exception in the test. The test can still hang, for example if its event loop
waits for a task that ignores its cancellation.
"""

CHECK_SECONDS: Final = 1.0
"""How often the time limits of the workers are checked."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers", type=int, default=0, metavar="N", help="run the tests in N copies of this process"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that mostly wait first, and then the tests with a shared fixture.

    Otherwise such a group of tests could begin last, and the run would wait for it alone.
    """
    items.sort(key=lambda item: (not _has_marker(item, "waits"), _shared_fixture(item) is None))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    number = session.config.getoption("--workers")
    if not number or session.testsfailed or session.config.option.collectonly:
        return None
    groups = _groups(session.items)
    with TemporaryFile(buffering=0) as waiting_file, TemporaryFile(buffering=0) as other_file:
        waiting = _Queue(waiting_file.fileno(), [one for one in groups if _is_waiting(session.items[one[0]])])
        others = _Queue(other_file.fileno(), [one for one in groups if not _is_waiting(session.items[one[0]])])
        _Workers(session, [others, waiting]).run(number)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def _groups(items: list[pytest.Item]) -> list[range]:
    """Return the positions of the tests that one worker runs: the tests of a file, the tests with a shared fixture,
    or a single long test.
    """
    positions = (list(group) for _, group in groupby(range(len(items)), lambda number: _group(items[number])))
    return [range(group[0], group[-1] + 1) for group in positions]


def _group(item: pytest.Item) -> object:
    if _has_marker(item, "waits") or _has_marker(item, "long"):
        return item
    return _shared_fixture(item) or item.path


def _shared_fixture(item: pytest.Item) -> str | None:
    """Return the fixture because of which one worker runs this test and the tests of other files; None if there is
    no such fixture.
    """
    return next((name for name in getattr(item, "fixturenames", ()) if name in SHARED_FIXTURES), None)


def _is_waiting(item: pytest.Item) -> bool:
    """Return whether the test mostly waits. The limits of long tests do not allow for other tests beside them."""
    return _has_marker(item, "waits") and not _has_marker(item, "long")


def _has_marker(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None


def _time_limit(item: pytest.Item) -> float:
    """Return the limit of pytest-timeout in seconds; 0 if there is none."""
    if (marker := item.get_closest_marker("timeout")) is not None:
        return float(marker.args[0])
    try:
        return float(item.config.getoption("timeout", None) or item.config.getini("timeout") or 0)
    except ValueError:  # pytest-timeout is not loaded
        return 0.0


class _Queue:
    """Groups of tests that no worker has taken. All workers share the position in an open file."""

    def __init__(self, descriptor: int, groups: list[range]) -> None:
        self._descriptor, self._groups = descriptor, groups
        os.pwrite(descriptor, b"".join(number.to_bytes(NUMBER_BYTES) for number in range(len(groups))), 0)

    def __len__(self) -> int:
        return len(self._groups)

    def take(self) -> range | None:
        read = os.read(self._descriptor, NUMBER_BYTES)
        return self._groups[int.from_bytes(read)] if read else None

    def clear(self) -> None:
        os.ftruncate(self._descriptor, 0)

    @property
    def is_cleared(self) -> bool:
        return bool(self._groups) and os.fstat(self._descriptor).st_size == 0


class _Running(NamedTuple):
    """A worker, its queues, the tests of its group from the running test on, and the time limit of this test."""

    pid: int
    queues: Sequence[_Queue]
    tests: range
    ends_at: float


class _Workers:
    def __init__(self, session: pytest.Session, queues: Sequence[_Queue]) -> None:
        """Run the tests of these queues. The last queue has the tests that mostly wait."""
        self._session, self._config, self._queues = session, session.config, queues
        self._running: dict[Connection, _Running] = {}
        self._started = 0

    def run(self, number: int) -> None:
        """Run all tests, or the tests before `session.shouldfail` is set."""
        try:
            waiting = self._queues[-1:]
            for queues in [self._queues] * number + [waiting] * min(number, len(waiting[0]), WAITING_WORKERS):
                self._start(queues, range(0))
            while self._running:
                for connection in wait(list(self._running), CHECK_SECONDS):
                    assert isinstance(connection, Connection)
                    self._receive(connection)
                self._abort_hanging()
                if self._session.shouldfail or self._session.shouldstop:
                    for queue in self._queues:
                        queue.clear()
        finally:
            for connection, worker in self._running.items():
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
                connection.close()

    def _start(self, queues: Sequence[_Queue], tests: range) -> None:
        """Start a worker with these tests, which then takes tests from the queues."""
        ours, theirs = Pipe(duplex=False)
        base = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # private in pytest
        self._started += 1
        if not (pid := os.fork()):
            status = 1
            # A worker that cannot send its reports ends, because only this process has the reading ends.
            for connection in (ours, *self._running):
                connection.close()
            try:
                _Worker(self._session, queues, theirs, base / f"worker-{self._started}").run(tests)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()
        self._running[ours] = self._runs(pid, queues, tests)

    def _runs(self, pid: int, queues: Sequence[_Queue], tests: range) -> _Running:
        limit = _time_limit(self._session.items[tests[0]]) if tests else 0.0
        return _Running(
            pid, queues, tests, time.monotonic() + limit + min(limit, HANG_SECONDS) if limit else math.inf
        )

    def _abort_hanging(self) -> None:
        """Abort the workers whose test hangs. Each of them prints a stack trace."""
        for worker in self._running.values():
            if worker.ends_at < time.monotonic():
                os.kill(worker.pid, signal.SIGABRT)

    def _receive(self, connection: Connection) -> None:
        try:
            tests, reports = connection.recv()
        except EOFError:
            self._ended(connection)
            return
        worker = self._running[connection]
        if tests != worker.tests:  # otherwise the test has failed and is about to end
            self._running[connection] = self._runs(worker.pid, worker.queues, tests)
        for data in reports:
            self._report(self._config.hook.pytest_report_from_serializable(config=self._config, data=data))

    def _report(self, report: pytest.TestReport) -> None:
        self._config.hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            self._config.hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)

    def _ended(self, connection: Connection) -> None:
        """Report the test that has ended its worker, and start another worker with the rest of the group."""
        worker = self._running.pop(connection)
        connection.close()
        _, status = os.waitpid(worker.pid, 0)
        if not worker.tests:
            return
        item = self._session.items[worker.tests[0]]
        why = f"the process of the test has ended (exit code {os.waitstatus_to_exitcode(status)})"
        for when, outcome, text in (("call", "failed", why), ("teardown", "passed", None)):
            self._report(
                pytest.TestReport(item.nodeid, item.location, {}, outcome, text, when)  # type: ignore[arg-type]  # decoded from JSON
            )
        self._start(worker.queues, worker.tests[1:])


class _Worker:
    """A copy of the process, in which tests run."""

    def __init__(
        self, session: pytest.Session, queues: Sequence[_Queue], connection: Connection, base: Path
    ) -> None:
        self._session, self._queues, self._connection = session, queues, connection
        self._config = session.config
        self._tests = range(0)
        self._reports: list[Any] = []
        random.seed()
        base.mkdir(mode=0o700)
        self._config._tmp_path_factory._basetemp = base  # type: ignore[attr-defined]  # private in pytest
        plugins = self._config.pluginmanager
        if self._config.option.capture == "fd":
            # The copies share the open files of stdout and stderr, so each copy opens its own files for these
            # descriptors.
            captured = plugins.getplugin("capturemanager")._global_capturing
            for stream in (captured.out, captured.err):
                with TemporaryFile() as own:
                    os.dup2(own.fileno(), stream.tmpfile.fileno(), inheritable=False)
        plugins.unregister(name="terminalreporter")
        plugins.register(self)

    def run(self, tests: range) -> None:
        for group in self._groups(tests):
            for number in group:
                if any(queue.is_cleared for queue in self._queues):
                    break
                self._send(range(number, group.stop))
                item = self._session.items[number]
                following = self._session.items[number + 1] if number + 1 < group.stop else None
                self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._session._setupstate.teardown_exact(None)  # the fixtures of a group that was not completed
        self._send(range(0))
        end_preloaded()

    def _groups(self, first: range) -> Iterator[range]:
        yield first
        for queue in self._queues:
            while (group := queue.take()) is not None:
                yield group

    def _send(self, tests: range) -> None:
        self._tests = tests
        self._connection.send((tests, self._reports))
        self._reports.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
        if report.failed:
            self._send(self._tests)  # at once, because the teardown after a failure can end or hang the process

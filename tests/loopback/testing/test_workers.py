"""`--workers`, in a separate pytest run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os

def test_passes(tmp_path):
    print("not shown")

def test_ends_its_process():
    os._exit(3)

def test_comes_after_it(tmp_path):
    print("shown")
    assert False
"""


HANGING_TESTS = """
import pytest

@pytest.mark.timeout(0.5)
def test_hangs():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

def test_comes_after_it():
    pass
"""

TESTS_THAT_WAIT_FOR_EACH_OTHER = """
import time
from pathlib import Path

import pytest

@pytest.mark.waits
def test_waits():
    meet("one", "other")

def test_other():
    meet("other", "one")

def meet(mine, other):
    Path(mine).touch()
    until = time.monotonic() + 60
    while not Path(other).exists():
        assert time.monotonic() < until
        time.sleep(0.01)
"""


def run_pytest(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    for variable in ("CI", "BUILD_NUMBER"):  # with these variables, pytest repeats the reasons in its summary
        environment.pop(variable, None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "kit.system.workers", *options],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_test_is_reported_even_if_one_ends_its_process(tmp_path: Path) -> None:
    for name in ("test_one.py", "test_other.py"):
        (tmp_path / name).write_text(TESTS)

    run = run_pytest(tmp_path, "--workers=2")

    assert run.stdout.splitlines()[-1].startswith("4 failed, 2 passed"), run.stdout
    assert run.stdout.count("the process of the test has ended (exit code 3)") == 2
    assert (run.stdout.count("\nshown\n"), "not shown" in run.stdout, run.returncode) == (2, False, 1)


@pytest.mark.long
def test_a_test_that_ignores_its_time_limit_is_ended_with_a_stack_trace(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING_TESTS)

    run = run_pytest(tmp_path, "--workers=1", "-p", "pytest_timeout")

    assert run.stdout.splitlines()[-1].startswith("1 failed, 1 passed"), run.stdout
    assert "the process of the test has ended (exit code -6)" in run.stdout
    assert "in test_hangs" in run.stderr


def test_tests_that_mostly_wait_run_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "test_waiting.py").write_text(TESTS_THAT_WAIT_FOR_EACH_OTHER)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = waits\n")

    run = run_pytest(tmp_path, "--workers=1")

    assert run.stdout.splitlines()[-1].startswith("2 passed"), run.stdout

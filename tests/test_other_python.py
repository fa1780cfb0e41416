"""Parley works with the Python of the system, which may be older than the one that runs the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kit.system.other_python import Unusable, find
from kit.system.printed import PRINTED

ROOT: Final = Path(__file__).parent.parent

QUICK: Final = (
    "tests/unit/agent/test_safe_scripts.py",
    "tests/unit/tools/test_command_environment.py",
    "tests/property/test_shell_lexer.py",
    "tests/scenario/test_shell_calls.py::test_of_a_command_that_succeeds_the_model_reads_stdout",
)
SUBSET: Final = (
    *QUICK,
    "tests/unit/tools/test_parsed_commands.py",
    "tests/unit/rpc/test_depth.py",
    "tests/scenario/test_scripts_of_the_model.py",
    "tests/scenario/test_patch_calls.py::test_a_patch_is_applied_however_it_is_spelt[chat]",
    "tests/scenario/test_tool_server_calls.py::test_every_kind_of_call_is_shown_and_answered_as_it_should_be[chat]",
)
"""The tests of modules that parse text from the model and from programs, and of a turn with each kind of tool."""

SECONDS: Final = 280
FROZEN_SECONDS: Final = 120
"""The timeout of a single test in seconds. A test that takes longer would never end."""


@pytest.mark.parametrize("subset", [QUICK, pytest.param(SUBSET, marks=pytest.mark.long)], ids=["quick", "long"])
def test_a_subset_of_the_tests_passes_on_another_python(
    subset: tuple[str, ...], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    try:
        other = find(tmp_path / "python")
    except Unusable as why:
        pytest.skip(f"nothing ran on another Python: {why}")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [
            str(other.executable),
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            "not long",
            "--timeout",
            str(FROZEN_SECONDS),
            "-p",
            "no:xdist",
            "-p",
            "no:cacheprovider",
            *subset,
        ],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    *_, summary = run.stdout.splitlines()
    record_property(PRINTED, f"on another Python: {other.description}: {summary}")

    assert run.returncode == 0, f"{other.description}:\n{run.stdout}"

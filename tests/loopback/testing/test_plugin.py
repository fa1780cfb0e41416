"""The pytest plugin, in separate pytest runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TEST_OF_AN_INTEGRATOR = """
import pytest

@pytest.mark.asyncio
async def test_a_model_is_there(parley_model):
    assert parley_model.base_url.startswith("http://127.0.0.1:")
"""


def run_pytest(directory: Path, *options: str, **env: str) -> str:
    """Run pytest on a test that uses the plugin; return its output."""
    (directory / "test_mine.py").write_text(TEST_OF_AN_INTEGRATOR)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=directory,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.stdout


@pytest.mark.parametrize("mode", ["strict", pytest.param("auto", marks=pytest.mark.long)])
def test_the_fixtures_work_in_both_modes_of_pytest_asyncio(tmp_path: Path, mode: str) -> None:
    printed = run_pytest(tmp_path, "-o", "asyncio_default_fixture_loop_scope=function", f"--asyncio-mode={mode}")

    assert "1 passed" in printed


def modules_after(program: str) -> set[str]:
    """Return the modules that are imported after `program` has run."""
    run = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(run.stdout.split())


def test_without_pytest_asyncio_a_fixture_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "pytest_asyncio.py").write_text("raise ImportError")
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(tmp_path)}
    printed = run_pytest(tmp_path, "-p", "parley.testing.fixtures", **env)

    assert "the fixture `parley_model` requires pytest-asyncio" in printed


def test_importing_the_plugin_imports_little_of_parley() -> None:
    imported = modules_after("import parley.testing.fixtures")

    assert {name for name in imported if name.startswith("parley")} == {
        "parley",
        "parley.testing",
        "parley.testing.fixtures",
        "parley.version",
    }
    assert not imported & {"msgspec", "aiohttp", "mcp_types"}


def test_importing_parley_imports_its_version_and_nothing_else() -> None:
    imported = modules_after("import parley")

    assert {name for name in imported if name.startswith("parley")} == {"parley", "parley.version"}
    assert not imported & {"asyncio", "msgspec", "aiohttp"}

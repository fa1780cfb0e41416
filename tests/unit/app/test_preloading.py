"""Loading all modules of a server before the first command runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import parley
from kit.system.commands import TIMEOUT_SECONDS
from parley.app import preloading
from parley.app.preloading import load_all_modules

ROOT: Final = Path(parley.__file__).parent
NOT_IN_A_SERVER: Final = ("cli", "client", "testing", "__main__")

LOADED: Final = """
import json, sys
from parley.app.preloading import load_all_modules
load_all_modules()
print(json.dumps([*sys.modules]))
"""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Return the modules of a new process that has loaded all modules of a server."""
    words = (sys.executable, "-c", LOADED)
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS)
    return set(json.loads(done.stdout))


def modules_of_a_server() -> set[str]:
    paths = (path.relative_to(ROOT).with_suffix("") for path in ROOT.rglob("*.py"))
    return {
        ".".join(["parley", *(part for part in path.parts if part != "__init__")])
        for path in paths
        if path.parts[0] not in NOT_IN_A_SERVER
    }


def test_every_module_that_a_server_may_need_is_loaded(loaded: set[str]) -> None:
    assert modules_of_a_server() - loaded == set()
    assert {"aiohttp", "sqlite3", "tomllib", "encodings.idna"} <= loaded


def test_the_modules_of_other_programs_are_not_loaded(loaded: set[str]) -> None:
    assert {name for name in loaded if name.startswith(("parley.cli", "parley.client", "parley.testing"))} == set()


def test_a_server_starts_without_modules_that_only_later_work_needs() -> None:
    program = "import sys, parley.app.serving; sys.stdout.write(' '.join(sys.modules))"
    done = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS
    )
    late = {"parley.workspaces", "aiohttp", "json", "urllib.parse", "sqlite3.dump", "shutil"}

    assert "parley.app.lazy_workspaces" in done.stdout.split()
    assert late & set(done.stdout.split()) == set()


def test_a_module_that_is_not_installed_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloading, "_IMPORTED_LATE", ("parley_missing", "colorsys"))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)

    load_all_modules()

    assert "colorsys" in sys.modules


def test_while_modules_are_loaded_other_threads_get_their_turn_sooner_and_not_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, during = sys.getswitchinterval(), []

    def failing(name: str) -> Any:
        during.append(sys.getswitchinterval())
        raise RuntimeError(name)

    monkeypatch.setattr("importlib.import_module", failing)
    with pytest.raises(RuntimeError):
        load_all_modules()

    assert during[0] < before
    assert sys.getswitchinterval() == before

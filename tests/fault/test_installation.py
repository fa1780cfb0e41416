"""Where Parley is installed, as real processes find it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import parley

PRINT = "import json; from parley.config.installation import installed_paths; print(json.dumps(installed_paths()))"


def installed(*options: str, **env: str) -> list[str]:
    variables = {**os.environ, **env}
    said = subprocess.run(
        [sys.executable, *options, "-c", PRINT], env=variables, check=True, stdout=subprocess.PIPE
    )
    found: list[str] = json.loads(said.stdout)
    return found


def test_the_package_the_environment_and_all_that_python_loads_modules_from_is_installed(tmp_path: Path) -> None:
    found = installed(
        "-P",
        PYTHONPATH=str(tmp_path / "more"),
        PYTHONPYCACHEPREFIX=str(tmp_path / "compiled"),
        SSL_CERT_FILE=str(tmp_path / "certificates"),
        LD_LIBRARY_PATH=f"/usr/lib:{tmp_path}/libraries",
    )

    expected = {
        *(os.path.dirname(parley.__file__), os.path.dirname(os.path.realpath(sys.executable))),
        *(str(tmp_path / name) for name in ("more", "compiled", "certificates", "libraries")),
        os.path.dirname(json.__path__[0]),
    }
    assert expected <= set(found)
    if os.path.exists(os.path.join(sys.prefix, "pyvenv.cfg")):
        assert sys.prefix in found


def test_the_settings_of_an_openssl_that_lies_beside_python_are_installed_too(tmp_path: Path) -> None:
    for name in ("bin", "ssl", "share"):
        (tmp_path / name).mkdir()
    elsewhere = f"import sys; sys.prefix = sys.base_prefix = {str(tmp_path)!r}; {PRINT}"

    said = subprocess.run([sys.executable, "-c", elsewhere], check=True, stdout=subprocess.PIPE)

    found = [path for path in json.loads(said.stdout) if os.path.dirname(path) == str(tmp_path)]
    assert found == [str(tmp_path / "bin"), str(tmp_path / "ssl")]


@pytest.mark.fresh_process
def test_no_module_is_loaded_from_the_directory_that_parley_was_started_in(tmp_path: Path) -> None:
    for name in ("aiodns", "tomllib", "sqlite3"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")

    ended = subprocess.run(
        [sys.executable, "-m", "parley", "doctor"],
        cwd=tmp_path,
        env={**os.environ, "PARLEY_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "planted" not in ended.stderr
    assert "sandbox" in ended.stdout

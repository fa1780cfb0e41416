"""A Python that differs from the one that runs the tests and has the same packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from msgspec import Struct, json

__all__ = ["NAMED_BY", "OtherPython", "Unusable", "find"]

NAMED_BY: Final = "PARLEY_TEST_PYTHON"
"""The variable that names the other Python; the default is the Python of the system."""

SYSTEM: Final = "/usr/bin/python3"
OLDEST: Final = (3, 11)
ROOT: Final = Path(__file__).parents[3]
SECONDS: Final = 280
"""The time limit for the setup in seconds. Packages may have to be installed."""

_FACTS: Final = """
import json, sys, sysconfig
version = list(sys.version_info[:3])
print(json.dumps({"version": version, "abi": sysconfig.get_config_var("SOABI"), "build": sys.version}))
"""


class Unusable(Exception):
    """Raised when there is no other Python to run tests with. The text gives the reason."""


class _Facts(Struct, frozen=True):
    version: tuple[int, int, int]
    abi: str
    build: str


class OtherPython(Struct, frozen=True):
    """An interpreter that can import Parley and everything that its tests need."""

    executable: Path
    description: str


def find(folder: Path) -> OtherPython:
    """Return the other Python, in a virtual environment that is created in `folder`.

    If the other Python has the same ABI as the Python that runs the tests, it uses the packages of that Python.
    Otherwise the packages of the lock file are installed.

    Raises:
        Unusable: there is no other Python, it is too old or the same, or its packages cannot be installed.
    """
    given = os.environ.get(NAMED_BY, SYSTEM)
    named = os.path.abspath(shutil.which(given) or given)
    try:
        facts = _facts_of(named)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unusable(f"{named} cannot be run: {error}") from error
    version = ".".join(map(str, facts.version))
    if facts.version[:2] < OLDEST:
        raise Unusable(f"{named} is Python {version}, and Parley needs 3.11")
    if facts.build == sys.version:
        raise Unusable(f"{named} is the Python {version} that runs the tests")
    try:
        if facts.abi == sysconfig.get_config_var("SOABI"):
            _borrow_packages(named, folder)
        else:
            _install_packages(named, folder)
    except subprocess.SubprocessError as error:
        raise Unusable(f"no virtual environment with the packages can be made for {named}: {error}") from error
    return OtherPython(folder / "bin" / "python", f"{named}, Python {version}")


def _borrow_packages(python: str, folder: Path) -> None:
    """Make a virtual environment that finds the packages of the Python that runs the tests."""
    _run(python, "-m", "venv", "--without-pip", str(folder))
    (site_packages,) = folder.glob("lib/python3*/site-packages")
    (site_packages / "parley.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")


def _install_packages(python: str, folder: Path) -> None:
    _run(python, "-m", "venv", str(folder))
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--require-hashes", "-r", str(ROOT / "requirements.lock"))
    _run(*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT))


def _facts_of(python: str) -> _Facts:
    return json.decode(_run(python, "-I", "-S", "-c", _FACTS), type=_Facts)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, cwd="/")
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr.strip().rpartition("\n")[2])
    return done.stdout

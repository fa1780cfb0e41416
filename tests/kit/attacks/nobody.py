"""Runs Python as an unprivileged user, if the tests run as root."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Final

import pytest

__all__ = ["NOBODY", "as_nobody"]

NOBODY: Final = 64_217
"""A user id that no account has."""

MAX_SECONDS: Final = 100


def as_nobody(*words: str, prepared: str = "") -> str:
    """Run Python with these arguments as the user `NOBODY`, and return its output. Skip the test if that is
    impossible.

    A script of the superuser may first prepare mounts, which no other process sees.
    """
    if os.getuid():
        pytest.skip("the tests run as an ordinary user anyway")
    python = _python()
    if python is None:
        pytest.skip("no Python that an ordinary user may run can import this checkout")
    done = _run(python, *words) if not prepared else _run_prepared(prepared, python, *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@cache
def _python() -> str | None:
    """Return a Python of this version that the user may run."""
    name = "python{}.{}".format(*sys.version_info)
    for place in (os.path.realpath(sys.executable), f"/usr/local/bin/{name}", f"/usr/bin/{name}"):
        try:
            if _run(place, "-c", "import kit.attacks.confined").returncode == 0:
                return place
        except OSError:
            continue
    return None


def _run_prepared(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    become = f'exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups "$0" "$@"'
    return _run("unshare", "--mount", "sh", "-ec", f"{script}\n{become}", *words, user=0)


def _run(*words: str, user: int = NOBODY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        user=user,
        group=user,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=MAX_SECONDS,
        check=False,
    )

"""File systems that a test mounts for one process and whatever that starts, where the system lets it."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from typing import Final

import pytest

__all__ = ["MOUNTS", "UNSHARED"]

UNSHARED: Final = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
"""Words in front of a script that may mount."""


@cache
def no_mounts() -> str:
    """Why a test cannot mount something for itself; empty: it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run((*UNSHARED, "mount -t tmpfs none /tmp"), capture_output=True, text=True, check=False)
    return tried.stderr.strip()


MOUNTS: Final = pytest.mark.skipif(bool(no_mounts()), reason=no_mounts())

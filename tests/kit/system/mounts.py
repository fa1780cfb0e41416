"""Mounts for one process and its children, if the system allows them."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from typing import Final

import pytest

__all__ = ["MOUNTS", "UNSHARED"]

UNSHARED: Final = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
"""The prefix of a command line whose script may mount."""


@cache
def no_mounts() -> str:
    """Return why a test cannot mount file systems; empty if it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run((*UNSHARED, "mount -t tmpfs none /tmp"), capture_output=True, text=True, check=False)
    return tried.stderr.strip()


MOUNTS: Final = pytest.mark.skipif(bool(no_mounts()), reason=no_mounts())

"""The sandbox mechanisms of this computer, tested once without using Parley.

`BUBBLEWRAP` and `LANDLOCK` mark tests that need one of them. `MECHANISMS` is for tests that run with each:
`@pytest.mark.parametrize("mechanism", MECHANISMS)`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from functools import cache
from typing import Final

import pytest

from kit.system import kernels
from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["BUBBLEWRAP", "LANDLOCK", "MECHANISMS", "SANDBOX", "no_bubblewrap", "no_landlock"]


_CREATE_RULESET: Final = 444
"""The number of `landlock_create_ruleset` on all supported machines."""

_VERSION: Final = 1
"""The flag that requests the version of Landlock instead of a ruleset."""


@cache
def no_bubblewrap() -> str | None:
    """Return why bubblewrap does not work here; None if it works."""
    if sys.platform != "linux":
        return "bubblewrap is for Linux"
    launcher = next((place for place in kernels.BUBBLEWRAP if os.path.exists(place)), None)
    if launcher is None:
        return f"bubblewrap is not installed: it is none of {', '.join(kernels.BUBBLEWRAP)}"
    # Parley uses namespaces for users, processes and the network as well.
    words = (launcher, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true")
    try:
        tried = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run here: {error}"
    return None if tried.returncode == 0 else f"bubblewrap does not work here: {tried.stderr.strip()}"


@cache
def no_landlock() -> str | None:
    """Return why Landlock does not work here; None if it works."""
    if sys.platform != "linux":
        return "Landlock is for Linux"
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return None if version >= 1 else "this kernel has no Landlock, or it is switched off"


BUBBLEWRAP: Final = pytest.mark.skipif(no_bubblewrap() is not None, reason=no_bubblewrap() or "")
LANDLOCK: Final = pytest.mark.skipif(no_landlock() is not None, reason=no_landlock() or "")

SANDBOX: Final = pytest.mark.skipif(
    no_bubblewrap() is not None and no_landlock() is not None,
    reason=f"{no_bubblewrap()}; {no_landlock()}",
)
"""Marks tests that need one of the mechanisms."""

MECHANISMS: Final = (pytest.param("bubblewrap", marks=BUBBLEWRAP), pytest.param("landlock", marks=LANDLOCK))

"""Runs Git without any user's configuration, for comparisons with Parley."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["git"]


_SETTINGS: Final = (
    "commit.gpgSign=false",
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "diff.indentHeuristic=false",
    "gc.auto=0",
    "user.email=user@example.invalid",
    "user.name=user",
)


def git(*arguments: str, cwd: Path, stdin: bytes = b"", status: int = 0) -> bytes:
    """Run git and return its output. It must exit with this status and write nothing to stderr."""
    done = subprocess.run(
        ["git", *(word for setting in _SETTINGS for word in ("-c", setting)), *arguments],
        cwd=cwd,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, b""), done.stderr
    return done.stdout

"""Downloads the peers with npm into a cache outside the repository."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bench.servers import CodexAppServer, CodexMcp, Server

__all__ = ["fetch_peers"]

FETCH_SECONDS: Final = 300


class _Package(NamedTuple):
    name: str
    binary: str
    """The path of the program in the package."""
    server: Callable[[Path], Server]


_PACKAGES: Final = (
    _Package("@openai/codex@0.21.0", "bin/codex-x86_64-unknown-linux-musl", CodexMcp),
    _Package("@openai/codex@0.166.0-linux-x64", "vendor/x86_64-unknown-linux-musl/bin/codex", CodexAppServer),
)


def fetch_peers(report: Callable[[str], None]) -> tuple[list[Server], list[str]]:
    """Download the peers that are not in the cache.

    Returns:
        The peers that can run on this computer, and for each other peer a line with its name and the reason.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return [], [f"{package.name}: runs on Linux on x86-64 only" for package in _PACKAGES]
    servers: list[Server] = []
    missing: list[str] = []
    for package in _PACKAGES:
        try:
            servers.append(package.server(_fetch(package, report)))
        except _NotFetched as reason:
            missing.append(f"{package.name}: {reason}")
    return servers, missing


class _NotFetched(Exception):
    """Raised when a peer cannot be downloaded."""


def _fetch(package: _Package, report: Callable[[str], None]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parley-bench"
    directory = cache / package.name.rpartition("@")[2]
    binary = directory / "node_modules" / "@openai" / "codex" / package.binary
    if binary.exists():
        return binary
    npm = shutil.which("npm")
    if npm is None:
        raise _NotFetched("npm is not installed")
    report(f"fetching {package.name}")
    directory.mkdir(parents=True, exist_ok=True)
    command = (
        npm,
        "install",
        "--prefix",
        str(directory),
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        package.name,
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise _NotFetched(f"npm took longer than {FETCH_SECONDS} s") from None
    if done.returncode != 0 or not binary.exists():
        said = done.stderr.strip().splitlines()
        raise _NotFetched(f"npm failed: {said[-1] if said else done.returncode}")
    return binary

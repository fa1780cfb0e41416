"""A PostgreSQL primary with a synchronous standby, for tests that kill the primary."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from kit.servers.postgres import PostgresServer, with_connection
from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["PostgresPair", "postgres_pair"]

T = TypeVar("T")


class PostgresPair:
    """A primary, and a synchronous standby that acknowledges each commit.

    `promote` makes the standby the primary.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._numbers = directory, itertools.count(1)
        self.primary = PostgresServer(directory / "server0", fsync=True)
        self.standby: PostgresServer | None = None

    @property
    def url(self) -> str:
        """The URL of the database `postgres` on both servers."""
        servers = [self.primary, *(() if self.standby is None else (self.standby,))]
        return self.url_of(*(f"127.0.0.1:{one.port}" for one in servers))

    def url_of(self, *hosts: str) -> str:
        """Return the URL of the database on several servers."""
        parts = urlsplit(self.primary.url)
        return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{','.join(hosts)}"))

    async def start(self, **options: str) -> None:
        """Create and start the servers. `options` are settings of the standby."""
        await _in_thread(self.primary.create)
        await self.add_standby(**options)

    async def add_standby(self, **options: str) -> None:
        """Stop the primary, copy it to a new standby, and start both."""
        await _in_thread(self.primary.stop)
        self.standby = await _in_thread(
            lambda: self.primary.standby(self._directory / f"server{next(self._numbers)}")
        )
        self.standby.options |= options
        self.primary.options = {"synchronous_standby_names": "*"}
        await _in_thread(self.primary.start)
        await _in_thread(self.standby.start)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await with_connection(self.primary.url, _wait_for_standby)

    async def kill_primary(self) -> None:
        """Kill all processes of the primary."""
        await _in_thread(self.primary.kill)

    async def promote(self) -> None:
        """Make the standby the primary. Afterwards there is no standby."""
        assert self.standby is not None
        # A call that waits for the promotion would delay the standby, which first applies the rest of the log.
        await with_connection(self.standby.url, lambda db: db.execute("SELECT pg_promote(false)"))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            recovering = "SELECT pg_is_in_recovery()"
            while await with_connection(self.standby.url, lambda db: db.fetchval(recovering)):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
        self.primary, self.standby = self.standby, None

    def remove(self) -> None:
        """Stop the servers and remove their files."""
        for one in (self.primary, self.standby):
            if one is not None:
                with suppress(OSError):
                    one.signal_all(signal.SIGCONT)
                one.remove()
        shutil.rmtree(self._directory, ignore_errors=True)


async def _wait_for_standby(db: Any) -> None:
    missing = "SELECT count(*) = 0 FROM pg_stat_replication WHERE sync_state = 'sync'"
    while await db.fetchval(missing):  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="parley-postgres-pair-"))
    directory.chmod(0o755)  # the servers may run as another user
    return directory


@asynccontextmanager
async def postgres_pair(**options: str) -> AsyncIterator[PostgresPair]:
    """Start a primary and a synchronous standby. `options` are settings of the standby."""
    pair = PostgresPair(_directory())
    try:
        await pair.start(**options)
        yield pair
    finally:
        await _in_thread(pair.remove)

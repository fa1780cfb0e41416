"""A PostgreSQL server for measurements, with `fsync` on and the settings of a small production server."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from bench.report import NotAvailable
from bench.servers import ON_DISK

if TYPE_CHECKING:
    from kit.servers.postgres import PostgresServer

__all__ = ["database_cpu_seconds", "database_url", "postgres_server"]

TESTS: Final = Path(__file__).parents[1] / "tests"
SETTINGS: Final = {"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "on"}


@contextmanager
def postgres_server(*, with_standby: bool = False) -> Iterator[tuple[PostgresServer, PostgresServer | None]]:
    """Run a server, and a synchronous standby if `with_standby` is true, until the block ends.

    Raises:
        NotAvailable: PostgreSQL is not installed.
    """
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    from kit.servers.postgres import PostgresServer, no_postgres

    if (why := no_postgres()) is not None:
        raise NotAvailable(why)
    with tempfile.TemporaryDirectory(prefix="parley-bench-", dir=ON_DISK) as directory:
        os.chmod(directory, 0o755)  # the server runs as another user
        server = PostgresServer(Path(directory, "server"), fsync=True)
        standby: PostgresServer | None = None
        server.options |= SETTINGS
        server.create()
        try:
            if with_standby:
                standby = server.standby(Path(directory, "standby"))
                standby.options |= SETTINGS
                server.options["synchronous_standby_names"] = "*"
            server.start()
            if standby is not None:
                standby.start()
            yield server, standby
        finally:
            for one in (server, standby):
                if one is not None:
                    one.remove()


def database_url(*servers: PostgresServer) -> str:
    """Return the URL of the database on several servers."""
    parts = urlsplit(servers[0].url)
    hosts = ",".join(f"127.0.0.1:{one.port}" for one in servers)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{hosts}"))


def database_cpu_seconds(server: PostgresServer) -> float:
    """Return the CPU time of all processes of a server, in seconds, including those that have ended."""
    total = 0
    main = server.pid
    for pid in (main, *map(int, Path(f"/proc/{main}/task/{main}/children").read_text().split())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue  # the process ended in the meantime
        total += int(fields[11]) + int(fields[12])
        if pid == main:
            total += int(fields[13]) + int(fields[14])  # the processes that have ended
    return total / os.sysconf("SC_CLK_TCK")

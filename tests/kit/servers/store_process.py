"""A process with a store, which executes commands from stdin, one for each line, and answers on stdout.

`StoreProcess` controls it from the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final

from kit.builders.entries import said, summary
from parley.errors import BadHome, HomeLost, OwnedElsewhere, ParleyError
from parley.ports.store import Lease
from parley.stores.sqlite.locks import WriteLock
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import ConversationId

__all__ = ["Answer", "StoreProcess"]

TESTS: Final = Path(__file__).parents[2]

Answer = Any
"""The result of a command as JSON; an error is an object with its type."""


class StoreProcess:
    """A child process with its own store. Leaving the block kills it."""

    def __init__(self, home: Path, *, inside: Sequence[str] = ()) -> None:
        """Create the process. `inside` is a prefix of its command line, such as a call of `unshare`."""
        self._process = subprocess.Popen(
            (*inside, sys.executable, "-m", "kit.servers.store_process", str(home)),
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid

    def __enter__(self) -> StoreProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def ask(self, *command: object) -> Answer:
        self.tell(*command)
        return self.on_notification()

    def tell(self, *command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def on_notification(self) -> Answer:
        """Return the next answer; None if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def received(self) -> list[Answer]:
        """Return all remaining answers of a process that has ended."""
        return list(iter(self.on_notification, None))

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class _Program:
    def __init__(self, home: str) -> None:
        self._home = home
        self._store = SqliteStore(home)
        self._leases: dict[str, Lease] = {}
        self._last: dict[str, int] = {}
        self._lock: WriteLock | None = None

    async def create(self, name: str) -> None:
        await self._store.create(ConversationId(name), [], summary())

    async def acquire(self, name: str) -> list[int]:
        lease = self._leases[name] = await self._store.acquire(ConversationId(name), address=f"of {os.getpid()}")
        self._last[name] = lease.last
        return [lease.epoch, lease.last]

    async def release(self, name: str) -> None:
        await self._store.release(self._leases.pop(name))

    async def delete(self, name: str) -> None:
        await self._store.delete(self._leases.pop(name))

    async def append(self, name: str, number: int = 1, size: int = 0) -> int:
        first = self._last[name] + 1
        # No run of letters is long enough to be stored as a blob.
        entries = [said(seq, f"{seq} " + os.urandom(size // 2).hex(" ")) for seq in range(first, first + number)]
        await self._store.append(self._leases[name], entries, summary(state="running", updated_at=float(first)))
        self._last[name] += number
        return self._last[name]

    async def append_for_ever(self, name: str) -> None:
        """Append forever. Report the position and the size of the write-ahead log after each append."""
        wal = Path(self._home, "parley.db-wal")
        while True:
            _answer([await self.append(name, 1 + self._last[name] % 3), size_of(wal)])

    async def owner(self, name: str) -> int | None:
        owner = (await self._store.head(ConversationId(name))).owner
        return None if owner is None else owner.pid

    async def hold_the_write_lock(self) -> None:
        self._lock = WriteLock(self._home)
        self._lock.__enter__()

    async def stop_in_a_write(self, name: str) -> None:
        """Stop the process, as SIGSTOP does, inside a transaction."""

        def stop(db: Connection) -> None:
            db.execute("UPDATE conversations SET title = 'x' WHERE id = ?", (name,))
            os.kill(os.getpid(), signal.SIGSTOP)

        await self._store._write(stop)

    async def limit_files(self, size: int | None) -> None:
        """Limit the size of every file; None removes the limit."""
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if size is None else size, most))

    async def fill_the_disk(self) -> None:
        fd = os.open(os.path.join(self._home, "filler"), os.O_CREAT | os.O_WRONLY, 0o600)
        for size in (65536, 4096, 1):
            try:
                while True:
                    os.write(fd, b"x" * size)
            except OSError:
                continue
        os.close(fd)

    async def make_room(self) -> None:
        os.unlink(os.path.join(self._home, "filler"))

    async def close(self) -> None:
        await self._store.close()


def size_of(path: Path) -> int:
    """Return the size of a file; 0 if it was removed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _answer(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def _main(home: str) -> None:
    program = _Program(home)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        try:
            _answer(await getattr(program, verb)(*arguments))
        except OwnedElsewhere as error:
            _answer({"error": "OwnedElsewhere", "pid": error.pid, "address": error.address})
        except BadHome as error:
            _answer({"error": "BadHome", "detail": error.detail})
        except HomeLost as error:
            _answer({"error": "HomeLost", "detail": error.detail})
        except ParleyError as error:
            _answer({"error": type(error).__name__})


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))

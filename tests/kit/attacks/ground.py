"""The objects that attempts attack, and the check of these objects afterwards.

All of them (files, listeners, queues) are created for each run. If an attempt reports a failure, the objects
themselves are checked too.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

from kit.attacks.attempts import WITH_FOLDERS, WORKED, World, of_kind, slug
from kit.attacks.calls import call

__all__ = ["Ground", "Outcomes", "by_itself", "unexpected"]

Outcomes = dict[str, str]
"""The outcome of each attempt, keyed by name: `worked`, or the reason why the attempt failed."""

TESTS: Final = str(Path(__file__).parents[2])
PROGRAM: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from kit.attacks.attempts import main; main(*sys.argv[2:])"
)
LINES: Final = (
    ("stream", socket.SOCK_STREAM),
    ("packets", socket.SOCK_SEQPACKET),
    ("datagrams", socket.SOCK_DGRAM),
)
PRIVATE, CREATE = 0, 0o1000

STRANGER: Final = """
import ctypes, os, signal, sys
secret = os.environ["SECRET"].encode()
kept = ctypes.create_string_buffer(secret)
heard = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT}
signal.pthread_sigmask(signal.SIG_BLOCK, heard)
print(ctypes.addressof(kept), flush=True)
while sys.stdin.readline():
    found = [number.name for number in sorted(signal.sigpending() & heard)]
    for number in found: signal.sigwait(heard)
    print(*found, flush=True)
"""
"""A program with a secret. For each line on stdin it prints the signals that it has received since."""


class Stranger:
    """A process of the same user that the server has not started."""

    def __init__(self) -> None:
        self.secret = uuid4().hex
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", STRANGER],
            env={"SECRET": self.secret},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.secret_at = int(self._line())

    def signals(self) -> list[str]:
        """Return the signals that it received since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._line().split()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Ground:
    """All objects that a command might attack. A context manager."""

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._stranger = Stranger()
        self._closing.callback(self._stranger.close)
        self.base = tempfile.mkdtemp(prefix="parley-ground-", dir="/tmp")
        self._closing.callback(shutil.rmtree, self.base, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @contextmanager
    def workspace(self) -> Iterator[str]:
        """Create a directory that a command may be allowed to write to."""
        place = tempfile.mkdtemp(dir=self.base)
        os.mkdir(f"{place}/inside")
        try:
            yield f"{place}/inside"
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def attack(self, kind: str, run: Callable[[Sequence[str], World], str]) -> Outcomes:
        """Call `run` with a command that makes all attempts of this kind. `run` returns the output of the
        command.
        """
        with ExitStack() as closing:
            inside = closing.enter_context(self.workspace())
            outside = f"{os.path.dirname(inside)}/outside"
            os.mkdir(outside)
            folders = {name: f"{outside}/{slug(name)}" for name in of_kind(kind) if kind in WITH_FOLDERS}
            for name, folder in folders.items():
                _prepare(folder)
                os.mkdir(f"{inside}/{slug(name)}")
            before = {name: _look(folder) for name, folder in folders.items()}
            listening = closing.enter_context(_Listening(outside, inside))
            world = self._world(closing, outside, inside, listening)
            argv = (sys.executable, "-I", "-S", "-c", PROGRAM, TESTS, kind, json.dumps(world._asdict()))
            outcomes: Outcomes = json.loads(run(argv, world))
            for name, folder in folders.items():
                if outcomes[name] != WORKED and _look(folder) != before[name]:
                    outcomes[name] = f"{outcomes[name]}, and yet something has changed"
            signals = self._stranger.signals()
            if "SIGUSR2" in signals:
                outcomes["send a signal as the owner of a pipe"] = WORKED
            if (signals or listening.reached()) and WORKED not in outcomes.values():
                outcomes["in secret"] = WORKED
            return outcomes

    def _world(self, closing: ExitStack, outside: str, inside: str, listening: _Listening) -> World:
        shared = closing.enter_context(_shared_file())
        Path(f"{outside}/open").write_text("kept")
        hidden, linked, in_workspace = (
            _hide(place) for place in (f"{outside}/hidden", f"{outside}/elsewhere", f"{inside}/around/hidden")
        )
        os.symlink(linked, f"{outside}/link")
        os.symlink(outside, f"{inside}/to-outside")
        os.mkdir(f"{outside}/empty")
        Path(f"{outside}/token").write_text("hidden words")
        held = (
            os.open(f"{outside}/open", os.O_RDWR),
            os.open(outside, os.O_RDONLY),
            os.open(f"{hidden}/key", os.O_RDONLY),
        )
        for descriptor in held:
            os.set_inheritable(descriptor, True)
            closing.callback(os.close, descriptor)
        os.mkfifo(f"{outside}/pipe")
        closing.callback(os.close, os.open(f"{outside}/pipe", os.O_RDONLY | os.O_NONBLOCK))
        keyboard, terminal = os.openpty()
        os.write(keyboard, b"typed\n")
        for descriptor in (keyboard, terminal):
            closing.callback(os.close, descriptor)
        key = int.from_bytes(os.urandom(3), "big") + 1
        name = f"parley-{uuid4().hex}"
        world = World(
            outside=outside,
            inside=inside,
            descriptors=held,
            server=os.getpid(),
            foreign=self._stranger.pid,
            secret_at=self._stranger.secret_at,
            secret=self._stranger.secret,
            port=listening.port(socket.AF_INET, "127.0.0.1", socket.SOCK_STREAM),
            port6=listening.port(socket.AF_INET6, "::1", socket.SOCK_STREAM),
            datagram_port=listening.port(socket.AF_INET, "127.0.0.1", socket.SOCK_DGRAM),
            abstract=listening.abstract,
            shared_memory=call("shmget", key, 4096, CREATE | 0o600),
            shared_memory_key=key,
            semaphore=call("semget", PRIVATE, 1, CREATE | 0o600),
            message_queue=call("msgget", PRIVATE, CREATE | 0o600),
            posix_queue=name,
            shared_file=shared,
            terminal=os.ttyname(terminal),
            hidden=hidden,
            hidden_by_link=linked,
            hidden_file=f"{outside}/token",
            hidden_inside=in_workspace,
            hidden_paths=(hidden, f"{outside}/link", f"{outside}/token", in_workspace),
        )
        os.close(call("mq_open", name.encode(), os.O_RDWR | os.O_CREAT, 0o600, None))
        closing.callback(call, "shmctl", world.shared_memory, 0, None)
        closing.callback(call, "semctl", world.semaphore, 0, 0)
        closing.callback(call, "msgctl", world.message_queue, 0, None)
        closing.callback(call, "mq_unlink", name.encode())
        return world


def by_itself(argv: Sequence[str], world: World) -> str:
    """Run the command without a sandbox, with all inherited descriptors, as the control."""
    done = subprocess.run(
        argv,
        cwd=world.inside,
        pass_fds=world.descriptors,
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout.decode()


def unexpected(outcomes: Outcomes) -> Outcomes:
    """Return the outcomes that are not refusals: the attempt worked, hung, changed something or has a bug."""
    return {name: said for name, said in outcomes.items() if not _is_refusal(said)}


def _is_refusal(said: str) -> bool:
    return said == "killed by SIGSYS" or said.startswith("foiled: ") or (said.startswith("E") and said.isupper())


# --- the attacked objects --------------------------------------------------------------------


def _prepare(folder: str) -> None:
    os.mkdir(folder)
    Path(f"{folder}/victim").write_text("kept")
    os.chmod(f"{folder}/victim", 0o640)
    try:
        os.setxattr(f"{folder}/victim", "user.there", b"kept")
    except OSError:
        pass  # a file system without extended attributes: those attempts report it


def _hide(directory: str) -> str:
    os.makedirs(directory)
    Path(f"{directory}/key").write_text("hidden words")
    Path(f"{directory}/program").write_text("#!/bin/sh\nprintf 'hidden words'")
    os.chmod(f"{directory}/program", 0o700)
    return directory


Look = dict[str, tuple[object, ...]]


def _look(folder: str) -> Look:
    """Return everything that can be seen of a directory and its content, except access times."""
    seen: Look = {}
    for path in (folder, *(f"{folder}/{name}" for name in sorted(os.listdir(folder)))):
        found = os.lstat(path)
        kept = Path(path).read_bytes() if path.endswith("/victim") else b""
        attributes = os.listxattr(path, follow_symlinks=False)
        seen[path] = (
            found.st_ino,
            found.st_mode,
            found.st_uid,
            found.st_gid,
            found.st_nlink,
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
            kept,
            attributes,
        )
    return seen


@contextmanager
def _shared_file() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="parley-") as shared:
        shared.write(b"kept")
        shared.flush()
        yield shared.name


class _Listening(AbstractContextManager["_Listening"]):
    """Listening sockets of every kind."""

    def __init__(self, outside: str, inside: str) -> None:
        self.abstract = f"parley-{uuid4().hex}-"
        self._sockets = list[socket.socket]()
        for name, kind in LINES:
            self._listen(socket.AF_UNIX, kind, f"{outside}/{name}")
            self._listen(socket.AF_UNIX, kind, f"{inside}/{name}")
            self._listen(socket.AF_UNIX, kind, f"\0{self.abstract}{name}")

    def port(self, family: int, host: str, kind: int) -> int:
        """Return the port of a new listener; 0 if this computer lacks the family."""
        try:
            return int(self._listen(family, kind, (host, 0)).getsockname()[1])
        except OSError:
            return 0

    def reached(self) -> bool:
        """Return whether any connection or datagram arrived."""
        for listener in self._sockets:
            try:
                if listener.type == socket.SOCK_DGRAM:
                    listener.recv(100)
                else:
                    listener.accept()[0].close()
            except BlockingIOError:
                continue
            return True
        return False

    def __exit__(self, *_: object) -> None:
        for listener in self._sockets:
            listener.close()

    def _listen(self, family: int, kind: int, address: str | tuple[str, int]) -> socket.socket:
        listener = socket.socket(family, kind)
        self._sockets.append(listener)
        listener.bind(address)
        if kind != socket.SOCK_DGRAM:
            listener.listen(64)
        listener.setblocking(False)
        return listener

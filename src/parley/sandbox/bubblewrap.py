"""Confinement by bubblewrap: a command sees the files through mounts of its own, most of them read-only.

Makes words for the launcher out of places. What these are is found in `places`; system calls
are the business of `seccomp`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from parley.errors import CommandNotStarted, os_detail
from parley.ports.commands import MARK, Bounds, Command, Ended, Output, Start, Starter
from parley.sandbox.places import Places, above, depth, find, refuse_hidden
from parley.sandbox.seccomp import program
from parley.sandbox.threads import in_thread
from parley.sandbox.vacancies import Vacancy, leave_all

__all__ = ["Bubblewrap", "arguments", "is_trustworthy", "launcher", "limiter", "mounts"]

_LAUNCHERS: Final = ("/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap")
_LIMITERS: Final = ("/usr/bin/prlimit", "/bin/prlimit")
_DEFAULT_PATH: Final = "/bin:/usr/bin"
"""Where programs are looked for when the command's environment has no PATH."""

_PROCESSES: Final = 512
"""More than a parallel build of a large project has, and few enough for the computer to stay usable. Does
not hold for root, for whom the kernel makes an exception."""
_SHARED_MEMORY_BYTES: Final = 64 * 1024 * 1024
"""As much as containers have by default. It is in memory, and goes with the command."""
_FIRST_DESCRIPTOR: Final = 3

_NAMESPACES: Final = (
    "--unshare-user",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
)


# --- what is installed -------------------------------------------------------------------


def launcher() -> str | None:
    """Where bubblewrap is; never looked for in `PATH`, which may lead into the project."""
    return next(filter(is_trustworthy, _LAUNCHERS), None)


def limiter() -> str | None:
    """The program that limits how many processes there can be: run inside, where only the command's own count."""
    return next(filter(is_trustworthy, _LIMITERS), None)


def is_trustworthy(path: str) -> bool:
    """Whether a program is there that nobody but root could have put there."""
    try:
        found = [os.stat(place) for place in (path, os.path.dirname(path))]
    except OSError:
        return False
    is_program = stat.S_ISREG(found[0].st_mode) and os.access(path, os.X_OK)
    return is_program and all(each.st_uid == 0 and not each.st_mode & 0o022 for each in found)


# --- its words ---------------------------------------------------------------------------


def mounts(places: Places) -> Iterator[tuple[str, ...]]:
    """What is laid over what, outer directories first."""
    fenced = places.git_folders + places.protected + places.vacant
    words: dict[str, tuple[str, ...]] = {}
    # A directory that something fenced lies in could be renamed, and another one with a `.git` of its own
    # be put in its place; a mount point cannot.
    for place in fenced + places.hidden:
        for folder in above(place):
            if folder not in places.roots and places.is_writable(folder):
                words[folder] = ("--bind", folder, folder)
    words |= {path: ("--bind", path, path) for path in places.roots}
    words |= {path: ("--ro-bind", path, path) for path in fenced}
    words |= {path: ("--tmpfs", path) for path in places.hidden_folders}
    words |= {path: ("--ro-bind", "/dev/null", path) for path in places.hidden_files}
    for path in sorted(words, key=depth):
        yield words[path]
    for path in places.hidden_folders:
        yield ("--remount-ro", path)


def arguments(
    places: Places, *, cwd: str, env: Mapping[str, str], network: bool, has_proc: bool
) -> tuple[str, ...]:
    """All words but those that name descriptors or the command."""
    first, *others = ("--ro-bind", "/", "/"), *mounts(places)
    if "/" in places.roots:
        first = ("--bind", "/", "/")
        others.remove(first)
    # Read-only: where the user is root, the settings of the kernel are his files. Without a `/proc` of its own
    # the command must not see the one in which all other processes are.
    proc = ("--proc", "/proc") if has_proc else ("--tmpfs", "/proc")
    return (
        "--die-with-parent",
        "--new-session",
        *_NAMESPACES,
        *(() if network else ("--unshare-net",)),
        *first,
        *("--dev", "/dev", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *(*proc, "--remount-ro", "/proc"),
        *(word for mount in others for word in mount),
        *("--cap-drop", "ALL", "--chdir", cwd, "--clearenv"),
        *(word for name, value in env.items() for word in ("--setenv", name, value)),
    )


def _as_file(words: Iterable[str]) -> bytes:
    """The words as `--args` reads them."""
    return b"".join(os.fsencode(word) + b"\0" for word in words)


def _refuse_unsayable(command: Command) -> None:
    """See that nothing can be taken for a word of the launcher's own.

    Raises:
        CommandNotStarted: something cannot be said, or there is nothing to run.
    """
    if not command.argv:
        raise CommandNotStarted("command args are empty")
    for name in command.env:
        if not name or "=" in name:
            raise CommandNotStarted(f"{name!r} cannot be the name of a variable")
    texts = [
        *(("a word of the command", word) for word in command.argv),
        ("the working directory", command.cwd),
        *((f"the variable {name!r}", f"{name}={value}") for name, value in command.env.items()),
    ]
    for what, text in texts:
        try:
            if b"\0" in os.fsencode(text):
                raise CommandNotStarted(f"{what} holds a NUL character")
        except UnicodeEncodeError:
            raise CommandNotStarted(f"{what} holds a character that cannot be encoded") from None


def _refuse_missing(command: Command) -> None:
    """See that there is a program: within its mounts, nobody could tell us.

    Raises:
        CommandNotStarted: there is none, in the words of the system.
    """
    name = command.argv[0]
    folders = [""] if "/" in name else command.env.get("PATH", _DEFAULT_PATH).split(":")
    why = errno.ENOENT
    for folder in folders if name else ():
        place = os.path.join(command.cwd, folder, name)
        try:
            is_program = stat.S_ISREG(os.stat(place).st_mode) and os.access(place, os.X_OK)
        except (OSError, ValueError):
            continue
        if is_program:
            return
        why = errno.EACCES
    raise CommandNotStarted(os_detail(OSError(why, os.strerror(why))))


# --- running a command -------------------------------------------------------------------


class Bubblewrap:
    """Starts commands by way of the launcher."""

    def __init__(self, starter: Starter, *, launcher: str, limiter: str | None, has_proc: bool) -> None:
        self._starter = starter
        self._launcher = launcher
        self._limits = () if limiter is None else (limiter, f"--nproc={_PROCESSES}", "--core=0", "--")
        self._has_proc = has_proc

    async def run(self, command: Command, bounds: Bounds, *, output: Output) -> Ended:
        """As `Commands.run`."""
        taken: list[Vacancy] = []
        try:
            start = await in_thread(lambda: self._prepared(command, bounds, taken))
            return await self._starter.start(start, output=output)
        finally:
            if taken:
                await in_thread(lambda: leave_all(taken))

    def _prepared(self, command: Command, bounds: Bounds, taken: list[Vacancy]) -> Start:
        _refuse_unsayable(command)
        places = find(bounds)
        refuse_hidden(places, command.cwd)
        _refuse_missing(command)
        taken.extend(each for path in places.vacant if (each := Vacancy.taken(path)) is not None)
        return self.start(command, bounds, replace(places, vacant=tuple(each.path for each in taken)))

    def start(self, command: Command, bounds: Bounds, places: Places) -> Start:
        """How the command is started."""
        mark = {MARK: os.urandom(8).hex()}
        words = arguments(
            places,
            cwd=command.cwd,
            env={**command.env, **mark},
            network=bounds.network,
            has_proc=self._has_proc,
        )
        filtered = program(
            os.uname().machine,
            writable=bool(places.roots),
            network=bounds.network,
            unix_sockets=bounds.unix_sockets,
            namespaces=True,
        )
        first = _FIRST_DESCRIPTOR + len(command.files)
        descriptors = ("--args", str(first), "--seccomp", str(first + 1), "--json-status-fd", str(first + 2))
        return Start(
            argv=(self._launcher, *descriptors, "--", *self._limits, *command.argv),
            cwd=command.cwd,
            # What else the command has would reach into the launcher: there is no sandbox around that yet.
            env={"PATH": "/usr/bin:/bin", **mark},
            files=(*command.files, _as_file(words), filtered),
            reports=True,
            timeout_seconds=command.timeout_seconds,
        )

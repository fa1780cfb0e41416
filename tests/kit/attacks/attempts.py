"""Runs inside the command: makes all attempts of one kind in turn, and reports the outcome of each.

An attempt is a function that returns if it did something forbidden, and raises if it was prevented. Each runs in
its own process, so that it does not affect the next one.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple, NoReturn

__all__ = [
    "KINDS",
    "WITH_FOLDERS",
    "WORKED",
    "Attempt",
    "NotPossible",
    "World",
    "attempt",
    "main",
    "of_kind",
    "slug",
]

KINDS: Final = (
    "files",
    "metadata",
    "special_modes",
    "network",
    "families",
    "sockets",
    "processes",
    "kernel",
    "hidden",
)
"""The kinds of attempts. Each is a module in this package."""

WITH_FOLDERS: Final = ("files", "metadata", "special_modes", "hidden")
"""The kinds whose attempts each get their own directories."""

WORKED: Final = "worked"

TOO_LONG_SECONDS: Final = 60
"""An attempt that takes longer hangs, even on a busy computer."""


class World(NamedTuple):
    """The paths, ports and ids that the test passes to the command."""

    outside: str
    """A directory in which nothing may be changed. `folder` is the attempt's own directory in it."""
    inside: str
    """The workspace. `workplace` is the attempt's own directory in it."""
    folder: str = ""
    workplace: str = ""
    descriptors: tuple[int, ...] = ()
    """Open descriptors of the server: a file and a directory outside, and a hidden file."""
    server: int = 0
    foreign: int = 0
    """The pid of a process of the same user that the server has not started."""
    secret_at: int = 0
    """The address of `secret` in the memory of the foreign process."""
    secret: str = ""
    port: int = 0
    port6: int = 0
    datagram_port: int = 0
    abstract: str = ""
    """The prefix of the names of abstract sockets."""
    shared_memory: int = 0
    shared_memory_key: int = 0
    semaphore: int = 0
    message_queue: int = 0
    posix_queue: str = ""
    shared_file: str = ""
    terminal: str = ""
    """The path of a terminal of the user."""
    hidden: str = ""
    hidden_by_link: str = ""
    hidden_file: str = ""
    hidden_inside: str = ""
    hidden_paths: tuple[str, ...] = ()
    """The four hidden paths, one of them named by a link."""

    @property
    def victim(self) -> str:
        """The path of a file outside the workspace with the content `kept`."""
        return f"{self.folder}/victim"

    @property
    def linked_victim(self) -> str:
        """The path of `victim` through a link in the workspace."""
        return f"{self.inside}/to-outside/{os.path.basename(self.folder)}/victim"


class NotPossible(Exception):
    """The attempt failed without an error of the system."""


class Attempt(NamedTuple):
    run: Callable[[World], None]
    needs: str
    """The feature of the host that the attempt needs; empty if it needs none."""


_all: dict[str, dict[str, Attempt]] = {}


def attempt(*, needs: str = "") -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Register a function as an attempt of the kind that its module is named for."""

    def add(run: Callable[[World], None]) -> Callable[[World], None]:
        name = run.__name__.strip("_").replace("_", " ")
        _all.setdefault(run.__module__.rpartition(".")[2], {})[name] = Attempt(run, needs)
        return run

    return add


def of_kind(kind: str) -> dict[str, Attempt]:
    import_module(f"kit.attacks.{kind}")
    return _all[kind]


def slug(name: str) -> str:
    return name.replace(" ", "-")


def main(kind: str, world: str) -> None:
    """Make all attempts of a kind, and print their outcomes as JSON.

    Raises:
        OSError: the command cannot even read outside, which every mode allows. All attempts would fail for this
            reason alone.
    """
    known = World(**json.loads(world))
    os.close(os.open(known.outside, os.O_RDONLY))
    print(json.dumps({name: _outcome(name, attempt, known) for name, attempt in of_kind(kind).items()}))


def _outcome(name: str, attempt: Attempt, world: World) -> str:
    own = world._replace(folder=f"{world.outside}/{slug(name)}", workplace=f"{world.inside}/{slug(name)}")
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        _try(attempt, own, said)
    os.close(said)
    with open(heard, "rb") as answer:
        text = answer.read().decode()
    _, status = os.waitpid(child, 0)
    return text or f"killed by {signal.Signals(os.WTERMSIG(status)).name}"


def _try(attempt: Attempt, world: World, said: int) -> NoReturn:
    signal.alarm(TOO_LONG_SECONDS)
    try:
        attempt.run(world)
        text = WORKED
    except OSError as error:
        text = errno.errorcode.get(error.errno or 0, repr(error))
    except NotPossible as foiled:
        text = f"foiled: {foiled}"
    except BaseException as error:  # a mistake in the attempt itself must be seen
        text = f"mistake: {error!r}"
    os.write(said, text.encode())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Inside the command: try everything of one kind, one after the other, and say what became of each.

An attempt is a function that returns if it did what must not be done, and raises if it was kept from
it. Each runs in a process of its own, so that none spoils the next.
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

__all__ = ["KINDS", "WITH_FOLDERS", "WORKED", "Attempt", "Foiled", "World", "attempt", "main", "of_kind", "slug"]

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
"""Each is a module beside this one."""

WITH_FOLDERS: Final = ("files", "metadata", "special_modes", "hidden")
"""The kinds whose attempts each have folders of their own."""

WORKED: Final = "worked"

TOO_LONG_SECONDS: Final = 60
"""An attempt that waits for longer has hung, also on a busy computer."""


class World(NamedTuple):
    """What the command knows of the computer that it runs on. The test has told it everything."""

    outside: str
    """Where nothing may be changed. An attempt may have a folder of its own in it, `folder`."""
    inside: str
    """The workspace. An attempt may have a folder of its own in it, `workplace`."""
    folder: str = ""
    workplace: str = ""
    descriptors: tuple[int, ...] = ()
    """What the server has open: a file and a directory outside, and a file that is hidden."""
    server: int = 0
    foreign: int = 0
    """A process of the same user that has nothing to do with the server."""
    secret_at: int = 0
    """Where in the memory of the foreign process `secret` stands."""
    secret: str = ""
    port: int = 0
    port6: int = 0
    datagram_port: int = 0
    abstract: str = ""
    """Beginning of the names of the sockets without a path."""
    shared_memory: int = 0
    shared_memory_key: int = 0
    semaphore: int = 0
    message_queue: int = 0
    posix_queue: str = ""
    shared_file: str = ""
    terminal: str = ""
    """One that the user sits at."""
    hidden: str = ""
    hidden_by_link: str = ""
    hidden_file: str = ""
    hidden_inside: str = ""
    hidden_paths: tuple[str, ...] = ()
    """Those four, one of them by a link."""

    @property
    def victim(self) -> str:
        """A file outside that says `kept`."""
        return f"{self.folder}/victim"

    @property
    def linked_victim(self) -> str:
        """The same file, by a path through a link in the workspace that leads outside."""
        return f"{self.inside}/to-outside/{os.path.basename(self.folder)}/victim"


class Foiled(Exception):
    """The attempt came to nothing, without an error of the system."""


class Attempt(NamedTuple):
    run: Callable[[World], None]
    needs: str
    """What the host itself must have or allow for it; empty: nothing that is not everywhere."""


_all: dict[str, dict[str, Attempt]] = {}


def attempt(*, needs: str = "") -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """This function is an attempt of the kind that its module is named for."""

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
    """Print, as JSON, what became of each attempt.

    Raises:
        OSError: it cannot even read outside, which every mode allows: all attempts would fail for that alone.
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
    except Foiled as foiled:
        text = f"foiled: {foiled}"
    except BaseException as error:  # a mistake in the attempt itself must be seen
        text = f"mistake: {error!r}"
    os.write(said, text.encode())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

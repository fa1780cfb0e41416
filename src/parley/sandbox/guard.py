"""Where nothing keeps a command from `.git`: what git runs and obeys there is remembered, and put back afterwards.

So are the settings of agents. This is detection: until the command has ended, what it put there is there. What
it did to objects and branches is not looked at; those are data, and nothing runs by them. Who else changes
something meanwhile cannot be told from the command: nothing is deleted, and all that is moved aside is named.

Knows which commands run, and whom to tell. What is looked at and how it is put back is for each watch to know.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from parley.errors import CannotConfine, os_detail
from parley.ports.commands import Ended, Output, Start, Starter
from parley.sandbox.places import Places, above
from parley.sandbox.threads import in_thread
from parley.sandbox.watch import Key, Kind, Known, Watch
from parley.wire.text import sayable

__all__ = ["Guard", "Watch"]

log: Final = logging.getLogger(__name__)

_FORBIDDEN: Final = 1
"""How a command ends that changed what is protected, as if it had been kept from it in the first place."""

_MOST_KNOWN: Final = 16
"""Places that are remembered from one command to the next."""


class Guard:
    """Commands that run at the same time are measured by the same state: that before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._watches: dict[Key, Watch] = {}
        self._known: dict[str, Known] = {}
        """What was there last, the latest at the end: most of it is still the same."""

    async def run(self, starter: Starter, prepare: Callable[[list[Watch]], Start], *, output: Output) -> Ended:
        """Have a command started, and look at all watches when it is over. One that changed something has failed.

        It is prepared beside the loop, by what adds the watches to a list. No watch ends meanwhile: what another
        command has moved away just now is either there when places are looked for, or still watched.
        """
        watches: list[Watch] = []
        said: list[str] = []
        ended: Ended | None = None
        try:
            start = await in_thread(lambda: self._prepared(prepare, watches))
            ended = await starter.start(start, output=output)
        finally:
            is_heard = False
            try:
                if watches:
                    await in_thread(lambda: said.extend(self.leave(watches)), needs_one=False)
                is_heard = ended is not None
            finally:
                if not is_heard:
                    for sentence in said:
                        log.warning("%s", sentence)
        for sentence in said:
            output("stderr", f"{sentence}\n".encode())
        return Ended(exit_code=_FORBIDDEN, seconds=ended.seconds) if said and ended.exit_code == 0 else ended

    def _prepared(self, prepare: Callable[[list[Watch]], Start], watches: list[Watch]) -> Start:
        with self._lock:
            return prepare(watches)

    def enter(self, places: Places, paths: Iterable[str], entered: list[Watch]) -> None:
        """Remember what is at these paths, all of them protected; each watch is added to the list as it begins.

        So is what others watch in the same roots: while they run, it need not be where it could be found.

        Raises:
            CannotConfine: something cannot be looked at.
        """
        with self._lock:
            others = [watch.path for watch in self._watches.values() if watch.roots & set(places.roots)]
            for path in dict.fromkeys((*paths, *others)):
                folders = tuple(folder for folder in above(path) if places.is_writable(folder))
                watch = self._watches.get((path, folders))
                if watch is None:
                    try:
                        watch = self._begun(path, folders, places)
                    except OSError as error:
                        raise CannotConfine(f"{sayable(path)} cannot be watched: {os_detail(error)}") from None
                    self._watches[watch.key] = watch
                watch.users += 1
                watch.roots.update([folder for folder in above(path) if folder in places.roots][:1])
                entered.append(watch)

    def _begun(self, path: str, folders: tuple[str, ...], places: Places) -> Watch:
        """A watch from other roots looks at another way, and holds what is at its end to the same state."""
        of_others = next((watch for watch in self._watches.values() if watch.path == path), None)
        if of_others is not None:
            of_others.unsaid += of_others.restored()
            return Watch(path, folders, of_others.kind, of_others.before)
        return Watch.begun(path, folders, Kind.of(path, places), self._known.pop(path, {}))

    def leave(self, watches: Iterable[Watch]) -> list[str]:
        """Put back what is not as it was; returns a sentence for each place where something was not."""
        told: list[str] = []
        with self._lock:
            for watch in watches:
                try:
                    told += watch.unsaid
                    watch.unsaid = []
                    told += watch.restored()
                except OSError as error:
                    told.append(f"{sayable(watch.path)} is protected, and cannot be looked at: {os_detail(error)}")
                watch.users -= 1
                if not watch.users:
                    del self._watches[watch.key]
                    watch.close()
                    self._known[watch.path] = watch.before
                    if len(self._known) > _MOST_KNOWN:
                        del self._known[next(iter(self._known))]
        return told

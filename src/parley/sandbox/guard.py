"""Where nothing keeps a command from `.git`: what git runs and obeys there is remembered, and put back afterwards.

So are the settings of agents. This is detection: until the command has ended, what it put there is there. What
it did to objects and branches is not looked at; those are data, and nothing runs by them. Who else changes
something meanwhile cannot be told from the command: nothing is deleted, and all that is moved aside is named.

Knows which commands run, and whom to tell. What is looked at and how it is put back is for each watch to know.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from parley.common.os_errors import os_detail
from parley.errors import SandboxUnavailable
from parley.ports.commands import Ended, Output, Start, Starter
from parley.sandbox.kept import Patience
from parley.sandbox.places import Places, above, is_below
from parley.sandbox.threads import in_thread
from parley.sandbox.watch import NO_PAST, Key, Kind, Past, Sentence, Watch
from parley.wire.text import quoted

__all__ = ["Guard", "Watch"]

log: Final = logging.getLogger(__name__)

_FORBIDDEN: Final = 1
"""How a command ends that changed what is protected, as if it had been kept from it in the first place."""

_MOST_KNOWN: Final = 16
_MOST_KNOWN_BYTES: Final = 16 * 1024 * 1024
"""Places that are remembered from one command to the next, and what is in them. What is not is read again."""


class _Preparation:
    """A command that is about to be started: places are looked for, and then watched."""

    def __init__(self) -> None:
        self.is_cancelled = threading.Event()
        self.ended: dict[str, Watch] = {}
        """Watches that were there when it began, by their paths."""


class Guard:
    """Commands that run at the same time are measured by the same state: that before the first of them.

    Of two places, both are looked at or put back at the same time only if no directory could be moved on the
    way to both: a repository that takes long holds up nobody elsewhere.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Held for an instant only, by whoever reads or changes what follows."""
        self._busy: list[str] = []
        """Directories in which somebody looks or puts back."""
        self._watches: dict[Key, Watch] = {}
        self._preparing: dict[int, _Preparation] = {}
        """By the list of watches that each of them fills."""
        self._known: dict[str, Past] = {}
        """What was there last, the latest at the end: most of it is still the same."""
        self._spoiled: dict[str, Watch] = {}
        """By their paths, the last watches of places in which a command has left what nobody could look at: it
        would be taken for what was there before the next command. They are never forgotten."""

    async def run(self, starter: Starter, prepare: Callable[[list[Watch]], Start], *, output: Output) -> Ended:
        """Have a command started, and look at all watches when it is over. One that changed something has failed.

        It is prepared beside the loop, by what adds the watches to a list; cancelling ends that at the next step.
        What is put back afterwards is put back in any case.
        """
        watches: list[Watch] = []
        said: list[Sentence] = []
        ended: Ended | None = None
        preparation = _Preparation()
        try:
            start = await in_thread(
                lambda: self._prepared(prepare, watches, preparation),
                when_cancelled=lambda: self._cancel(preparation),
            )
            ended = await starter.start(start, output=output)
        finally:
            is_heard = False
            try:
                if watches:
                    await in_thread(lambda: said.extend(self.leave(watches)), needs_one=False)
                is_heard = ended is not None
            finally:
                if not is_heard:
                    _log(said)
        if not said:
            return ended
        remarks = tuple(sentence.text for sentence in said)
        for remark in remarks:
            output("stderr", f"{remark}\n".encode())
        is_forbidden = ended.exit_code == 0 and any(sentence.is_fault for sentence in said)
        return replace(ended, exit_code=_FORBIDDEN if is_forbidden else ended.exit_code, remarks=remarks)

    def _prepared(
        self, prepare: Callable[[list[Watch]], Start], watches: list[Watch], preparation: _Preparation
    ) -> Start:
        with self._changed:
            self._preparing[id(watches)] = preparation
        try:
            return prepare(watches)
        finally:
            with self._changed:
                del self._preparing[id(watches)]

    def _cancel(self, preparation: _Preparation) -> None:
        preparation.is_cancelled.set()
        with self._changed:
            self._changed.notify_all()

    def enter(self, places: Places, paths: Iterable[str], entered: list[Watch]) -> None:
        """Remember what is at these paths, all of them protected; each watch is added to the list as it begins.

        So is what others watch in the same roots, or did when places were looked for: it need not have been where
        it could be found.

        Raises:
            SandboxUnavailable: something cannot be looked at.
        """
        with self._changed:
            preparation = self._preparing.get(id(entered)) or _Preparation()
            watched = (*self._watches.values(), *preparation.ended.values())
            others = [watch.path for watch in watched if watch.roots & set(places.roots)]
        for path in dict.fromkeys((*paths, *others)):
            folders = tuple(folder for folder in above(path) if places.is_writable(folder))
            with self._alone((path, folders), preparation):
                watch = self._watch((path, folders), places, preparation)
                with self._changed:
                    self._watches[watch.key] = watch
                    watch.users += 1
                    watch.roots.update([folder for folder in above(path) if folder in places.roots][:1])
                entered.append(watch)

    def _watch(self, key: Key, places: Places, preparation: _Preparation) -> Watch:
        """That of others, or a new one. From other roots it looks at another way, and holds what is at its end to
        the same state."""
        path, folders = key
        with self._changed:
            same = self._watches.get(key)
            of_others = next((watch for watch in self._watches.values() if watch.path == path), None)
            ended = preparation.ended.get(path)
            spoiled = None if of_others else self._spoiled.get(path)
            known = NO_PAST if of_others else self._known.pop(path, NO_PAST)
        if same is not None:
            return same
        try:
            if of_others is not None:
                of_others.unsaid += of_others.restored()
                return Watch(path, folders, of_others.kind, of_others.past, of_others.layout)
            said = self._cleared(spoiled, folders) if spoiled is not None else []
            try:
                kind = Kind.of(path, places) if ended is None else ended.kind
                watch = Watch.begun(path, folders, kind, known, Patience(preparation.is_cancelled))
            except (OSError, SandboxUnavailable):
                _log(said)
                raise
            watch.unsaid = said
            return watch
        except OSError as error:
            raise SandboxUnavailable(f"{quoted(path)} cannot be watched: {os_detail(error)}") from None

    def _cleared(self, spoiled: Watch, folders: tuple[str, ...]) -> list[Sentence]:
        """Put a place back to what it was before it was spoiled; says what was put back, for which the command that
        is told cannot help. One that somebody has replaced meanwhile is theirs.

        Raises:
            SandboxUnavailable: there is still too much.
        """
        said: list[Sentence] = []
        if spoiled.is_there:
            watch = Watch(spoiled.path, folders, spoiled.kind, spoiled.past, spoiled.layout)
            try:
                said = watch.restored()
            finally:
                watch.close()
            if watch.is_cut:
                _log(said)
                why = "a command has left more there than can be looked at; delete that, or move it out of there"
                raise SandboxUnavailable(f"{quoted(spoiled.path)} cannot be watched: {why}")
        with self._changed:
            self._spoiled.pop(spoiled.path, None)
        return [sentence._replace(is_fault=False) for sentence in said]

    def leave(self, watches: Iterable[Watch]) -> list[Sentence]:
        """Put back what is not as it was; returns a sentence for each place where something was not."""
        told: list[Sentence] = []
        for watch in watches:
            with self._alone(watch.key):
                try:
                    told += watch.unsaid
                    watch.unsaid = []
                    told += watch.restored()
                except OSError as error:
                    why = f"{quoted(watch.path)} is protected, and cannot be looked at: {os_detail(error)}"
                    told.append(Sentence(why))
                self._left(watch)
        return told

    def _left(self, watch: Watch) -> None:
        with self._changed:
            watch.users -= 1
            if watch.users:
                return
            del self._watches[watch.key]
            for preparation in self._preparing.values():
                preparation.ended[watch.path] = watch
            if watch.is_cut:
                self._spoiled[watch.path] = watch
            else:
                self._spoiled.pop(watch.path, None)
                self._known[watch.path] = watch.past
            size = sum(past.size for past in self._known.values())
            while size > _MOST_KNOWN_BYTES or len(self._known) > _MOST_KNOWN:
                size -= self._known.pop(next(iter(self._known))).size
        watch.close()

    @contextmanager
    def _alone(self, key: Key, preparation: _Preparation | None = None) -> Iterator[None]:
        """Wait until nobody else is at work around a place or in it, and keep them away.

        Raises:
            SandboxUnavailable: the preparation was cancelled.
        """
        with self._changed:
            around = min((_around(key), *(_around(each) for each in self._watches if each[0] == key[0])), key=len)
            while any(is_below(around, other) or is_below(other, around) for other in self._busy):
                if preparation is not None and preparation.is_cancelled.is_set():
                    raise SandboxUnavailable(f"{quoted(key[0])} cannot be watched: nobody waits for it any more")
                self._changed.wait()
            self._busy.append(around)
        try:
            yield
        finally:
            with self._changed:
                self._busy.remove(around)
                self._changed.notify_all()


def _log(said: Iterable[Sentence]) -> None:
    """Where nobody is there to be told."""
    for sentence in said:
        log.warning("%s", sentence.text)


def _around(key: Key) -> str:
    """The outermost directory that could be moved, or in which something could be, on the way to a place."""
    path, folders = key
    return folders[-1] if folders else os.path.dirname(path)

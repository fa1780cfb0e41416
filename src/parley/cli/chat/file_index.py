"""Finds the paths of files that match an incomplete word. A thread builds and renews the list of paths."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Final, TypeAlias

from parley.cli.chat.file_listing import list_files
from parley.common.threads import begin_in_thread

__all__ = ["FileIndex", "PathTable"]

RENEW_SECONDS: Final = 5.0
"""The minimum age, in seconds, at which the next search renews the list of paths."""

RENEW_SHARE: Final = 20
"""The minimum age at which the list of paths is renewed, as a multiple of the time that was needed to build the
list. The thread that lists a large directory is therefore busy at most a twentieth of the time.
"""

CHUNK: Final = 4000
"""The number of paths that are searched before other tasks can run."""

CANDIDATES: Final = 400
"""The number of matches after which the search ends. Only these matches are ranked."""

MAX_SIMILAR: Final = 12
"""The maximum length, in characters, of a word for which the search also finds similar paths."""

_Match: TypeAlias = tuple[int, int, str]
"""The rank of a matching path, the length of the path, and the path. Lower ranks are better."""


class PathTable:
    """A list of paths that can be searched. The search ignores case."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._chunks = [_Chunk(paths[start : start + CHUNK]) for start in range(0, len(paths), CHUNK)]

    async def find(self, text: str, *, limit: int) -> list[str]:
        """Return at most `limit` paths that match `text`: first the paths whose file name begins with `text`, then
        the paths whose file name contains `text`, then the other paths that contain `text`.

        If no path contains `text`, return paths that contain its characters in the same order, possibly with other
        characters between them.
        """
        folded = text.lower()
        found = await self._ranked((chunk.search(folded) for chunk in self._chunks), limit)
        if not found and 1 < len(folded) <= MAX_SIMILAR:
            found = await self._ranked((chunk.similar(folded) for chunk in self._chunks), limit)
        return found

    @staticmethod
    async def _ranked(parts: Iterable[Iterable[_Match]], limit: int) -> list[str]:
        matches: list[_Match] = []
        for part in parts:
            matches += part
            if len(matches) >= CANDIDATES:
                break
            await asyncio.sleep(0)  # other tasks, such as the handling of keys, can run
        return [path for _, _, path in sorted(matches)[:limit]]


class _Chunk:
    """A part of a list of paths. One string contains all paths of the part, and a second string contains all their
    file names, so that `str.find` can search them.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._folded = [path.lower() for path in paths]
        names = [path.rstrip("/").rpartition("/")[2] for path in self._folded]
        self._whole, self._whole_starts = _joined(self._folded)
        self._names, self._name_starts = _joined(names)

    def search(self, text: str) -> Iterator[_Match]:
        if not text:
            return ((0, number, path) for number, path in enumerate(self._paths[:CANDIDATES]))
        begins = self._find(self._names, self._name_starts, "\n" + text)
        inside = self._find(self._names, self._name_starts, text)
        anywhere = self._find(self._whole, self._whole_starts, text)
        ranks: dict[int, int] = {}
        for rank, numbers in enumerate((begins, inside, anywhere)):
            for number in numbers:
                ranks.setdefault(number, rank)
        return ((rank, len(self._paths[number]), self._paths[number]) for number, rank in ranks.items())

    def similar(self, text: str) -> Iterator[_Match]:
        for number, path in enumerate(self._folded):
            place = -1
            for character in text:
                if (place := path.find(character, place + 1)) < 0:
                    break
            else:
                yield (3, len(path), self._paths[number])

    @staticmethod
    def _find(text: str, starts: array[int], wanted: str) -> Iterable[int]:
        """Yield the numbers, counted from 0, of at most `CANDIDATES` lines of `text` that contain `wanted`.

        In `text`, a newline precedes each line. `starts` contains the offset of each of these newlines and, as its
        last item, the length of `text`.
        """
        place = found = 0
        while found < CANDIDATES and (place := text.find(wanted, place)) >= 0:
            number = bisect_right(starts, place) - 1
            yield number
            found += 1
            place = starts[number + 1]


def _joined(lines: Sequence[str]) -> tuple[str, array[int]]:
    """Join the lines to one string, with a newline before each line.

    Return the string and the offsets of these newlines. The last offset is the length of the string.
    """
    return "".join(f"\n{line}" for line in lines), array("q", chain([0], accumulate(len(one) + 1 for one in lines)))


class FileIndex:
    """Searches the files of a working directory. A thread lists the files, so the event loop is never blocked."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._table: PathTable | None = None
        self._renew_at = 0.0
        self._listing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def search(self, text: str, *, limit: int) -> list[str]:
        """Return at most `limit` paths that match `text`, the best match first. The first call waits until the
        files are listed.
        """
        self._renew()
        if self._table is None and self._listing is not None:
            await asyncio.shield(self._listing)
        if self._table is None:
            return []
        return await self._table.find(text, limit=limit)

    def close(self) -> None:
        """Stop the thread if it is listing files."""
        self._is_closed = True

    def _renew(self) -> None:
        """If the list of paths is missing or too old, begin to list the files in the background."""
        now = asyncio.get_running_loop().time()
        if self._listing is None and (self._table is None or now >= self._renew_at):
            self._listing = asyncio.create_task(self._list())

    async def _list(self) -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            self._table = await begin_in_thread(self._build, name="parley-files")
        except (MemoryError, RuntimeError):
            return  # no thread can be started
        finally:
            self._listing = None
        took = loop.time() - began_at
        self._renew_at = loop.time() + max(RENEW_SECONDS, RENEW_SHARE * took)

    def _build(self) -> PathTable:
        return PathTable(list_files(self._root, is_stopped=lambda: self._is_closed))

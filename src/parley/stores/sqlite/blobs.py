"""Long runs of base64, cut out of the bodies they stand in: images, and what is kept of the output of commands.

A blob is kept once, under the hash of its bytes, compressed; a cut says where in a body it belongs. A body that is
restore is the one that was cut, byte for byte.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

__all__ = ["Blob", "Cut", "cut", "decompress", "restore"]

SHORTEST: Final = 4096
"""Characters; what is shorter stays where it is."""

_FAST: Final = 1
"""Of zlib's levels: images are compressed already, and others wait meanwhile."""

_RUN: Final = re.compile(rb"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{%d,}={0,2}" % SHORTEST)

_BLOCK: Final = SHORTEST // 2
_WHOLE_BLOCK: Final = re.compile(rb"[A-Za-z0-9+/]{%d}" % _BLOCK)


class Blob(NamedTuple):
    hash: bytes
    size: int
    """Of the bytes before they were compressed."""
    data: bytes


class Cut(NamedTuple):
    offset: int
    """Where the run begins in the whole body."""
    blob: Blob


def cut(body: bytes) -> tuple[bytes, list[Cut]]:
    """The body without its long runs, and the runs."""
    if not _may_hold_a_run(body):
        return body, []
    pieces: list[bytes] = []
    cuts: list[Cut] = []
    end = 0
    whole = memoryview(body)  # there may be many megabytes of it: nothing is copied but what is kept
    for run in _RUN.finditer(body):
        begin = run.start()
        pieces.append(body[end:begin])
        end = begin + _exact(whole[begin : run.end()])
        cuts.append(Cut(begin, _packed(binascii.a2b_base64(whole[begin:end]))))
    return (b"".join((*pieces, body[end:])), cuts) if cuts else (body, [])


def restore(body: bytes, runs: Iterable[tuple[int, bytes]]) -> bytes:
    """The whole body again: the bytes of each blob, with the offset of its cut, in order."""
    return b"".join(_pieces(body, runs))


def _pieces(body: bytes, runs: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    place = passed = 0
    for offset, data in runs:
        yield body[place : place + offset - passed]
        place += offset - passed
        run = binascii.b2a_base64(data, newline=False)
        yield run
        passed = offset + len(run)
    yield body[place:]


def _may_hold_a_run(body: bytes) -> bool:
    """A run fills one block at least, wherever it begins. In words, the first letters of each block say no, which
    is far cheaper than to search for runs."""
    return any(_WHOLE_BLOCK.match(body, at) for at in range(0, len(body), _BLOCK))


def _exact(run: memoryview) -> int:
    """How much of the run comes back exactly when it is encoded again; only its last four characters may not."""
    last = bytes(run[-4:])
    if len(run) % 4 == 0 and binascii.b2a_base64(binascii.a2b_base64(last), newline=False) == last:
        return len(run)
    return (len(run) - last.count(b"=")) // 4 * 4


def _packed(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).digest(), len(data), zlib.compress(data, _FAST))


def decompress(data: bytes) -> bytes:
    """Raises ValueError: this was never packed."""
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(str(error)) from error

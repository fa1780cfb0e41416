"""Removes long runs of base64, such as images, from the bodies of entries, and restores the original bodies.

A run that was removed is called a blob. A blob is stored in compressed form, under the hash of its bytes. The
SQLite store stores each blob once; the PostgreSQL store stores each blob once for each conversation. A `Cut`
records the offset of a blob in a body. A restored body is identical to the original.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from parley.stores.blob_sizes import MIN_BLOB_CHARACTERS

__all__ = ["Blob", "Cut", "cut", "decompress", "restore"]

_FAST: Final = 1
"""The fastest compression level of zlib. Images are already compressed, so a higher level would save little space.
A slower compression would delay other writes.
"""

_RUN: Final = re.compile(rb"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{%d,}={0,2}" % MIN_BLOB_CHARACTERS)

_BLOCK: Final = MIN_BLOB_CHARACTERS // 2
_WHOLE_BLOCK: Final = re.compile(rb"[A-Za-z0-9+/]{%d}" % _BLOCK)


class Blob(NamedTuple):
    """A base64 run that was cut out: the decoded bytes in compressed form, and the hash under which they are
    stored.
    """

    hash: bytes
    size: int
    """The number of decoded bytes before compression."""
    data: bytes


class Cut(NamedTuple):
    """A blob, and the offset of its base64 run in the body."""

    offset: int
    """The offset of the base64 run in the original body, in bytes."""
    blob: Blob


def cut(body: bytes) -> tuple[bytes, list[Cut]]:
    """Return the body without its long runs of base64, and a cut for each run, in ascending order of the
    offsets.
    """
    if not _may_hold_a_run(body):
        return body, []
    pieces: list[bytes] = []
    cuts: list[Cut] = []
    end = 0
    whole = memoryview(body)  # a body can have many megabytes, and a view avoids copies
    for run in _RUN.finditer(body):
        begin = run.start()
        pieces.append(body[end:begin])
        end = begin + _exact(whole[begin : run.end()])
        cuts.append(Cut(begin, _packed(binascii.a2b_base64(whole[begin:end]))))
    return (b"".join((*pieces, body[end:])), cuts) if cuts else (body, [])


def restore(body: bytes, runs: Iterable[tuple[int, bytes]]) -> bytes:
    """Insert the base64 runs that were cut out of a body, and return the original body. `runs` contains the offset
    and the decoded bytes of each run, in ascending order of the offsets.
    """
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
    """Return False if the body cannot contain a long run of base64.

    The body is divided into blocks of `_BLOCK` bytes, half the minimum length of a run. A long run therefore fills
    at least one block completely. The check of a block ends at the first character that is not base64. In prose,
    this is much faster than a search for runs.
    """
    return any(_WHOLE_BLOCK.match(body, at) for at in range(0, len(body), _BLOCK))


def _exact(run: memoryview) -> int:
    """Return the number of leading characters of a base64 run that stay the same if the run is decoded and encoded
    again. Only these characters can be restored exactly.

    At most the last few characters of a run change.
    """
    last = bytes(run[-4:])
    if len(run) % 4 == 0 and binascii.b2a_base64(binascii.a2b_base64(last), newline=False) == last:
        return len(run)
    return (len(run) - last.count(b"=")) // 4 * 4


def _packed(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).digest(), len(data), zlib.compress(data, _FAST))


def decompress(data: bytes) -> bytes:
    """Return the original bytes of a blob. `data` contains the compressed bytes.

    Raises:
        ValueError: the blob is damaged.
    """
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise ValueError(str(error)) from error

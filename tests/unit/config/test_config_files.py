"""Files are read without waiting for anybody."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from parley.config.files import read_file, read_now


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"some words")

    assert read_file(tmp_path / "notes") == b"some words"
    assert read_file(tmp_path / "notes", limit=4) == b"some"
    assert read_file(tmp_path / "notes", limit=0) == b""


@contextmanager
def terminal() -> Iterator[tuple[BinaryIO, int]]:
    """A terminal to read from without waiting, and where to type."""
    typing, shown = os.openpty()
    with ExitStack() as stack:
        stack.callback(os.close, typing)
        file = stack.enter_context(open(shown, "rb"))
        os.set_blocking(shown, False)
        yield file, typing


@pytest.mark.parametrize("limit", [-1, 1, 100])
def test_a_file_that_has_nothing_yet_cannot_be_read(limit: int) -> None:
    with terminal() as (file, typing):
        with pytest.raises(BlockingIOError) as refused:
            read_now(file, limit=limit)
        os.write(typing, b"word\n")

        assert (refused.value.errno, refused.value.strerror) == (errno.EAGAIN, os.strerror(errno.EAGAIN))
        assert read_now(file, limit=limit) == (b"w" if limit == 1 else b"word\n")


class Swapped:
    """A path through a directory for which somebody puts another when the file is opened."""

    def __init__(self, way: Path, name: str, *, then: Path) -> None:
        self._way, self._path, self._then, self._asked = way, way / name, then, 0

    def __fspath__(self) -> str:
        self._asked += 1
        if self._asked == 2:  # the first time it was looked at
            self._way.unlink()
            self._way.symlink_to(self._then)
        return str(self._path)


def test_a_directory_that_is_swapped_meanwhile_leads_to_nothing_hidden(tmp_path: Path) -> None:
    hidden, harmless, way = tmp_path / "hidden", tmp_path / "harmless", tmp_path / "way"
    for folder in (hidden, harmless):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    way.symlink_to(harmless)

    assert read_file(way / "file", hidden=[str(hidden)]) == b"harmless"
    with pytest.raises(OSError, match="may not be read"):
        read_file(Swapped(way, "file", then=hidden), hidden=[str(hidden)])
    assert way.readlink() == hidden

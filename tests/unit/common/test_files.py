"""Files are read without blocking."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from kit.system.waiting import until
from parley.common.files import file_version, read_file, read_now


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"some words")

    assert read_file(tmp_path / "notes") == b"some words"
    assert read_file(tmp_path / "notes", limit=4) == b"some"
    assert read_file(tmp_path / "notes", limit=0) == b""


def test_a_missing_file_has_no_version(tmp_path: Path) -> None:
    assert file_version(tmp_path / "missing") is None


async def test_each_change_of_a_file_that_has_a_version_is_visible(tmp_path: Path) -> None:
    """A file that has just changed has no version, because its times may not show the next change."""
    notes = tmp_path / "notes"
    notes.write_bytes(b"old")
    assert file_version(notes) is None
    await until(lambda: file_version(notes) is not None)
    version = file_version(notes)
    assert file_version(notes) == version

    notes.write_bytes(b"new")

    assert file_version(notes) is None


@contextmanager
def terminal() -> Iterator[tuple[BinaryIO, int]]:
    """Yield a non-blocking terminal, and the descriptor with which the test types into it."""
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

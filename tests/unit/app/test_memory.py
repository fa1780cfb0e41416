"""Memory that nobody needs is found and given back at once, not when Python happens to look."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import pytest

from parley.app.memory import give_back_memory

PIECES = 50_000
BYTES = 4096
"""Of each: more than Python keeps in pages of its own, and less than the system gives out by itself."""


class Ring:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def unnoticed() -> Iterator[None]:
    """Python does not look by itself."""
    gc.disable()
    yield
    gc.enable()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.usefixtures("unnoticed")
def test_what_refers_only_to_itself_is_freed() -> None:
    ring = Ring()
    gone = ref(ring)
    del ring
    assert gone() is not None

    give_back_memory()
    assert gone() is None


def test_pages_between_what_is_used_go_back_to_the_system() -> None:
    pieces = [bytes([1]) * BYTES for _ in range(PIECES)]
    kept = pieces[::1000]
    full = resident()
    del pieces
    give_back_memory()

    assert len(kept) == PIECES // 1000
    assert full - resident() > PIECES // 2

"""Free memory is returned to the system."""

from __future__ import annotations

from pathlib import Path

from parley.app.allocator import release_memory

PIECES = 50_000
BYTES = 4096
"""The size of a block in bytes. It is too large for Python's own pools and too small for its own mapping."""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_pages_between_what_is_used_go_back_to_the_system() -> None:
    pieces = [bytes([1]) * BYTES for _ in range(PIECES)]
    kept = pieces[::1000]
    full = resident()
    del pieces
    release_memory()

    assert len(kept) == PIECES // 1000
    assert full - resident() > PIECES // 2

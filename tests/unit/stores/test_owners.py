"""Who has a conversation: the same for locks on bytes and for locks on files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parley.stores.locks import OwnerBytes, OwnerFiles, Owners

KINDS: list[Callable[[str], Owners]] = [OwnerBytes, OwnerFiles]


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Owners, Owners]]:
    """Two of one home, as two processes have them."""
    first, second = request.param(str(tmp_path)), request.param(str(tmp_path))
    yield first, second
    first.close()
    second.close()


def test_what_one_has_the_other_does_not_get(pair: tuple[Owners, Owners]) -> None:
    first, second = pair

    assert first.take(7)
    assert not first.take(7)
    assert not second.take(7)
    assert second.take(8)
    assert [first.taken(row) for row in (6, 7, 8, 9)] == [False, True, True, False]
    assert [second.taken(row) for row in (6, 7, 8, 9)] == [False, True, True, False]


def test_what_was_given_back_can_be_taken(pair: tuple[Owners, Owners]) -> None:
    first, second = pair
    first.take(7)
    first.free(7)
    first.free(99)

    assert not second.taken(7)
    assert second.take(7)


def test_whoever_frees_what_another_has_frees_nothing(pair: tuple[Owners, Owners]) -> None:
    first, second = pair
    first.take(7)
    second.free(7)

    assert not second.take(7)


def test_closing_gives_everything_back_and_nothing_is_given_back_twice(pair: tuple[Owners, Owners]) -> None:
    first, second = pair
    first.take(7)
    first.take(2**40)
    first.close()
    first.free(7)

    assert second.take(7)
    assert second.take(2**40)


def test_no_program_that_is_started_inherits_a_lock(pair: tuple[Owners, Owners], tmp_path: Path) -> None:
    pair[0].take(7)
    places = {
        fd: os.readlink(f"/proc/self/fd/{fd}") for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)
    }

    ours = [fd for fd, place in places.items() if place.startswith(str(tmp_path))]

    assert ours
    assert not any(os.get_inheritable(fd) for fd in ours)


def _is_open(fd: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")

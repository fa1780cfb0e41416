"""Locks of leases, with byte locks and with file locks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parley.stores.sqlite.locks import ByteRangeLocks, LeaseLocks, LockFiles

KINDS: list[Callable[[str], LeaseLocks]] = [ByteRangeLocks, LockFiles]


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LeaseLocks, LeaseLocks]]:
    """Return two lock objects of one home, as in two processes."""
    first, second = request.param(str(tmp_path)), request.param(str(tmp_path))
    yield first, second
    first.close()
    second.close()


def test_a_held_lock_excludes_the_other_object(pair: tuple[LeaseLocks, LeaseLocks]) -> None:
    first, second = pair

    assert first.try_acquire(7)
    assert not first.try_acquire(7)
    assert not second.try_acquire(7)
    assert second.try_acquire(8)
    assert [first.is_held(row) for row in (6, 7, 8, 9)] == [False, True, True, False]
    assert [second.is_held(row) for row in (6, 7, 8, 9)] == [False, True, True, False]


def test_a_released_lock_can_be_acquired(pair: tuple[LeaseLocks, LeaseLocks]) -> None:
    first, second = pair
    first.try_acquire(7)
    first.release(7)
    first.release(99)

    assert not second.is_held(7)
    assert second.try_acquire(7)


def test_releasing_a_lock_of_another_holder_has_no_effect(pair: tuple[LeaseLocks, LeaseLocks]) -> None:
    first, second = pair
    first.try_acquire(7)
    second.release(7)

    assert not second.try_acquire(7)


def test_closing_gives_everything_back_and_nothing_is_given_back_twice(pair: tuple[LeaseLocks, LeaseLocks]) -> None:
    first, second = pair
    first.try_acquire(7)
    first.try_acquire(2**40)
    first.close()
    first.release(7)

    assert second.try_acquire(7)
    assert second.try_acquire(2**40)


def test_no_program_that_is_started_inherits_a_lock(pair: tuple[LeaseLocks, LeaseLocks], tmp_path: Path) -> None:
    pair[0].try_acquire(7)
    places = {
        fd: os.readlink(f"/proc/self/fd/{fd}") for fd in map(int, os.listdir("/proc/self/fd")) if _is_open(fd)
    }

    ours = [fd for fd, place in places.items() if place.startswith(str(tmp_path))]

    assert ours
    assert not any(os.get_inheritable(fd) for fd in ours)


def _is_open(fd: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")

"""Bearer tokens, the delay after wrong tokens, and the rate of requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from parley.server.context import Principal, Role
from parley.server.http.authentication import (
    BURST_SECONDS,
    DELAY_SECONDS,
    FAILURES_PER_MINUTE,
    Authenticator,
    RateLimit,
    new_token,
)

READER = Principal(name="reader", role=Role.OBSERVER)
WRITER = Principal(name="writer", role=Role.DRIVER)


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def request(*values: str) -> Any:
    return SimpleNamespace(header=lambda name: list(values))


def test_a_token_names_its_principal() -> None:
    known = Authenticator()
    first, second = new_token(), new_token()
    known.add(first, READER)
    known.add(second, WRITER)

    found = [
        known.principal(request(f"{scheme} {token}")) for scheme, token in (("Bearer", first), ("bearer", second))
    ]

    assert found == [READER, WRITER]
    assert len(first) >= 43


@pytest.mark.parametrize("values", [(), ("Bearer ",), ("Bearer x",), ("x",), ("Bearer \udcff",)])
def test_anything_else_names_no_principal(values: tuple[str, ...]) -> None:
    known = Authenticator()
    known.add("x" * 32, READER)

    assert known.principal(request(*values)) is None


@pytest.mark.promises("http.token")
def test_guesses_are_answered_late_after_ten_within_a_minute() -> None:
    clock = Clock()
    known = Authenticator(now=clock)
    delays = [known.failed() for _ in range(FAILURES_PER_MINUTE + 2)]
    clock.time += 61

    assert delays == [0.0] * FAILURES_PER_MINUTE + [DELAY_SECONDS] * 2
    assert known.failed() == 0.0


@pytest.mark.promises("http.limits")
def test_the_rate_of_one_principal_does_not_affect_another() -> None:
    clock = Clock()
    rate = RateLimit(2, now=clock)
    burst = [rate.admits(READER) for _ in range(int(2 * BURST_SECONDS) + 1)]
    clock.time += 0.5

    assert burst == [True] * int(2 * BURST_SECONDS) + [False]
    assert [rate.admits(WRITER), rate.admits(READER), rate.admits(READER)] == [True, True, False]
    assert all(RateLimit(0).admits(READER) for _ in range(10_000))


@pytest.mark.promises("http.limits")
def test_several_messages_count_as_many_or_not_at_all() -> None:
    rate = RateLimit(2, now=Clock())

    assert [rate.admits(READER, count) for count in (21, 15, 6, 5, 1)] == [False, True, False, True, False]


@pytest.mark.promises("http.limits")
def test_a_new_token_with_the_name_of_a_revoked_token_has_its_own_rate() -> None:
    rate = RateLimit(2, now=Clock())
    old, new = (Principal(name="phone", role=Role.DRIVER, token_id=token_id) for token_id in ("1", "2"))
    rate.admits(old, int(2 * BURST_SECONDS))

    assert [rate.admits(old), rate.admits(new), rate.admits(replace(new, sign_in="aa"), 20)] == [False, True, False]


def test_principals_that_have_sent_nothing_for_a_while_need_no_memory() -> None:
    clock = Clock()
    rate = RateLimit(2, now=clock)
    for number in range(1000):
        rate.admits(Principal(name="phone", role=Role.DRIVER, token_id=str(number)))
        clock.time += 1

    assert len(rate) <= BURST_SECONDS

"""Packet filter programs with labels, assembled and interpreted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.system.bpf import Call, Filter
from parley.sandbox.bpf import Code

FIRST_ARGUMENT = 16


def answers(code: Code, *arguments: int) -> list[int]:
    """Return the decisions of the program about calls that have these values as their first argument."""
    program = Filter(code.assembled())
    return [program.answer(Call(0, 0, (argument,))) for argument in arguments]


@pytest.mark.parametrize("between", [0, 1, 253, 254, 255, 256, 257, 3000])
def test_a_jump_reaches_its_place_however_far_it_is(between: int) -> None:
    code = Code()
    code.load(FIRST_ARGUMENT)
    code.if_equal(7, then="far")
    for _ in range(between):
        code.keep(0xFF)
    code.answer(1)
    code.label("far")
    code.answer(2)

    assert answers(code, 7, 8) == [2, 1]


@pytest.mark.parametrize("between", [252, 253, 254, 255, 256, 257, 1000])
def test_both_ways_of_a_condition_can_be_long(between: int) -> None:
    code = Code()
    code.load(FIRST_ARGUMENT)
    code.if_above(7, then="far", otherwise="near")
    for _ in range(between):
        code.keep(0)
    code.label("near")
    code.answer(1)
    code.label("far")
    code.answer(2)

    assert answers(code, 0, 7, 8, 0xFFFFFFFF) == [1, 1, 2, 2]


@settings(deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=12))
def test_a_ladder_of_conditions_finds_every_rung(gaps: list[int]) -> None:
    code = Code()
    code.load(FIRST_ARGUMENT)
    for rung in range(len(gaps)):
        code.if_equal(rung, then=f"rung {rung}")
    code.answer(999)
    for rung, gap in enumerate(gaps):
        for _ in range(gap):
            code.keep(0xFF)
        code.label(f"rung {rung}")
        code.answer(rung)

    assert answers(code, *range(len(gaps) + 1)) == [*range(len(gaps)), 999]


def test_a_place_that_is_not_after_the_jump_or_stands_there_twice_is_an_error() -> None:
    backwards = Code()
    backwards.label("here")
    backwards.if_equal(1, then="here")
    backwards.answer(0)
    twice = Code()
    twice.label("here")
    twice.label("here")
    twice.answer(0)

    with pytest.raises(KeyError):
        backwards.assembled()
    with pytest.raises(ValueError, match="two labels have the name `here`"):
        twice.assembled()

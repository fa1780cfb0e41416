"""Messages of tool servers that are nested too deeply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.rpc.depth import MAX_CUT_BYTES, MAX_LEVELS, cut_nesting

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\[]{}', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\[]{}', max_size=3), inner, max_size=3),
)


@settings(deadline=None)
@given(value=anything)
def test_shallow_values_are_not_changed(value: Any) -> None:
    message = json.dumps(value).encode()

    assert cut_nesting(message) == message


@settings(deadline=None)
@given(before=anything, after=anything)
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a}":', "}")])
@pytest.mark.parametrize("levels", [MAX_LEVELS - 1, MAX_LEVELS, 3000])
def test_deep_values_become_null_and_the_rest_stays(
    opening: str, closing: str, levels: int, before: Any, after: Any
) -> None:
    first, last = json.dumps(before), json.dumps(after)
    kept = min(levels, MAX_LEVELS - 1)
    bottom = "1" if levels < MAX_LEVELS else "null"

    cut = cut_nesting(f"[{first}, {opening * levels}1{closing * levels}, {last}]".encode())

    assert cut == f"[{first}, {opening * kept}{bottom}{closing * kept}, {last}]".encode()


@pytest.mark.parametrize("message", [b"[" * 1000, b"]" * 1000, b'["' + b"\\" * 1000, b'{"a": ' * 1000 + b"}" * 999])
def test_an_invalid_message_has_no_effect(message: bytes) -> None:
    assert isinstance(cut_nesting(message), bytes)


def test_a_long_message_is_left_alone() -> None:
    message = b"[" * MAX_CUT_BYTES + b"]"

    assert cut_nesting(message) is message

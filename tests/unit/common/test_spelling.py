"""Misspelt names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.common.spelling import forms_of, is_about_safety, near_miss, nearest, shown_name

KNOWN = ("approval-policy", "sandbox", "model", "cwd", "config")
words = st.text("abz", min_size=5, max_size=9)


@pytest.mark.parametrize("name", ["approval-policy", "approval_policy", "approvalPolicy"])
def test_a_name_has_three_forms(name: str) -> None:
    assert forms_of(name) == ("approval_policy", "approval-policy", "approvalPolicy")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("APPROVAL_policy", "approval-policy"),
        ("approvalpolicy", "approval-policy"),
        ("aprovalpolcy", "approval-policy"),
        ("sandb", "sandbox"),
        ("sandboxes", "sandbox"),
        ("mode", "model"),
        ("modell", "model"),
        ("CWD", "cwd"),
        ("cwdd", None),
        ("cd", None),
        ("sand", None),
        ("sandboxing", None),
        ("prompt", None),
        ("", None),
    ],
)
def test_a_near_miss_has_the_same_letters_or_is_within_two_edits(name: str, meant: str | None) -> None:
    assert near_miss(name, KNOWN) == meant


@given(name=words, place=st.integers(0, 9), put=st.sampled_from(["", "x", "xy"]), left_out=st.integers(0, 2))
def test_any_two_edits_at_one_place_are_a_near_miss(name: str, place: int, put: str, left_out: int) -> None:
    changed = name[:place] + put + name[place + left_out :]

    assert near_miss(changed, [name]) == name


@given(name=words)
def test_three_edits_are_none(name: str) -> None:
    assert near_miss(f"{name}xyx", [name]) is None


@pytest.mark.parametrize("name", ["sandbox", "sandBoxes", "ask-for-approval", "Policy", "sand_box"])
def test_some_words_are_about_safety(name: str) -> None:
    assert is_about_safety(name)
    assert not is_about_safety("prompt")


def test_the_nearest_name_may_be_further_away_where_names_are_long() -> None:
    assert nearest("stream_idle_timeout", ["stream_idle_timeout_ms", "base_url"]) == "stream_idle_timeout_ms"
    assert nearest("tui", ["model", "profiles"]) is None


def test_a_long_name_is_shown_cut_and_compared_with_nothing() -> None:
    long = "sandbox" * 100_000

    assert near_miss(long, KNOWN) is None
    assert len(shown_name(long)) < 100

"""The names of branches and the messages of commits (`parley.workspaces.names`)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.wire.ids import ConversationId
from parley.workspaces.names import branch_of, commit_message, is_branch_of, is_from_parley, next_branch

ID = ConversationId("2f0c1d3e-4b5a-4697-8877-665544332211")


def test_the_branch_of_a_conversation_has_the_beginning_of_its_id() -> None:
    assert branch_of(ID) == "parley/2f0c1d3e4b5a"


def test_further_branches_have_numbers_and_belong_to_the_conversation() -> None:
    second = next_branch(branch_of(ID))
    third = next_branch(second)

    assert (second, third) == ("parley/2f0c1d3e4b5a-2", "parley/2f0c1d3e4b5a-3")
    assert all(is_branch_of(one, ID) for one in (branch_of(ID), second, third))
    assert not any(is_branch_of(one, ID) for one in ("main", "parley/2f0c1d3e4b5b", "parley/2f0c1d3e4b5a-x"))


@pytest.mark.parametrize(
    ("branch", "commit", "expected"),
    [
        ("parley/2f0c1d3e4b5a", "a" * 40, True),
        ("parley/2f0c1d3e4b5a-2", "b" * 64, True),
        ("--upload-pack=touch", "a" * 40, False),
        ("main", "a" * 40, False),
        ("parley/2f0c1d3e4b5a/../x", "a" * 40, False),
        ("parley/2f0c1d3e4b5a", "--output=/tmp/x", False),
        ("parley/2f0c1d3e4b5a", "HEAD", False),
        ("parley/2f0c1d3e4b5a", "A" * 40, False),
        ("parley/2f0c1d3e4b5a\n", "a" * 40, False),
    ],
)
def test_branches_and_commits_of_an_imported_log_are_checked(branch: str, commit: str, expected: bool) -> None:
    assert is_from_parley(branch, commit) is expected


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("Fix the parser\nand more", "Fix the parser"),
        ("\n\n  Fix \t it \n", "Fix it"),
        ("", "Work of a turn"),
        ("\u202ereversed\x1b[31m", "reversed [31m"),
        ("x" * 100, "x" * 69 + "..."),
    ],
)
def test_the_subject_of_a_commit_is_the_first_line_of_the_message(text: str, subject: str) -> None:
    assert commit_message(text, ID) == f"{subject}\n\nParley-Conversation: {ID}\n"


@given(st.text())
def test_a_commit_message_has_one_short_line_and_no_control_characters(text: str) -> None:
    first, empty, last, end = commit_message(text, ID).split("\n")

    assert 0 < len(first) <= 72
    assert first == first.strip()
    assert not any(ord(each) < 32 or 127 <= ord(each) < 160 for each in first)
    assert (empty, last, end) == ("", f"Parley-Conversation: {ID}", "")

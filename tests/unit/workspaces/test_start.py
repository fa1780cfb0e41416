"""The commit and the branch with which a turn begins (`parley.workspaces.start`)."""

from __future__ import annotations

from typing import Any

import pytest

from parley.errors import BRANCH_DIVERGED, COMMIT_MISSING
from parley.wire.events import WorkspaceUpdated
from parley.wire.ids import ConversationId
from parley.workspaces.start import choose_start

ID = ConversationId("2f0c1d3e-4b5a-4697-8877-665544332211")
OWN = "parley/2f0c1d3e4b5a"
PARENT = "parley/aaaaaaaaaaaa"

HISTORY = {"base": set(), "one": {"base"}, "two": {"base", "one"}, "person": {"base", "one"}}
"""The commits of a small repository, each with its ancestors."""


async def is_ancestor(one: str, other: str) -> bool:
    return one == other or one in HISTORY[other]


def last(commit: str, branch: str = OWN) -> WorkspaceUpdated:
    return WorkspaceUpdated(repository="app", branch=branch, commit=commit, pushed=True, node="a")


async def start(seen: WorkspaceUpdated | None, **options: Any) -> tuple[str, str, str | None]:
    defaults: dict[str, Any] = {"tips": {}, "base": "base", "head": None, "has_last": seen is not None}
    chosen = await choose_start(ID, seen, **{**defaults, **options}, is_ancestor=is_ancestor)
    return chosen.commit, chosen.branch, chosen.code


@pytest.mark.parametrize(
    ("seen", "options", "expected"),
    [
        pytest.param(None, {}, ("base", OWN, None), id="a new conversation"),
        pytest.param(None, {"tips": {OWN: "one"}}, ("one", OWN, None), id="pushed, and then killed"),
        pytest.param(last("one"), {"tips": {OWN: "one"}}, ("one", OWN, None), id="on another node"),
        pytest.param(last("one"), {"tips": {OWN: "one"}, "head": "one"}, ("one", OWN, None), id="on the same node"),
        pytest.param(last("one"), {"tips": {OWN: "two"}, "head": "one"}, ("two", OWN, None), id="a person pushed"),
        pytest.param(last("two"), {"tips": {OWN: "one"}, "head": "two"}, ("two", OWN, None), id="not pushed yet"),
        pytest.param(last("one"), {"head": "one"}, ("one", OWN, None), id="a person deleted the branch"),
        pytest.param(
            last("two"), {"tips": {OWN: "one"}, "has_last": False}, ("one", OWN, COMMIT_MISSING), id="never pushed"
        ),
        pytest.param(last("two"), {"has_last": False}, ("base", OWN, COMMIT_MISSING), id="nothing was pushed"),
        pytest.param(
            last("two"),
            {"tips": {OWN: "person"}, "head": "two"},
            ("two", f"{OWN}-2", BRANCH_DIVERGED),
            id="the branch has diverged",
        ),
        pytest.param(
            last("two"),
            {"tips": {OWN: "person", f"{OWN}-2": "person"}, "head": "two"},
            ("two", f"{OWN}-3", BRANCH_DIVERGED),
            id="the second branch has diverged too",
        ),
        pytest.param(
            last("two", f"{OWN}-2"), {"tips": {OWN: "person"}}, ("two", f"{OWN}-2", None), id="on branch 2"
        ),
        pytest.param(
            last("one"), {"tips": {OWN: "one"}, "head": "two"}, ("two", OWN, None), id="killed after commit"
        ),
        pytest.param(
            last("two"), {"tips": {OWN: "two"}, "head": "person"}, ("two", OWN, None), id="an older worktree"
        ),
        pytest.param(last("one", PARENT), {"tips": {PARENT: "two"}}, ("one", OWN, None), id="a fork"),
        pytest.param(
            last("two", PARENT),
            {"tips": {PARENT: "one"}, "has_last": False},
            ("one", OWN, COMMIT_MISSING),
            id="a fork of work that was not pushed",
        ),
    ],
)
async def test_the_log_decides_where_a_turn_begins(
    seen: WorkspaceUpdated | None, options: dict[str, Any], expected: tuple[str, str, str | None]
) -> None:
    assert await start(seen, **options) == expected


async def test_the_error_names_the_node_that_has_the_missing_commit() -> None:
    chosen = await choose_start(
        ID, last("two"), tips={}, base="base", head=None, has_last=False, is_ancestor=is_ancestor
    )

    assert chosen.message == "the commit two is missing, because only the node a has it"

"""The table of ownership contains every transition, every state is reached, and the docs contain the table."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest

from parley.runtime.ownership import TRANSITIONS, Ownership, OwnershipEvent, OwnershipState

DOCS = Path(__file__).parents[3] / "docs" / "architecture.md"


def in_state(state: OwnershipState) -> Ownership:
    parts = cast(Any, None)
    ownership = Ownership(parts, parts, parts, parts, parts)
    ownership.state = state
    return ownership


@pytest.mark.parametrize(("state", "event"), list(product(OwnershipState, OwnershipEvent)))
def test_a_change_is_in_the_table_or_is_refused(state: OwnershipState, event: OwnershipEvent) -> None:
    ownership = in_state(state)
    if (state, event) in TRANSITIONS:
        ownership._move(event)
        assert ownership.state is TRANSITIONS[state, event]
    elif state is OwnershipState.GONE:
        ownership._move(event)
        assert ownership.state is OwnershipState.GONE
    else:
        with pytest.raises(KeyError):
            ownership._move(event)


def test_every_state_is_reached_and_only_deletion_is_final() -> None:
    reached = {OwnershipState.IDLE}
    while more := {to for (state, _), to in TRANSITIONS.items() if state in reached} - reached:
        reached |= more

    assert reached == set(OwnershipState)
    assert {state for state in OwnershipState if not _leads_back(state)} == {OwnershipState.GONE}


def _leads_back(state: OwnershipState) -> bool:
    reached = {state}
    while more := {to for (at, _), to in TRANSITIONS.items() if at in reached} - reached:
        reached |= more
    return OwnershipState.IDLE in reached


def test_the_docs_draw_the_table() -> None:
    rows = {
        tuple(cell.strip(" `") for cell in line.split("|")[1:4])
        for line in DOCS.read_text().splitlines()
        if line.startswith("| `")
    }
    table = {
        (state.name, event.value, to.name)
        for (state, event), to in TRANSITIONS.items()
        if event is not OwnershipEvent.GONE
    }

    assert table <= rows
    assert ("any", OwnershipEvent.GONE.value, OwnershipState.GONE.name) in rows

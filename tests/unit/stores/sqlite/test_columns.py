from __future__ import annotations

from typing import Any

import pytest

from parley.conversation.state import TurnOutcome
from parley.ports.store import Owner, Summary
from parley.stores.sqlite.columns import OWNER, SUMMARY, columns_of, owner_of, summary_of
from parley.wire.ids import Seq

FAILED = TurnOutcome(seq=Seq(7), at=2.0, reason="failed", text="It broke.", code="cannot_connect")


def read(columns: tuple[Any, ...]) -> Summary:
    """Read columns as the store does, with texts as bytes."""
    return summary_of(*(one.encode() if isinstance(one, str) and n != 3 else one for n, one in enumerate(columns)))


@pytest.mark.parametrize("outcome", [None, FAILED])
def test_a_summary_is_read_as_it_was_written(outcome: TurnOutcome | None) -> None:
    summary = Summary(title="A", cwd="/b", model="c", state="asking", updated_at=3.0, outcome=outcome)
    columns = columns_of(summary)
    assert len(columns) == len(SUMMARY.split(", "))
    assert read(columns) == summary


def test_the_time_of_an_active_conversation_is_after_all_others() -> None:
    summary = Summary(title="", cwd="", model="", state="running", updated_at=3.0, is_active=True)
    assert columns_of(summary, 2.0)[-1] == 3.0
    assert columns_of(summary, 9.0)[-1] > 9.0


@pytest.mark.parametrize(
    ("place", "damaged", "field", "value"),
    [
        (0, b"\xff", "title", "\N{REPLACEMENT CHARACTER}"),
        (3, b"\x00", "state", "idle"),
        (4, "seven", "outcome", None),
        (5, None, "outcome", None),
        (6, b"vanished", "outcome", None),
        (9, b"late", "updated_at", 0.0),
    ],
)
def test_a_damaged_column_gets_a_default(place: int, damaged: object, field: str, value: object) -> None:
    columns: list[Any] = [b"A", b"/b", b"c", "running", 7, 2.0, b"failed", b"It broke.", None, 3.0]
    columns[place] = damaged
    assert getattr(summary_of(*columns), field) == value


def test_an_owner_without_a_process_is_none() -> None:
    assert owner_of(None, None, None, None) is None
    assert owner_of(None, 5, None, None) == Owner(node="", pid=5, address="", since=0.0)
    assert len(OWNER.split(", ")) == 4

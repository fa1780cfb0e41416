"""Summaries and texts as columns of a PostgreSQL database."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kit.builders.entries import summary
from parley.conversation.state import TurnOutcome
from parley.ports.store import Summary
from parley.stores.postgres.rows import (
    SummaryColumns,
    changed_columns,
    digest_of_key,
    digest_of_path,
    pattern_of,
    summary_in,
)
from parley.wire.ids import Seq

texts = st.text(max_size=20)  # without lone surrogates
outcomes = st.builds(
    TurnOutcome,
    seq=st.integers(1, 2**40).map(Seq),
    at=st.floats(0, 1e10),
    reason=st.sampled_from(("done", "failed", "interrupted", "restarted", "stopped")),
    text=texts,
    code=st.none() | texts,
)


def read_again(one: Summary) -> Summary:
    columns = SummaryColumns.of(one)
    return summary_in(columns.state, columns.updated_at, columns.details, columns.ended_seq, columns.ended_at)


@given(texts, texts, texts, st.none() | outcomes)
def test_a_summary_is_read_as_it_was_written(title: str, cwd: str, model: str, outcome: TurnOutcome | None) -> None:
    one = replace(summary(title, cwd=cwd), model=model, outcome=outcome)

    assert read_again(one) == one
    assert "\0" not in SummaryColumns.of(one).title


def test_the_same_directory_has_the_same_digest() -> None:
    assert digest_of_path("//work/./a/") == digest_of_path("/work/a") != digest_of_path("work/a")


def test_a_key_belongs_to_its_type() -> None:
    assert digest_of_key("ab", "c") != digest_of_key("a", "bc")


def test_a_pattern_matches_its_characters_alone() -> None:
    assert pattern_of("100%_\\A") == "%100\\%\\_\\\\a%"


@given(st.none() | outcomes)
def test_columns_that_have_not_changed_are_not_written_again(outcome: TurnOutcome | None) -> None:
    first = replace(summary("One"), outcome=outcome)
    later = replace(first, state="running", updated_at=9.0)
    of_later = SummaryColumns.of(later)
    columns = (*of_later[:3], of_later.ended_seq, of_later.ended_at, of_later.has_failed)

    assert changed_columns(later, first) is None
    assert changed_columns(later, None) == columns
    assert changed_columns(later, replace(first, title="Two")) == columns

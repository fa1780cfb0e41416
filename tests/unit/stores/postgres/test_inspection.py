"""The report of `parley doctor` about the durability of a database."""

from __future__ import annotations

import pytest

from parley.stores.postgres.inspection import durability_of


@pytest.mark.parametrize(
    ("fsync", "commit", "names", "says"),
    [
        ("on", "on", "ANY 1 (a, b)", "an acknowledged write is on the primary and on a synchronous standby"),
        ("on", "on", "", "on the primary only, because synchronous_standby_names is empty"),
        ("on", "local", "*", "on the primary only, because synchronous_commit is local"),
        ("on", "off", "*", "unsafe: synchronous_commit is off"),
        ("off", "on", "*", "unsafe: fsync is off"),
    ],
)
def test_the_settings_decide_what_survives(fsync: str, commit: str, names: str, says: str) -> None:
    assert says in durability_of(fsync=fsync, commit=commit, names=names)

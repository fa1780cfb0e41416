"""Shorter times, so that a test of an outage of the database takes a few seconds."""

from __future__ import annotations

from typing import Final

import pytest

__all__ = ["CALL_SECONDS", "LEASE_SECONDS", "shorten_outages"]

LEASE_SECONDS: Final = 6.0
"""The time of a lease. A server gives its leases up after two thirds of this time."""
CALL_SECONDS: Final = 1.0
"""The time after which a call fails."""
NO_ANSWER_SECONDS: Final = 0.3


def shorten_outages(patch: pytest.MonkeyPatch) -> None:
    """Shorten the times of leases and calls in servers that run in this process."""
    patch.setattr("parley.stores.postgres.store.LEASE_SECONDS", LEASE_SECONDS)
    for module in ("leases", "writer"):
        patch.setattr(f"parley.stores.postgres.{module}.NO_ANSWER_SECONDS", NO_ANSWER_SECONDS)
    stores = ("stores.postgres.database", "stores.postgres.writer")
    for module in (*stores, "runtime.conversation", "runtime.mailbox", "server.toolcall"):
        patch.setattr(f"parley.{module}.CALL_SECONDS", CALL_SECONDS)

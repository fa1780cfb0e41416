"""Builds logs and projections from events and records."""

from __future__ import annotations

from typing import Any

from parley.conversation.history import History
from parley.conversation.log import Entry, Log, LogPayload
from parley.conversation.projections import Projections
from parley.conversation.state import State

__all__ = ["AT", "contents_of", "history_of", "log_of", "state_of", "write"]

AT = 1_754_654_400.0
"""The time of all entries."""


def log_of(*payloads: LogPayload) -> Log:
    """Return a log with these entries, all durable."""
    log = Log()
    write(log, *payloads)
    return log


def write(log: Log, *payloads: LogPayload) -> list[Entry]:
    """Append entries and mark them as durable."""
    entries = log.append(payloads, at=AT)
    log.durable = log.last
    return entries


def state_of(*payloads: LogPayload) -> State:
    state = State()
    for one in payloads:
        state.apply(one, at=AT)
    return state


def history_of(*payloads: LogPayload) -> History:
    history = History()
    for one in payloads:
        history.apply(one)
    return history


def contents_of(projections: Projections) -> dict[str, Any]:
    """Return everything in projections that does not depend on which entries are in memory."""
    state = projections.state
    return {
        "state": (state.phase, state.title, state.event_id, state.inputs, state.tokens, state.updated_at),
        "outcome": state.outcome,
        "next event id": state.next_event_id(),
        "history": projections.history.for_request(),
        "open": (projections.history.open_calls, projections.approvals.open),
        "settings": projections.settings_history.now.asked,
        "usage": projections.usage.saved(),
        "position": projections.position,
    }

"""Logs, and the folds over them, from what happened."""

from __future__ import annotations

from parley.conversation.history import History
from parley.conversation.log import Entry, Log, LogPayload
from parley.conversation.state import State

__all__ = ["AT", "history_of", "log_of", "state_of", "write"]

AT = 1_754_654_400.0
"""A moment; which one does not matter."""


def log_of(*happened: LogPayload) -> Log:
    """All of it durable."""
    log = Log()
    write(log, *happened)
    return log


def write(log: Log, *happened: LogPayload) -> list[Entry]:
    """Append, and be done: everything in the log is durable."""
    entries = log.append(happened, at=AT)
    log.durable = log.last
    return entries


def state_of(*happened: LogPayload) -> State:
    state = State()
    for one in happened:
        state.apply(one, at=AT)
    return state


def history_of(*happened: LogPayload) -> History:
    history = History()
    for one in happened:
        history.apply(one)
    return history

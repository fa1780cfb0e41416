"""Logs events about clients, turns, requests and tools. The events have stable names and fields."""

from __future__ import annotations

import logging
from typing import Any, Final

from parley.common.telemetry import Operation

__all__ = ["EVENTS", "LogObserver"]

log = logging.getLogger("parley.events")

EVENTS: Final = {
    "client_request": (None, "client_request.ended", logging.DEBUG),
    "turn": ("turn.started", "turn.ended", logging.INFO),
    "model_request": (None, "model_request.ended", logging.INFO),
    "tool_call": (None, "tool_call.ended", logging.INFO),
    "approval": ("approval.requested", "approval.decided", logging.INFO),
}
"""For each operation, the name of the event that is logged at its beginning, the name of the event that is logged
at its end, and the log level. The first name is None if no event is logged at the beginning.
"""

_INHERITED: Final = ("conversation_id", "turn_id", "client_id")
"""The names of the fields that an operation inherits from its parent operations."""


class LogObserver:
    """Logs an event at the beginning and at the end of each operation, and events that belong to no operation."""

    def __init__(self, *, has_content: bool) -> None:
        self.wants_content = has_content

    def started(self, operation: Operation) -> None:
        event, _, level = EVENTS[operation.name]
        if event is not None and log.isEnabledFor(level):
            _log(level, event, _fields_of(operation))

    def ended(self, operation: Operation) -> None:
        _, event, level = EVENTS[operation.name]
        if not log.isEnabledFor(level):
            return
        fields = _fields_of(operation)
        if (first := fields.pop("first_seconds", None)) is not None:
            fields["first_ms"] = round(first * 1000, 1)
        fields |= {"duration_ms": round(operation.seconds * 1000, 1), "outcome": operation.outcome}
        if self.wants_content:
            fields |= {f"content_{name}": text for name, text in operation.content.items()}
        _log(level, event, fields)

    def noted(self, name: str, fields: dict[str, Any]) -> None:
        if log.isEnabledFor(logging.INFO):
            _log(logging.INFO, name, fields)

    def measured(self, name: str, seconds: float, outcome: str) -> None:
        pass  # these events are too frequent for a log


def _fields_of(operation: Operation) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    above: Operation | None = operation
    while above is not None:
        for name in _INHERITED:
            if name in above.fields:
                fields.setdefault(name, above.fields[name])
        above = above.parent
    own = {name: value for name, value in operation.fields.items() if name != "traceparent"}
    return {**{name: fields[name] for name in _INHERITED if name in fields}, **own}


def _log(level: int, event: str, fields: dict[str, Any]) -> None:
    known = {name: value for name, value in fields.items() if value is not None}
    log.log(level, "%s", event, extra={"event": event, "fields": known})

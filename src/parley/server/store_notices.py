"""Log messages that inform clients when the database becomes unreachable or reachable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from parley.ports.availability import AvailabilityState
from parley.server.session import Session
from parley.wire.jsonrpc import encode, notification
from parley.wire.mcp import LogLevel, LogMessage
from parley.wire.notifications import STORE_LOGGER, StoreNotice

__all__ = ["send_store_notice"]

_LEVELS: Final[tuple[LogLevel, ...]] = get_args(LogLevel)

_LEVEL: Final[Mapping[AvailabilityState, LogLevel]] = {
    "unreachable": "warning",
    "turns_stopped": "error",
    "available": "notice",
}
_MESSAGE: Final[Mapping[AvailabilityState, str]] = {
    "unreachable": "The server cannot reach its database. Running turns continue for some seconds.",
    "turns_stopped": (
        "The server still cannot reach its database, and has interrupted its turns. The ends of these turns are"
        " stored when the server can reach the database again."
    ),
    "available": "The server can reach its database again.",
}


def send_store_notice(session: Session, state: AvailabilityState) -> None:
    """Send a log message about `state`, the availability of the database, to the client of a session. Do nothing if
    the client does not support log messages, or if the log level of the session excludes the message.
    """
    level = _LEVEL[state]
    is_wanted = _LEVELS.index(level) >= _LEVELS.index(session.log_level)
    if not session.initialized or not session.features.full_version or not is_wanted:
        return
    message = LogMessage(level=level, logger=STORE_LOGGER, data=StoreNotice(state=state, message=_MESSAGE[state]))
    session.out.send(notification(LogMessage.METHOD, encode(message)))

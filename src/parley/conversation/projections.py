"""All that a log says, folded as it grows, or again from what was kept of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from parley.conversation.approvals import ApprovalState
from parley.conversation.history import History
from parley.conversation.log import Entry, LogPayload
from parley.conversation.records import RECORD_TYPES, CommandOutput, InputRead, record_type
from parley.conversation.settings_history import SettingsHistory
from parley.conversation.state import State
from parley.conversation.usage import UsageTotals
from parley.wire.events import (
    ApplyPatchApprovalRequest,
    ExecApprovalRequest,
    LimitReached,
    TokenCount,
    UserMessage,
    event_type,
)
from parley.wire.items import compact

__all__ = ["Projections"]

_EVENTS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    event_type(cls): msgspec.json.Decoder(cls)
    for cls in (UserMessage, TokenCount, ExecApprovalRequest, ApplyPatchApprovalRequest, LimitReached)
}
"""The events from which something follows."""
_RECORDS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(cls) for kind, cls in RECORD_TYPES.items() if kind != record_type(CommandOutput)
}
_json: Final = msgspec.json.Decoder(msgspec.Raw)


class Projections:
    """What follows from one log."""

    __slots__ = ("history", "ledger", "spending", "state", "wishes")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self.state, self.history, self.ledger, self.wishes = State(), History(), ApprovalState(), SettingsHistory()
        self.spending = UsageTotals()

    def apply(self, happened: LogPayload, *, at: float) -> None:
        """Take in one entry.

        Raises:
            ValueError: the log would contradict itself.
        """
        self.state.apply(happened, at=at)
        self.history.apply(happened)
        self.ledger.apply(happened, at=at)
        self.wishes.apply(happened)
        self.spending.apply(happened, at=at)

    def replay(self, entries: Iterable[Entry]) -> None:
        """Take in entries that were kept. What is not known here, written by a newer version, says nothing.

        Raises:
            ValueError: the log contradicts itself, or an entry cannot be read.
        """
        for entry in entries:
            decoder = (_EVENTS if entry.is_event else _RECORDS).get(entry.type)
            if decoder is not None:
                self.apply(_compacted(decoder.decode(entry.encoded)), at=entry.at)
                continue
            if entry.is_event:
                _refuse_no_json(entry.encoded)  # clients are sent it as it is
            self.state.updated_at = entry.at


def _refuse_no_json(data: bytes) -> None:
    """Raises ValueError."""
    _json.decode(data)
    if not data.isascii():
        data.decode()


def _compacted(happened: LogPayload) -> LogPayload:
    """As it is kept in memory: what the user said may be long."""
    if (
        isinstance(happened, UserMessage | InputRead)
        and (content := compact(happened.content)) is not happened.content
    ):
        return replace(happened, content=content)
    return happened

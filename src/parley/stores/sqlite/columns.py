"""Reads and writes the columns of a conversation's row that contain its owner and its summary."""

from __future__ import annotations

from typing import Any, Final, get_args

from parley.conversation.state import TurnOutcome
from parley.ports.store import STATES, Owner, Summary
from parley.stores.search import active_at
from parley.wire.events import TurnEndReason
from parley.wire.ids import Seq

__all__ = ["NEWEST", "OWNER", "SUMMARY", "SUMMARY_READ", "as_text", "columns_of", "owner_of", "summary_of"]

OWNER: Final = "owner_node, owner_pid, owner_address, owner_since"
SUMMARY: Final = "title, cwd, model, state, ended_seq, ended_at, ended_why, ended_text, ended_code, updated_at"
SUMMARY_READ: Final = (
    "CAST(title AS BLOB), CAST(cwd AS BLOB), CAST(model AS BLOB), state,"
    " ended_seq, ended_at, CAST(ended_why AS BLOB), CAST(ended_text AS BLOB), CAST(ended_code AS BLOB), updated_at"
)
"""The SQL list of the columns of a summary, for queries that read them. Strings are read as bytes, so that a query
does not fail because of a string that is not valid UTF-8.
"""

NEWEST: Final = "(SELECT max(updated_at) FROM conversations WHERE archived = 0)"
"""A subquery for the time of the newest activity in any conversation that is not archived."""


_Columns = tuple[str, str, str, str, int, float | None, str | None, str | None, str | None, float]


def columns_of(summary: Summary, newest: object = None) -> _Columns:
    """Return the values of the columns `SUMMARY` for the given summary.

    `newest` is the latest recorded time of activity in any conversation. If the conversation is active now and the
    clock was set back, the time of its last activity is later than `newest` (`active_at`). If `newest` is None, the
    time in the summary is not changed.
    """
    shown, at = (summary.title, summary.cwd, summary.model, summary.state), active_at(summary, newest)
    if (ended := summary.outcome) is None:
        return *shown, 0, None, None, None, None, at
    return *shown, ended.seq, ended.at, ended.reason, ended.text, ended.code, at


def summary_of(title: bytes, cwd: bytes, model: bytes, state: Any, *rest: Any) -> Summary:
    """Convert the values of the columns `SUMMARY_READ` to a summary. A default value replaces a damaged value."""
    *outcome, updated_at = rest
    return Summary(
        title=as_text(title),
        cwd=as_text(cwd),
        model=as_text(model),
        state=state if state in STATES else "idle",
        updated_at=updated_at if type(updated_at) is float else 0.0,
        outcome=_outcome(*outcome),
    )


_REASONS: Final[dict[bytes, TurnEndReason]] = {why.encode(): why for why in get_args(TurnEndReason)}


def _outcome(seq: Any, at: Any, why: Any, text: bytes | None, code: bytes | None) -> TurnOutcome | None:
    """Return the outcome of the last turn, which the given columns contain; None if no turn has ended or a column
    is damaged.
    """
    reason = _REASONS.get(why)
    if type(seq) is not int or not seq or type(at) is not float or reason is None:
        return None
    code_text = None if code is None else as_text(code)
    return TurnOutcome(seq=Seq(seq), at=at, reason=reason, text=as_text(text or b""), code=code_text)


def as_text(kept: bytes) -> str:
    return kept.decode(errors="replace")


def owner_of(node: str | None, pid: int | None, address: str | None, since: float | None) -> Owner | None:
    if pid is None:
        return None
    return Owner(node=node or "", pid=pid, address=address or "", since=since or 0.0)

"""Converts summaries, keys and searchable text to columns of the tables, and columns back to summaries."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple, get_args

import msgspec
from msgspec import Struct

from parley.conversation.state import TurnOutcome
from parley.ports.store import STATES, StateName, Summary
from parley.stores.search import normalize_path, words_of
from parley.wire.events import TurnEndReason
from parley.wire.ids import Seq

__all__ = [
    "SUMMARY",
    "SummaryColumns",
    "changed_columns",
    "digest_of_key",
    "digest_of_path",
    "folded",
    "pattern_of",
    "searchable",
    "summary_in",
]

DIGEST_BYTES: Final = 16
SUMMARY: Final = "c.state, c.updated_at, c.details, c.ended_seq, c.ended_at"
"""The SQL list of columns whose values are the arguments of `summary_in`."""

SEPARATOR: Final = "\x01"
NUL_REPLACEMENT: Final = "\x02"
"""The character that replaces NUL in searchable text and in search strings, because the type `text` of
PostgreSQL cannot contain NUL.
"""

_REASONS: Final = frozenset(get_args(TurnEndReason))


class _Details(Struct, frozen=True, array_like=True):
    """The parts of a summary by which no query searches or sorts. The column `details` contains these parts as
    JSON.
    """

    title: str
    cwd: str
    model: str
    reason: str | None = None
    text: str = ""
    code: str | None = None


_decoder: Final = msgspec.json.Decoder(_Details)
_encode: Final = msgspec.json.Encoder().encode


class SummaryColumns(NamedTuple):
    """The values of the columns for a summary. The columns `details`, `title` and `directory` seldom change during
    a turn.
    """

    details: bytes
    title: str
    """The casefolded title, in which `Query.text` is searched."""
    directory: bytes
    """The digest of the normalized working directory. The column has an index, which cannot contain a long path."""
    state: str
    updated_at: float
    is_active: bool
    ended_seq: int
    ended_at: float | None
    has_failed: bool

    @classmethod
    def of(cls, summary: Summary) -> SummaryColumns:
        ended = summary.outcome
        details = (
            _Details(summary.title, summary.cwd, summary.model)
            if ended is None
            else _Details(summary.title, summary.cwd, summary.model, ended.reason, ended.text, ended.code)
        )
        return cls(
            _encode(details),
            folded(summary.title),
            digest_of_path(summary.cwd),
            summary.state,
            summary.updated_at,
            summary.is_active,
            0 if ended is None else ended.seq,
            None if ended is None else ended.at,
            ended is not None and ended.has_failed,
        )


def changed_columns(summary: Summary, before: Summary | None) -> tuple[Any, ...] | None:
    """Return the values of the columns `details`, `title`, `directory`, `ended_seq`, `ended_at` and `has_failed`;
    None if these values are the same as for `before`, the summary that the database contains. `before` is None if
    the stored summary is unknown.
    """
    is_same = (
        before is not None
        and summary.title == before.title
        and summary.cwd == before.cwd
        and summary.model == before.model
        and summary.outcome == before.outcome
    )
    if is_same:
        return None
    columns = SummaryColumns.of(summary)
    return *columns[:3], *columns[6:]


def summary_in(state: str, updated_at: float, details: bytes, ended_seq: int, ended_at: float | None) -> Summary:
    """Convert the values of the columns `SUMMARY` to a summary."""
    known = _decoder.decode(details)
    outcome = None
    if ended_seq and ended_at is not None and known.reason in _REASONS:
        reason: Any = known.reason
        outcome = TurnOutcome(seq=Seq(ended_seq), at=ended_at, reason=reason, text=known.text, code=known.code)
    name: StateName = state if state in STATES else "idle"  # type: ignore[assignment]  # the state was just checked
    return Summary(
        title=known.title,
        cwd=known.cwd,
        model=known.model,
        state=name,
        updated_at=updated_at,
        outcome=outcome,
    )


def digest_of_key(kind: str, key: str) -> bytes:
    """Return the digest of the type `kind` and the key `key`. An index finds an entry by this digest.

    The index cannot contain the keys themselves, because a key can be too long.
    """
    return _digest(kind.encode() + b"\0" + key.encode(errors="surrogatepass"))


def digest_of_path(path: str) -> bytes:
    return _digest(normalize_path(path).encode(errors="surrogateescape"))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def searchable(body: bytes) -> str:
    """Return the text of a message and of its items as one string, in the form that is stored for searches. `body`
    is the encoded message.
    """
    return SEPARATOR.join(folded(words) for words in words_of(body))


def folded(text: str) -> str:
    """Return `text` casefolded and with each NUL replaced with `NUL_REPLACEMENT`, for comparisons that ignore
    case.
    """
    return text.casefold().replace("\0", NUL_REPLACEMENT)


def pattern_of(text: str) -> str:
    """Return the LIKE pattern that finds `text` anywhere in a title or in the searchable form of a message,
    ignoring case.
    """
    escaped = folded(text).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"

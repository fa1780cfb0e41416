"""The kinds of replies that a scripted model can send, complete and broken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from parley.testing.steps import Step

__all__ = ["Bulk", "Cut", "Ending", "Failure", "RawBody", "Reply", "Says"]

Ending: TypeAlias = Literal["end", "close", "reset", "hang"]
"""The end of a broken reply: the body ends too early (`end`), the connection is closed or reset within the body
(`close`, `reset`), or the connection stays open without further data (`hang`).
"""


class Says(Struct, frozen=True):
    """A complete reply, as a sequence of steps."""

    steps: tuple[Step, ...]


class Failure(Struct, frozen=True, kw_only=True):
    """An HTTP error instead of a reply."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = {}


class Cut(Struct, frozen=True, kw_only=True):
    """A reply that breaks off after its steps, or after `at` bytes of its body.

    `how` determines the kind of the end.
    """

    steps: tuple[Step, ...]
    at: int | None = None
    how: Ending = "close"


class RawBody(Struct, frozen=True, kw_only=True):
    """A raw body without chunked encoding, sent in writes of `cut_every` bytes, or in one write by default."""

    body: bytes
    cut_every: int | None = None
    how: Ending = "end"


class Bulk(Struct, frozen=True, kw_only=True):
    """One delta that is sent many times, each time in its own chunk, as fast as the client reads."""

    deltas: int
    text: str = "abcdefgh"


Reply: TypeAlias = Says | Failure | Cut | RawBody | Bulk

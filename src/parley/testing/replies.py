"""The ways a scripted model can answer, good and bad."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from parley.testing.steps import Step

__all__ = ["Bulk", "Cut", "Ending", "Failure", "RawBody", "Reply", "Says"]

Ending: TypeAlias = Literal["end", "close", "reset", "hang"]
"""How a broken reply stops: the body ends in order, though too early; the connection is closed, or
reset, in mid-body; or it stays open and nothing more comes."""


class Says(Struct, frozen=True):
    """A good reply."""

    steps: tuple[Step, ...]


class Failure(Struct, frozen=True, kw_only=True):
    """A status and a body instead of a reply."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = {}


class Cut(Struct, frozen=True, kw_only=True):
    """A reply that stops behind its steps, or after `at` bytes of what it would have been."""

    steps: tuple[Step, ...]
    at: int | None = None
    how: Ending = "close"


class RawBody(Struct, frozen=True, kw_only=True):
    """A body as it is, without chunks, in writes of `cut_every` bytes."""

    body: bytes
    cut_every: int | None = None
    how: Ending = "end"


class Bulk(Struct, frozen=True, kw_only=True):
    """The same delta many times, each a chunk of its own, sent as fast as it is taken."""

    deltas: int
    text: str = "abcdefgh"


Reply: TypeAlias = Says | Failure | Cut | RawBody | Bulk

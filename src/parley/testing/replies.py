"""The replies of a scripted model, complete and broken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from parley.testing.steps import Step

__all__ = ["Bulk", "Cut", "Ending", "Failure", "RawBody", "Reply", "Says"]

Ending: TypeAlias = Literal["end", "close", "reset", "hang"]
"""How a broken reply stops: the body ends regularly but too early; the connection is closed or reset within the
body; or it stays open without further data."""


class Says(Struct, frozen=True):
    """A complete reply."""

    steps: tuple[Step, ...]


class Failure(Struct, frozen=True, kw_only=True):
    """An HTTP error instead of a reply."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = {}


class Cut(Struct, frozen=True, kw_only=True):
    """A reply that stops after its steps, or after `at` bytes of its body."""

    steps: tuple[Step, ...]
    at: int | None = None
    how: Ending = "close"


class RawBody(Struct, frozen=True, kw_only=True):
    """A body as it is, without chunked encoding, in writes of `cut_every` bytes; by default in one."""

    body: bytes
    cut_every: int | None = None
    how: Ending = "end"


class Bulk(Struct, frozen=True, kw_only=True):
    """One delta repeated many times, each in its own chunk, sent as fast as it is read."""

    deltas: int
    text: str = "abcdefgh"


Reply: TypeAlias = Says | Failure | Cut | RawBody | Bulk

"""The kinds of replies that a scripted model can send, complete and broken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from parley.testing.steps import Step

__all__ = ["Bulk", "Cut", "Ending", "Failure", "RawBody", "Reply", "Says"]

Ending: TypeAlias = Literal["end", "close", "reset", "hang"]
"""How a broken reply ends: the body ends too early (`end`), the connection is closed within the body (`close`), the
connection is reset within the body (`reset`), or the connection stays open without further data (`hang`).
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

    After the last byte, the body ends too early, or the connection is closed, reset or left open, as `how`
    specifies (see `Ending`).
    """

    steps: tuple[Step, ...]
    at: int | None = None
    how: Ending = "close"


class RawBody(Struct, frozen=True, kw_only=True):
    """A raw body without chunked encoding. The body is sent in writes of `cut_every` bytes each; by default, in one
    write.
    """

    body: bytes
    cut_every: int | None = None
    how: Ending = "end"


class Bulk(Struct, frozen=True, kw_only=True):
    """A complete reply in which the delta `text` is sent `deltas` times. Each delta is a separate chunk. The deltas
    are sent as fast as the client reads them.
    """

    deltas: int
    text: str = "abcdefgh"


Reply: TypeAlias = Says | Failure | Cut | RawBody | Bulk

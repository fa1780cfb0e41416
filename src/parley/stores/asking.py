"""Which question a record asks, the same for every store."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from parley.wire.ids import ApprovalId

__all__ = ["question_in"]


class _Asked(Struct):
    """As much of the record as tells questions apart."""

    approval_id: ApprovalId


_decoder: Final = msgspec.json.Decoder(_Asked)


def question_in(body: bytes) -> ApprovalId | None:
    """The id of the question; None: the record is damaged."""
    try:
        return _decoder.decode(body).approval_id
    except ValueError:
        return None

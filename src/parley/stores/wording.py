"""Whether somebody said something: the search of a list, the same for every store."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from parley.wire.events import AgentMessage, UserMessage, event_type

__all__ = ["SEARCHED", "said"]


class _Said(Struct):
    """As much of a message as a search looks at; what else it holds is not decoded."""

    class Item(Struct):
        text: str = ""

    message: str = ""
    content: tuple[Item, ...] = ()


SEARCHED: Final = (event_type(UserMessage), event_type(AgentMessage))
"""The events in which a search looks."""

_decoder: Final = msgspec.json.Decoder(_Said)


def said(text: str, body: bytes) -> bool:
    """Whether the text, which was casefolded, stands in the event of one of those types."""
    try:
        event = _decoder.decode(body)
    except ValueError:
        return False  # an event of a newer version, or a damaged one
    return text in event.message.casefold() or any(text in item.text.casefold() for item in event.content)

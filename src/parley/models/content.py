"""What the user said, in the form that this release can send to a model."""

from __future__ import annotations

from parley.conversation.history import UserItem
from parley.wire.items import TextItem

__all__ = ["texts_of"]


def texts_of(item: UserItem) -> list[str]:
    """The texts of a message, in order.

    Raises:
        TypeError: it holds something else, which should have been refused when it was sent.
    """
    texts: list[str] = []
    for part in item.content:
        if not isinstance(part, TextItem):
            raise TypeError(f"no model API can be sent a {type(part).__name__} yet")
        texts.append(part.text)
    return texts

"""The items of a user's message: text, images and files."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

__all__ = [
    "Detail",
    "FileItem",
    "ImageItem",
    "InputItem",
    "LocalImageItem",
    "LongTextItem",
    "TextItem",
    "beginning_of",
    "compact",
    "is_text",
    "text_of",
]

Detail = Literal["low", "high", "auto"]

LONG_TEXT: Final = 256 * 1024
"""The minimum length, in characters, of text that is held in memory as JSON (`LongTextItem`)."""

BEGINNING_BYTES: Final = 4096
"""The approximate size in bytes of the text that `LongTextItem.beginning` returns."""


class TextItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="text", gc=False):
    text: str


_held: Final[Any] = TextItem.__dict__["text"]
"""The descriptor of the field `text` of `TextItem`, through which `LongTextItem` reads the stored value.
"""


class LongTextItem(TextItem, frozen=True, kw_only=True, gc=False):
    """A text item that stores its text as JSON and decodes it on each access.

    This saves memory. A Python string with an emoji takes four bytes for each character, and the string also caches
    its UTF-8 encoding.
    """

    @classmethod
    def of(cls, text: str) -> LongTextItem:
        encoded: Any = Raw(msgspec.json.encode(text))
        return cls(text=encoded)

    @property
    def encoded(self) -> Raw:
        """The text, encoded as a JSON string."""
        raw: Raw = _held.__get__(self)
        return raw

    @property  # type: ignore[misc]  # replaces the field of the base class
    def text(self) -> str:
        return msgspec.json.decode(self.encoded, type=str)

    @property
    def beginning(self) -> str:
        """The beginning of the text, about `BEGINNING_BYTES` long."""
        encoded = memoryview(self.encoded)
        # The decoded part must not end inside a character or an escape.
        for end in range(BEGINNING_BYTES, BEGINNING_BYTES - 12, -1):
            try:
                return msgspec.json.decode(b'%b"' % bytes(encoded[:end]), type=str)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return self.text[:BEGINNING_BYTES]


class ImageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="image", gc=False):
    """An image, given by its URL (a `data:` URL is allowed) or by the provider's file id."""

    image_url: str | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET
    detail: Detail | UnsetType | None = UNSET


class LocalImageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="local_image", gc=False):
    """An image in a file on the server's disk."""

    path: str


class FileItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="file", gc=False):
    """A file, given by its URL, by the provider's file id, or as base64 data with a name."""

    file_url: str | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET
    file_data: str | UnsetType | None = UNSET
    filename: str | UnsetType | None = UNSET
    """The name of the file in `file_data`; ignored for a URL or a file id."""


InputItem = TextItem | ImageItem | LocalImageItem | FileItem


def text_of(content: tuple[InputItem, ...]) -> str:
    """Return the text of a message: the text of its text items, joined without a separator."""
    return "".join(item.text for item in content if isinstance(item, TextItem))


def is_text(content: tuple[InputItem, ...]) -> bool:
    """Return whether all items of a message are text items. This function is fast even for a million items."""
    return all(issubclass(kind, TextItem) for kind in set(map(type, content)))


def beginning_of(content: tuple[InputItem, ...]) -> str:
    """Return the beginning of a message's text. It is about `BEGINNING_BYTES` long or longer, unless the complete
    text is shorter.
    """
    words: list[str] = []
    size = 0
    for item in content:
        if isinstance(item, TextItem):
            if isinstance(item, LongTextItem):
                words.append(item.beginning)
                break  # the rest of this item comes before the next item
            words.append(item.text[:BEGINNING_BYTES])
            size += len(words[-1])
            if size >= BEGINNING_BYTES:
                break
    return "".join(words)


def compact(content: tuple[InputItem, ...]) -> tuple[InputItem, ...]:
    """Return `content` with a `LongTextItem` in place of each text item whose text is long and not ASCII. If there
    is no such item, return `content` itself.
    """
    if not any(type(item) is TextItem and _is_worth_packing(item.text) for item in content):
        return content
    return tuple(
        LongTextItem.of(item.text) if type(item) is TextItem and _is_worth_packing(item.text) else item
        for item in content
    )


def _is_worth_packing(text: str) -> bool:
    return len(text) >= LONG_TEXT and not text.isascii()

"""What a user may put into a message."""

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
"""Length in characters from which a text is kept as JSON."""

BEGINNING_BYTES: Final = 4096
"""Length of the beginning of a long text."""


class TextItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="text", gc=False):
    text: str


_held: Final[Any] = TextItem.__dict__["text"]
"""Reads what a text item holds."""


class LongTextItem(TextItem, frozen=True, kw_only=True, gc=False):
    """A text item that holds its text as JSON, and decodes it whenever it is asked for.

    A Python string with one emoji takes four bytes for each character, and another copy once it was encoded.
    """

    @classmethod
    def of(cls, text: str) -> LongTextItem:
        encoded: Any = Raw(msgspec.json.encode(text))
        return cls(text=encoded)

    @property
    def encoded(self) -> Raw:
        """The text as a JSON string."""
        raw: Raw = _held.__get__(self)
        return raw

    @property  # type: ignore[misc]  # the base class declares a field, and this reads what is in it
    def text(self) -> str:
        return msgspec.json.decode(self.encoded, type=str)

    @property
    def beginning(self) -> str:
        """The first few thousand characters."""
        encoded = memoryview(self.encoded)
        for end in range(
            BEGINNING_BYTES, BEGINNING_BYTES - 12, -1
        ):  # the cut may go through a character or an escape
            try:
                return msgspec.json.decode(b'%b"' % bytes(encoded[:end]), type=str)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
        return self.text[:BEGINNING_BYTES]


class ImageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="image", gc=False):
    """An image by address (also `data:`) or by the provider's file id."""

    image_url: str | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET
    detail: Detail | UnsetType | None = UNSET


class LocalImageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="local_image", gc=False):
    """An image on the server's own disk."""

    path: str


class FileItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="file", gc=False):
    """A file by address, by the provider's id, or as base64 with its name."""

    file_url: str | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET
    file_data: str | UnsetType | None = UNSET
    filename: str | UnsetType | None = UNSET
    """What `file_data` is called; of no use to the others."""


InputItem = TextItem | ImageItem | LocalImageItem | FileItem


def text_of(content: tuple[InputItem, ...]) -> str:
    """The words of a message, its texts joined without separator."""
    return "".join(item.text for item in content if isinstance(item, TextItem))


def is_text(content: tuple[InputItem, ...]) -> bool:
    """Return whether all items are texts; fast for a million items as well."""
    return all(issubclass(kind, TextItem) for kind in set(map(type, content)))


def beginning_of(content: tuple[InputItem, ...]) -> str:
    """The beginning of the words of a message: at least `BEGINNING_BYTES` of it, where there are as many."""
    words: list[str] = []
    size = 0
    for item in content:
        if isinstance(item, TextItem):
            words.append(item.beginning if isinstance(item, LongTextItem) else item.text[:BEGINNING_BYTES])
            size += len(words[-1])
            if size >= BEGINNING_BYTES:
                break
    return "".join(words)


def compact(content: tuple[InputItem, ...]) -> tuple[InputItem, ...]:
    """The same content with long texts that are not ASCII as `LongTextItem`; the same object if there is none."""
    if not any(type(item) is TextItem and _is_worth_packing(item.text) for item in content):
        return content
    return tuple(
        LongTextItem.of(item.text) if type(item) is TextItem and _is_worth_packing(item.text) else item
        for item in content
    )


def _is_worth_packing(text: str) -> bool:
    return len(text) >= LONG_TEXT and not text.isascii()

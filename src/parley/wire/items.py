"""What a user may put into a message."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "Detail",
    "FileItem",
    "ImageItem",
    "InputItem",
    "LocalImageItem",
    "TextItem",
    "text_of",
]

Detail = Literal["low", "high", "auto"]


class TextItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class ImageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """An image by address (also `data:`) or by the provider's file id."""

    image_url: str | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET
    detail: Detail | UnsetType | None = UNSET


class LocalImageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="local_image"):
    """An image on the server's own disk."""

    path: str


class FileItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="file"):
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

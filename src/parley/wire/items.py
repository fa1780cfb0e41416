"""What a user may put into a message."""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "Detail",
    "FileItem",
    "ImageItem",
    "InputItem",
    "LocalImageItem",
    "TextItem",
    "flaw_of",
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


# --- items that say too little or too much -----------------------------------------------

_BASE64: Final = re.compile("[A-Za-z0-9+/]*+(?:(?<=[AQgw])==|(?<=[AEIMQUYcgkosw048])=)?")
"""As it is written by whoever encodes bytes: what is left of the last letter stays zero. Never looks back over
what it has read: a file may be tens of megabytes."""


def flaw_of(item: InputItem) -> str | None:
    """What is wrong with an item, whoever it is for: a sentence that names it. None: nothing."""
    match item:
        case ImageItem():
            return _flaw_of_sources("an image", image_url=item.image_url, file_id=item.file_id)
        case FileItem(file_data=data):
            flaw = _flaw_of_sources("a file", file_url=item.file_url, file_id=item.file_id, file_data=data)
            if flaw or not isinstance(data, str):
                return flaw
            if not item.filename:
                return "a file with `file_data` has to have a `filename`"
            return None if _is_base64(data) else "the `file_data` of a file has to be base64"
        case _:
            return None


def _flaw_of_sources(what: str, **sources: str | UnsetType | None) -> str | None:
    """Exactly one of the places that something may come from has to be named."""
    named = [name for name, value in sources.items() if isinstance(value, str)]
    match named:
        case []:
            return f"{what} has to have one of {', '.join(f'`{name}`' for name in sources)}"
        case [name]:
            return None if sources[name] else f"the `{name}` of {what} is empty"
        case _:
            return f"{what} cannot have {' and '.join(f'`{name}`' for name in named)} at once"


def _is_base64(text: str) -> bool:
    return len(text) % 4 == 0 and _BASE64.fullmatch(text) is not None

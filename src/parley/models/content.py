"""Images and files in what the user said: what they are called, and how their bytes travel.

Knows no model API: how a part is written down stays with each of them.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

from parley.wire.items import FileItem, ImageItem, InputItem, LocalImageItem, TextItem

__all__ = ["file_data_url", "left_out", "refusal"]

PDF: Final = "application/pdf"
_PDF_BEGINS: Final = "JVBERi"
"""`%PDF` in base64."""

_OFFICE: Final = "application/vnd.openxmlformats-officedocument"

MEDIA_TYPES: Final = {
    ".csv": "text/csv",
    ".doc": "application/msword",
    ".docx": f"{_OFFICE}.wordprocessingml.document",
    ".html": "text/html",
    ".json": "application/json",
    ".md": "text/markdown",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".pdf": PDF,
    ".ppt": "application/vnd.ms-powerpoint",
    ".pptx": f"{_OFFICE}.presentationml.presentation",
    ".rtf": "application/rtf",
    ".tsv": "text/tab-separated-values",
    ".xls": "application/vnd.ms-excel",
    ".xlsx": f"{_OFFICE}.spreadsheetml.sheet",
}
"""By how a name ends. All else is called plain text, which source code is; other kinds no provider reads."""

PLAIN_TEXT: Final = "text/plain"


def file_data_url(data: str, filename: str) -> str:
    """A file as providers take it: base64 alone is not enough, they want to be told its type."""
    if data.startswith(_PDF_BEGINS):
        media_type = PDF
    else:
        media_type = MEDIA_TYPES.get(PurePath(filename).suffix.lower(), PLAIN_TEXT)
    return f"data:{media_type};base64,{data}"


def refusal(item: InputItem, *, api: str) -> str:
    """Why a message with this item is not taken."""
    return f"{_name(item)} cannot be sent over the {api} API"


def left_out(item: InputItem, *, api: str) -> str:
    """What the model reads where the history holds an item that its API has no place for."""
    return f"[Left out: {refusal(item, api=api)}.]"


def _name(item: InputItem) -> str:
    match item:
        case TextItem():
            return "a text"
        case ImageItem(image_url=str()):
            return "an image by address"
        case ImageItem():
            return "an image by file id"
        case LocalImageItem(path=path):
            return f"the unread image {path}"
        case FileItem(file_url=str()):
            return "a file by address"
        case FileItem(file_data=str(), filename=str(name)):
            return f"the file {name}"
        case FileItem():
            return "a file by file id"

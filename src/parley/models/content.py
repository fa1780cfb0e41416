"""Checks the images and files in user messages, and describes and encodes them for all model APIs. The module of
each API encodes the other parts of a message.
"""

from __future__ import annotations

import re
from base64 import b64decode
from pathlib import PurePath
from typing import Final

from msgspec import Raw, UnsetType

from parley.wire.items import FileItem, ImageItem, InputItem, LocalImageItem, LongTextItem, TextItem, text_of
from parley.wire.jsonrpc import encode

__all__ = ["file_data_url", "flaw_of", "is_pdf", "joined_text", "left_out", "refusal", "text_in"]

PDF: Final = "application/pdf"
_PDF_BEGINS: Final = "JVBERi"
"""The beginning of a PDF file, `%PDF`, in base64."""

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
"""Media types, keyed by file extension. Every other file, such as source code, is sent as plain text."""

PLAIN_TEXT: Final = "text/plain"


def file_data_url(data: str, filename: str) -> str:
    """Return a file as a data URL. Providers require this form, because it contains the media type of the base64
    data.
    """
    media_type = PDF if is_pdf(data) else MEDIA_TYPES.get(PurePath(filename).suffix.lower(), PLAIN_TEXT)
    return f"data:{media_type};base64,{data}"


def is_pdf(data: str) -> bool:
    """Return whether a file, given in base64, is a PDF. The result does not depend on the file name."""
    return data.startswith(_PDF_BEGINS)


def text_in(data: str) -> str | None:
    """Return the text of a file that is given in base64; None if the file is not valid UTF-8 or contains a NUL
    character.
    """
    try:
        text = b64decode(data, validate=True).decode("utf-8-sig")
    except ValueError:
        return None
    return None if "\0" in text else text


def joined_text(content: tuple[InputItem, ...]) -> str | Raw:
    """Join the text items of a message into one string. The result is a JSON string if one of these items is stored
    as JSON.
    """
    if LongTextItem not in set(map(type, content)):
        return text_of(content)
    strings = (
        item.encoded if isinstance(item, LongTextItem) else encode(item.text)
        for item in content
        if isinstance(item, TextItem)
    )
    return Raw(b'"%b"' % b"".join(memoryview(one)[1:-1] for one in strings))


def refusal(item: InputItem, *, api: str) -> str:
    """Return the error message for an item that the model API with the name `api` does not support."""
    return f"{_name(item)} cannot be sent over the {api} API"


def left_out(item: InputItem, *, api: str) -> str:
    """Return the text that the model gets in place of an item that the model API `api` does not support."""
    return f"[Left out: {refusal(item, api=api)}.]"


def _name(item: InputItem) -> str:
    match item:
        case TextItem():
            return "a text"
        case ImageItem(image_url=str()):
            return "an image by URL"
        case ImageItem():
            return "an image by file id"
        case LocalImageItem(path=path):
            return f"the unread image {path}"
        case FileItem(file_url=str()):
            return "a file by URL"
        case FileItem(file_data=str(), filename=str(name)):
            return f"the file {name}"
        case FileItem():
            return "a file by file id"


# --- invalid items -----------------------------------------------------------------------

_BASE64_DIGITS: Final = re.compile("[A-Za-z0-9+/]*")
_BASE64_END: Final = re.compile("|[AQgw]==|[AEIMQUYcgkosw048]=")
"""The pattern of the last base64 digits and their padding. The unused bits of the last digit must be zero."""


def flaw_of(item: InputItem) -> str | None:
    """Return the reason why every model API would refuse an item, as an error message. Return None if the item is
    valid.
    """
    match item:
        case ImageItem():
            return _flaw_of_sources("an image", image_url=item.image_url, file_id=item.file_id)
        case FileItem(file_data=data):
            flaw = _flaw_of_sources("a file", file_url=item.file_url, file_id=item.file_id, file_data=data)
            if flaw or not isinstance(data, str):
                return flaw
            if not item.filename:
                return "a file with `file_data` needs a `filename`"
            return None if _is_base64(data) else "the `file_data` of a file must be base64"
        case _:
            return None


def _flaw_of_sources(what: str, **sources: str | UnsetType | None) -> str | None:
    """Return an error message about the sources of an item; None if exactly one source is given and it is not
    empty. `what` names the item in the message, and `sources` maps the name of each possible source to its value.
    """
    named = [name for name, value in sources.items() if isinstance(value, str)]
    match named:
        case []:
            return f"{what} needs one of {', '.join(f'`{name}`' for name in sources)}"
        case [name]:
            return None if sources[name] else f"the `{name}` of {what} is empty"
        case _:
            return f"{what} cannot have {' and '.join(f'`{name}`' for name in named)} at once"


def _is_base64(text: str) -> bool:
    """Return whether a string is valid base64. Each character is read only once, because a file may be tens of
    megabytes long.
    """
    digits = _BASE64_DIGITS.match(text)
    padded = text[digits.end() - 1 :] if digits and digits.end() < len(text) else ""
    return len(text) % 4 == 0 and _BASE64_END.fullmatch(padded) is not None

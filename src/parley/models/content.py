"""Images and files in what the user said: what they are called, how their bytes travel, what is wrong with them.

Knows no model API: how a part is written down stays with each of them.
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
    media_type = PDF if is_pdf(data) else MEDIA_TYPES.get(PurePath(filename).suffix.lower(), PLAIN_TEXT)
    return f"data:{media_type};base64,{data}"


def is_pdf(data: str) -> bool:
    """Whether a file, in base64, is a PDF, whatever it is called."""
    return data.startswith(_PDF_BEGINS)


def text_in(data: str) -> str | None:
    """The text of a file in base64; None if it is none, in UTF-8 and without NUL."""
    try:
        text = b64decode(data, validate=True).decode("utf-8-sig")
    except ValueError:
        return None
    return None if "\0" in text else text


def joined_text(content: tuple[InputItem, ...]) -> str | Raw:
    """The words of a message as one string; as JSON where some of them are kept so."""
    if LongTextItem not in set(map(type, content)):
        return text_of(content)
    strings = (
        item.encoded if isinstance(item, LongTextItem) else encode(item.text)
        for item in content
        if isinstance(item, TextItem)
    )
    return Raw(b'"%b"' % b"".join(memoryview(one)[1:-1] for one in strings))


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


# --- items that say too little or too much -----------------------------------------------

_BASE64_DIGITS: Final = re.compile("[A-Za-z0-9+/]*")
_BASE64_END: Final = re.compile("|[AQgw]==|[AEIMQUYcgkosw048]=")
"""The last digit and its padding, as an encoder writes them: the bits of the digit that are not used are zero."""


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
    """A file may be tens of megabytes: each character is looked at once."""
    digits = _BASE64_DIGITS.match(text)
    padded = text[digits.end() - 1 :] if digits and digits.end() < len(text) else ""
    return len(text) % 4 == 0 and _BASE64_END.fullmatch(padded) is not None

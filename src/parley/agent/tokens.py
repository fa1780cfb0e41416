"""How much of a model's context window a request fills: an estimate, and the windows that are known.

Providers count exactly, but only afterwards, and over chat only where they are asked to. This needs no
network and no vocabulary of any model; it errs on the high side, so that a history is shortened
before it is refused rather than after.
"""

from __future__ import annotations

from typing import Final, assert_never

import msgspec

from parley.config.family import family
from parley.conversation.history import HistoryItem, OutputItem, UserItem
from parley.conversation.records import CallItem, MessageFields, MessageItem, OpaqueItem
from parley.ports.model import ModelRequest
from parley.wire.items import FileItem, ImageItem, InputItem, LocalImageItem, LongTextItem, TextItem

__all__ = ["context_window", "estimate"]

# --- estimates ---------------------------------------------------------------------------

BYTES_PER_TOKEN: Final = 3.5
"""Of UTF-8. English prose has four to five characters to a token, source code and JSON about three and a
half. Other scripts have fewer characters to a token and more bytes to a character, by nearly the
same factor: at three bytes each this allows a token for every 1.2 characters of Chinese."""

ITEM_TOKENS: Final = 4
"""What stands around each item: who speaks, and where it ends."""

IMAGE_TOKENS: Final = 1_500
"""Providers charge by size, up to about this much, whatever the image weighs in bytes."""

SMALL_IMAGE_TOKENS: Final = 100
"""With `detail` low every image is made small first."""

FILE_TOKENS: Final = 5_000
"""A file that only the provider can see: a few pages."""

DOCUMENT_BYTES_PER_TOKEN: Final = 20
"""Of base64, in formats that are packed: fonts, pictures and layout are no tokens."""

_PACKED: Final = ("JVBERi", "UEsDB", "0M8R4K")
"""How PDF, zipped and older office files begin, in base64."""


def estimate(request: ModelRequest) -> int:
    """About how many tokens the request has; time grows with the number of items, hardly with their length."""
    tokens = _of_text(request.instructions)
    if request.developer_instructions:
        tokens += ITEM_TOKENS + _of_text(request.developer_instructions)
    tokens += sum(ITEM_TOKENS + _of_text(text) for text in request.context)
    tokens += sum(ITEM_TOKENS + _of_item(item) for item in request.history)
    return tokens + sum(ITEM_TOKENS + _of_size(len(msgspec.json.encode(tool))) for tool in request.tools)


def _of_item(item: HistoryItem) -> int:
    match item:
        case MessageItem(text=text):
            return _of_text(text)
        case OutputItem(output=output):
            return _of_text(output)
        case CallItem(name=name, arguments=arguments):
            return _of_text(name) + _of_text(arguments)
        case OpaqueItem(verbatim=verbatim):
            return _of_size(len(bytes(verbatim)))
        case MessageFields(fields=fields):
            return _of_size(len(bytes(fields)))
        case UserItem(content=content):
            return sum(map(_of_input, content))
        case _:
            assert_never(item)


def _of_input(item: InputItem) -> int:
    match item:
        case LongTextItem(encoded=encoded):
            return _of_size(len(memoryview(encoded)))
        case TextItem(text=text):
            return _of_text(text)
        case ImageItem(detail="low"):
            return SMALL_IMAGE_TOKENS
        case ImageItem() | LocalImageItem():
            return IMAGE_TOKENS
        case FileItem(file_data=str(data)) if data.startswith(_PACKED):
            return len(data) // DOCUMENT_BYTES_PER_TOKEN
        case FileItem(file_data=str(data)):
            return _of_size(len(data) * 3 // 4)
        case FileItem():
            return FILE_TOKENS
        case _:
            assert_never(item)


def _of_text(text: str) -> int:
    # That a text is ASCII is known without looking at it.
    return _of_size(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")))


def _of_size(size: int) -> int:
    return int(size / BYTES_PER_TOKEN) + 1


# --- windows -----------------------------------------------------------------------------

WINDOWS: Final = (
    ("gpt-5-chat", 128_000),
    ("gpt-5", 272_000),  # of 400,000: the rest is kept for the reply
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-oss", 131_072),
    ("codex-mini", 200_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
)
"""How the names of models begin, and what a request to them may fill, in tokens; the first that fits counts."""


def context_window(model: str, configured: int | None) -> int | None:
    """The window of a model: as configured, else as far as it is known. None: it is not."""
    if configured is not None:
        return configured
    name = family(model)
    return next((window for beginning, window in WINDOWS if name.startswith(beginning)), None)

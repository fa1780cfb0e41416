"""Estimates the number of tokens in a request, and lists the known context windows of models. Providers report
exact counts, but only after the request. The estimate needs no network and no vocabulary. The estimate tends to be
too high, so that a history is compacted before the provider refuses a request.
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
"""The assumed number of UTF-8 bytes per token. English prose has four to five characters per token; code and JSON
have about three and a half. Other scripts have fewer characters per token but more bytes per character, so the
number of bytes per token is similar. For Chinese, with three bytes per character, the estimate is one token for
every 1.2 characters.
"""

ITEM_TOKENS: Final = 4
"""The number of tokens for each item in addition to its content. These tokens encode the role and the end of the
item.
"""

IMAGE_TOKENS: Final = 1_500
"""The assumed number of tokens for an image. Providers charge by the dimensions of an image, up to about this
number.
"""

SMALL_IMAGE_TOKENS: Final = 100
"""The assumed number of tokens for an image whose `detail` is low. The number is small because providers scale such
an image down.
"""

FILE_TOKENS: Final = 5_000
"""The assumed number of tokens for a file that only the provider has. The number corresponds to a few pages."""

DOCUMENT_BYTES_PER_TOKEN: Final = 20
"""The assumed number of bytes of base64 per token in compressed formats. The number is high because such files also
contain fonts, pictures and layout.
"""

_PACKED: Final = ("JVBERi", "UEsDB", "0M8R4K")
"""The first base64 characters of files in compressed formats: PDF, zip and older office files."""


def estimate(request: ModelRequest) -> int:
    """Return an estimate of the number of tokens in a request. The running time depends on the number of items, but
    hardly on the length of the items.
    """
    tokens = _of_text(request.instructions)
    if request.developer_instructions:
        tokens += ITEM_TOKENS + _of_text(request.developer_instructions)
    if request.output_schema is not None:
        tokens += ITEM_TOKENS + _of_size(len(msgspec.json.encode(request.output_schema)))
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
    # `isascii` is fast, because it does not scan the text.
    return _of_size(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")))


def _of_size(size: int) -> int:
    return int(size / BYTES_PER_TOKEN) + 1


# --- windows -----------------------------------------------------------------------------

WINDOWS: Final = (
    ("gpt-5-chat", 128_000),
    ("gpt-5", 272_000),  # the context window has 400,000 tokens, of which 128,000 are reserved for the response
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-oss", 131_072),
    ("codex-mini", 200_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
)
"""Prefixes of model names, each with the maximum size of a request in tokens. The first matching prefix is used."""


def context_window(model: str, configured: int | None) -> int | None:
    """Return the context window of a model in tokens; None if the window is neither configured nor known."""
    if configured is not None:
        return configured
    name = family(model)
    return next((window for beginning, window in WINDOWS if name.startswith(beginning)), None)

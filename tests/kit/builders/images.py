"""Valid images of one pixel, and one of any size in bytes."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Final

__all__ = ["GIF", "IMAGES", "JPEG", "PNG", "WEBP", "as_data_url", "large_png"]


def _chunk(name: bytes, content: bytes) -> bytes:
    checked = name + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))


_PNG_HEAD: Final = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
_PNG_TAIL: Final = _chunk(b"IDAT", zlib.compress(b"\0\x7f")) + _chunk(b"IEND", b"")

PNG: Final = _PNG_HEAD + _PNG_TAIL
"""A grey pixel."""


def large_png(size: int) -> bytes:
    """Return a PNG of one pixel with this many bytes: a chunk of zeros comes before the pixel."""
    return _PNG_HEAD + _chunk(b"noTe", bytes(size - len(PNG) - 12)) + _PNG_TAIL


def _segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


_ONE_CODE: Final = b"\1" + bytes(15) + b"\0"
"""A Huffman table with one code, `0`, for the value 0."""

JPEG: Final = b"".join(
    (
        b"\xff\xd8",
        _segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"),
        _segment(0xDB, b"\0" + b"\1" * 64),
        _segment(0xC0, b"\x08\0\1\0\1\1\1\x11\0"),
        _segment(0xC4, b"\x00" + _ONE_CODE),
        _segment(0xC4, b"\x10" + _ONE_CODE),
        _segment(0xDA, b"\1\1\0\0\x3f\0"),
        b"\x3f",  # both codes, padded with ones
        b"\xff\xd9",
    )
)
"""A grey pixel: all coefficients are zero."""

GIF: Final = b"".join(
    (
        b"GIF89a",
        b"\1\0\1\0\x80\0\0",
        b"\0\0\0\xff\xff\xff",
        b",\0\0\0\0\1\0\1\0\0",
        b"\2\2\x44\1\0",  # clear, the first colour, end
        b";",
    )
)

WEBP: Final = b"RIFF\x14\0\0\0WEBPVP8L\x08\0\0\0" + struct.pack(
    "<Q", 0x2F | sum(0b0001 << place for place in range(43, 63, 4))
)
"""Lossless: the size, then five tables with one value each, so that the pixel needs no bits."""

IMAGES: Final = {"image/png": PNG, "image/jpeg": JPEG, "image/gif": GIF, "image/webp": WEBP}


def as_data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"

"""Recognizes images by their content, and encodes them as data URLs.

File names and declared media types are ignored. Every request with a broken image fails at the provider, so
truncated data and data without dimensions do not count as an image. Pixels are not decoded. Data after the end of
an image is ignored, because some cameras append a video to an image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

__all__ = ["MAX_IMAGE_BYTES", "MAX_IMAGE_SIZE", "data_url", "image_type"]

MAX_IMAGE_BYTES: Final = 20 * 1024 * 1024
"""The maximum size of an image, in bytes. All providers have lower limits."""

MAX_IMAGE_SIZE: Final = f"{MAX_IMAGE_BYTES // 1024**2} MiB"
"""`MAX_IMAGE_BYTES` as a string for error messages."""


def image_type(data: bytes) -> str | None:
    """Return the media type of a PNG, JPEG, GIF or WebP image that seems complete; None for any other data."""
    for signature, kind, is_whole in _KINDS:
        if data.startswith(signature):
            return kind if is_whole(data) else None
    return None


def data_url(data: bytes) -> str:
    """Encode an image as a data URL, and return the URL.

    Raises:
        ValueError: `data` is too large, or is not an image for which `image_type` returns a media type.
    """
    if len(data) > MAX_IMAGE_BYTES:
        raise ValueError(f"larger than {MAX_IMAGE_SIZE}")
    kind = image_type(data)
    if kind is None:
        raise ValueError("not a PNG, JPEG, GIF or WebP image")
    return f"data:{kind};base64,{msgspec.to_builtins(data)}"


# --- checks that an image is complete -----------------------------------------------------------


def _is_whole_png(data: bytes) -> bool:
    if data[8:16] != b"\0\0\0\x0dIHDR" or not (any(data[16:20]) and any(data[20:24])):
        return False
    pixels = data.find(b"IDAT", 33)
    return pixels >= 0 and data.find(b"\0\0\0\0IEND\xaeB`\x82", pixels) >= 0


_MAX_SEGMENTS: Final = 4096
"""The maximum number of segments before the pixels of a JPEG. A file of 20 MiB that consists of comments of the
maximum size has 320 segments. A hostile file could have millions of small segments.
"""
_FILLING: Final = frozenset((0x00, 0x01, *range(0xD0, 0xD8), 0xFF))
"""The bytes that do not begin a segment of a JPEG when they follow 0xFF. Decoders skip these bytes."""
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA


def _is_whole_jpeg(data: bytes) -> bool:
    at, has_size = 2, False
    for _ in range(_MAX_SEGMENTS):
        at = data.find(b"\xff", at)
        if at < 0 or at + 4 > len(data):
            return False
        marker, segment_end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in _FILLING:
            at += 1
        elif marker in (_START, _END):
            return False
        elif marker == _SCAN:  # pixel data cannot contain a marker
            return has_size and data.find(bytes((0xFF, _END)), segment_end) >= 0
        else:
            if marker in _FRAMES:
                has_size = any(data[at + 5 : at + 7]) and any(data[at + 7 : at + 9])
            at = max(segment_end, at + 2)
    return False


_MAX_BLOCKS: Final = 128 * 1024
"""The maximum number of blocks before the end of the first frame of a GIF. A normal image of 20 MiB has about
82,000 blocks.
"""


def _is_whole_gif(data: bytes) -> bool:
    """Return whether the first frame of a GIF is complete.

    The trailer after the last frame is not checked, because many files lack it, and decoders do not need it.
    """
    if not (any(data[6:8]) and any(data[8:10])):
        return False
    at, is_frame, is_inside = 13 + _colours(data, 10), False, False
    for _ in range(_MAX_BLOCKS):
        if at >= len(data):
            return False
        first = data[at]
        if is_inside:
            at += 1 + first
            is_inside = first > 0
            if is_frame and not is_inside:
                return True
        elif first in b"!,":
            is_frame, is_inside = first in b",", True
            at += 11 + _colours(data, at + 9) if is_frame else 2
        else:
            return False
    return False


def _colours(data: bytes, place: int) -> int:
    """Return the size, in bytes, of a colour table of a GIF; 0 if the GIF does not contain the table. The flags at
    offset `place` of `data` determine the size.
    """
    flags = int.from_bytes(data[place : place + 1], "big")
    return 3 * 2 ** (1 + flags % 8) if flags & 0x80 else 0


_MAX_CHUNKS: Final = 64
"""The maximum number of chunks before the pixels of a WebP. Before the pixels, a WebP contains its size, its
colours and metadata.
"""
_PIXELS: Final = {b"VP8 ": (3, b"\x9d\x01\x2a"), b"VP8L": (0, b"\x2f"), b"ANMF": (0, b"")}
"""A mapping from the name of each kind of WebP chunk that contains pixels to the offset and the bytes of a marker
in the chunk.
"""


def _is_whole_webp(data: bytes) -> bool:
    padding = len(data) - 8 - int.from_bytes(data[4:8], "little")
    if data[8:12] != b"WEBP" or padding not in (0, 1):
        return False
    at = 12
    for _ in range(_MAX_CHUNKS):
        name, length = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        at, end = at + 8, at + 8 + length
        if end > len(data):
            return False
        if name in _PIXELS:
            place, sign = _PIXELS[name]
            return length > place and data.startswith(sign, at + place, end)
        at = end + length % 2
    return False


_KINDS: Final[tuple[tuple[bytes, str, Callable[[bytes], bool]], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png", _is_whole_png),
    (b"\xff\xd8\xff", "image/jpeg", _is_whole_jpeg),
    (b"GIF87a", "image/gif", _is_whole_gif),
    (b"GIF89a", "image/gif", _is_whole_gif),
    (b"RIFF", "image/webp", _is_whole_webp),
)

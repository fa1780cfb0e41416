"""Images as a model is given them: told apart by their first bytes, and as data URLs.

A name or a media type that somebody claims is not looked at.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["MAX_IMAGE_BYTES", "data_url", "image_type"]

MAX_IMAGE_BYTES: Final = 20 * 1024 * 1024
"""More than any provider takes."""

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_type(data: bytes) -> str | None:
    """The media type of a PNG, JPEG, GIF or WebP; None for everything else."""
    for signature, kind in _SIGNATURES:
        if data.startswith(signature):
            return kind
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def data_url(data: bytes) -> str:
    """An image as an address that holds it.

    Raises:
        ValueError: these bytes are no image.
    """
    kind = image_type(data)
    if kind is None:
        raise ValueError("neither PNG nor JPEG, GIF or WebP")
    return f"data:{kind};base64,{msgspec.to_builtins(data)}"

"""Images on the server's own disk that a message names: read once, when the message comes.

Does not know which model API will carry them, nor judge which file somebody may name: whoever
sends messages here acts as the user.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

from parley.config.files import read_file
from parley.config.types import Settings
from parley.errors import CannotCarry
from parley.wire.images import MAX_IMAGE_BYTES, data_url, image_type
from parley.wire.items import ImageItem, InputItem, LocalImageItem

__all__ = ["read_content"]

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024

MAX_MESSAGE_BYTES: Final = 50 * MIB
"""For all images of a message together: a line may name the largest one a hundred thousand times, and
providers take no more than this in one request."""


async def read_content(content: tuple[InputItem, ...], settings: Settings) -> tuple[InputItem, ...]:
    """The content with every image that it names on disk in place of the name; the same where there is none.

    One that cannot be read is left out (docs/protocol.md, sending).

    Raises:
        CannotCarry: nothing is left, or all together are too large.
    """
    if not any(isinstance(item, LocalImageItem) for item in content):
        return content
    return await asyncio.to_thread(_read_all, content, settings.cwd)


def _read_all(content: tuple[InputItem, ...], cwd: str) -> tuple[InputItem, ...]:
    read: list[InputItem] = []
    room = MAX_MESSAGE_BYTES
    left_out: CannotCarry | None = None
    for place, item in enumerate(content):
        if not isinstance(item, LocalImageItem):
            read.append(item)
            continue
        try:
            data = _read_image(os.path.join(cwd, item.path))
        except (OSError, ValueError) as error:
            left_out = CannotCarry(place, f"{item.path}: {_reason(error)}")
            log.warning("an image was left out: %s", left_out)
            continue
        room -= len(data)
        if room < 0:
            raise CannotCarry(place, f"the images of a message exceed {MAX_MESSAGE_BYTES // MIB} MiB in all")
        read.append(ImageItem(image_url=data_url(data)))
    if left_out is not None and not read:
        raise left_out
    return tuple(read)


def _read_image(path: str) -> bytes:
    """The bytes of an image.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none, is too large, or the path cannot be one.
    """
    data = read_file(path, limit=MAX_IMAGE_BYTES + 1)
    if len(data) > MAX_IMAGE_BYTES:
        raise ValueError(f"larger than {MAX_IMAGE_BYTES // MIB} MiB")
    if image_type(data) is None:
        raise ValueError("not a PNG, JPEG, GIF or WebP image")
    return data


def _reason(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    reason = error.strerror or str(error)
    return f"{reason} (os error {error.errno})" if error.errno else reason

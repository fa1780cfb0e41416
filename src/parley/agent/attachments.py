"""Images and files in requests: reads the local images that a message names, and limits how many old images a
request repeats.

Does not know the model API. A client acts as the user and may name any file that is not hidden. A symbolic link in
the project must not lead out of the project.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from parley.common.guarded_files import read_named
from parley.common.os_errors import os_detail
from parley.config.types import Settings
from parley.conversation.history import HistoryItem, UserItem
from parley.errors import UnsupportedContent
from parley.wire.images import MAX_IMAGE_BYTES, data_url
from parley.wire.items import FileItem, ImageItem, InputItem, LocalImageItem, TextItem, is_text

__all__ = ["check_content", "limit_attachments", "names_files", "read_content"]

log = logging.getLogger(__name__)

MAX_MEGABYTES: Final = 48
"""The most base64 characters of all images and files in one request, and therefore in one message. Without this
limit a message could name a large image a hundred thousand times. Providers accept 50 MB.
"""

ROOM: Final = MAX_MEGABYTES * 1_000_000


async def read_content(content: tuple[InputItem, ...], settings: Settings) -> tuple[InputItem, ...]:
    """Replace each local image of the content by its data; return the same object if there is none.

    An image that cannot be read is left out (docs/protocol.md, sending).

    Raises:
        UnsupportedContent: an image has an unsupported format or is too large, nothing is left, or all images and
            files together are too large.
    """
    if names_files(content):
        return await asyncio.to_thread(_read_all, content, settings.cwd, settings.withheld_paths)
    check_content(content)
    return content


def names_files(content: tuple[InputItem, ...]) -> bool:
    """Return whether a message names images on disk, which have to be read."""
    return not is_text(content) and any(isinstance(item, LocalImageItem) for item in content)


def check_content(content: tuple[InputItem, ...]) -> None:
    """Check the size of a message. Raises UnsupportedContent if all its images and files together are too large."""
    if not is_text(content):
        for place, taken in enumerate(accumulate(map(_weight, content))):
            _refuse_excess(place, taken)


def _read_all(content: tuple[InputItem, ...], cwd: str, hidden: Sequence[str]) -> tuple[InputItem, ...]:
    read: list[InputItem] = []
    taken = 0
    left_out: UnsupportedContent | None = None
    for place, item in enumerate(content):
        given: InputItem = item
        if isinstance(item, LocalImageItem):
            try:
                data = read_named(item.path, cwd=cwd, limit=MAX_IMAGE_BYTES + 1, hidden=hidden)
                given = ImageItem(image_url=data_url(data))
            except OSError as error:
                left_out = UnsupportedContent(place, f"{item.path}: {os_detail(error)}")
                log.warning("an image was left out: %s", left_out)
                continue
            except ValueError as error:
                raise UnsupportedContent(place, f"{item.path}: {error}") from None
        taken += _weight(given)
        _refuse_excess(place, taken)
        read.append(given)
    if left_out is not None and not read:
        raise left_out
    return tuple(read)


def _refuse_excess(place: int, taken: int) -> None:
    if taken > ROOM:
        raise UnsupportedContent(
            place, f"the images and files of a message exceed {MAX_MEGABYTES} MB of base64 in all"
        )


# --- the history -------------------------------------------------------------------------


def limit_attachments(history: Sequence[HistoryItem], *, room: int = ROOM) -> Sequence[HistoryItem]:
    """Replace the oldest images and files of a history by text if all are too large for one request.

    Returns the same object if they are not. An attachment that was replaced once stays replaced as the history
    grows.
    """
    spoken = [item for item in history if isinstance(item, UserItem) and not is_text(item.content)]
    if sum(_weight(part) for item in spoken for part in item.content) <= room:
        return history
    backwards: list[HistoryItem] = []
    for item in reversed(history):
        if isinstance(item, UserItem) and any(map(_weight, item.content)):
            content: list[InputItem] = []
            for part in reversed(item.content):
                room -= _weight(part)
                content.append(_words_for(part) if room < 0 and _weight(part) else part)
            backwards.append(UserItem(tuple(reversed(content))))
        else:
            backwards.append(item)
    return backwards[::-1]


def _weight(item: InputItem) -> int:
    """Return the number of base64 characters of an item; a URL counts as none."""
    match item:
        case ImageItem(image_url=str(url)) if url[:5].lower() == "data:":
            return len(url)
        case FileItem(file_data=str(data)):
            return len(data)
        case _:
            return 0


def _words_for(item: InputItem) -> TextItem:
    name = f"the file {item.filename}" if isinstance(item, FileItem) else "an image"
    return TextItem(text=f"[Left out: {name}, as newer images and files fill the request]")

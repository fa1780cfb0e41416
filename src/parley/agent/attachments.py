"""Images and files in requests to the model.

This module reads the local images that a message names. If the images and files in a request would be too large,
the module replaces the oldest images and files in the history with text. A client acts as the user, so the client
may name any file outside the hidden paths of the settings. However, a symbolic link inside the project must not
lead to a file outside the project.
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
"""The maximum total size, in megabytes of base64, of the images and files in one request. The same limit applies to
one message, because a message is sent in one request. Without a limit, a message could name a large image a hundred
thousand times. The limit is slightly below the 50 MB that providers accept.
"""

MAX_BASE64_CHARACTERS: Final = MAX_MEGABYTES * 1_000_000


async def read_content(content: tuple[InputItem, ...], settings: Settings) -> tuple[InputItem, ...]:
    """Return the content of a message with each local image replaced with its data. Content without local images is
    returned unchanged.

    An image that cannot be read is omitted (docs/protocol.md#messages).

    Raises:
        UnsupportedContent: an image has an unsupported format or is too large, or the images and files together are
            too large. The error is also raised if the content consists only of images that cannot be read.
    """
    if names_files(content):
        return await asyncio.to_thread(_read_all, content, settings.cwd, settings.withheld_paths)
    check_content(content)
    return content


def names_files(content: tuple[InputItem, ...]) -> bool:
    """Return whether a message names any local images, which must be read from disk."""
    return not is_text(content) and any(isinstance(item, LocalImageItem) for item in content)


def check_content(content: tuple[InputItem, ...]) -> None:
    """Check that the images and files of a message together do not exceed `MAX_MEGABYTES`.

    Raises:
        UnsupportedContent: the images and files are too large.
    """
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
                log.warning("an image was omitted: %s", left_out)
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
    if taken > MAX_BASE64_CHARACTERS:
        raise UnsupportedContent(
            place, f"the images and files of a message exceed {MAX_MEGABYTES} MB of base64 in all"
        )


# --- the history -------------------------------------------------------------------------


def limit_attachments(
    history: Sequence[HistoryItem], *, room: int = MAX_BASE64_CHARACTERS
) -> Sequence[HistoryItem]:
    """Return the history with its oldest images and files replaced with text, so that the remaining images and
    files have at most `room` base64 characters in total.

    A history whose images and files all fit is returned unchanged. An attachment that is replaced in one request is
    also replaced in later requests, unless items are removed from the history.
    """
    with_attachments = [item for item in history if isinstance(item, UserItem) and not is_text(item.content)]
    if sum(_weight(part) for item in with_attachments for part in item.content) <= room:
        return history
    backwards: list[HistoryItem] = []
    for item in reversed(history):
        if isinstance(item, UserItem) and any(map(_weight, item.content)):
            content: list[InputItem] = []
            for part in reversed(item.content):
                room -= _weight(part)
                content.append(_placeholder_for(part) if room < 0 and _weight(part) else part)
            backwards.append(UserItem(tuple(reversed(content))))
        else:
            backwards.append(item)
    return backwards[::-1]


def _weight(item: InputItem) -> int:
    """Return the number of base64 characters in an item, or 0 if the item has no embedded data."""
    match item:
        case ImageItem(image_url=str(url)) if url[:5].lower() == "data:":
            return len(url)
        case FileItem(file_data=str(data)):
            return len(data)
        case _:
            return 0


def _placeholder_for(item: InputItem) -> TextItem:
    name = f"the file {item.filename}" if isinstance(item, FileItem) else "an image"
    return TextItem(text=f"[Left out: {name}, because newer images and files fill the request]")

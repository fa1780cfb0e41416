"""Finds the images that a message names with `@`, such as `@shots/error.png`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from parley.cli.chat.context import ChatContext
from parley.common.files import read_file
from parley.wire.images import MAX_IMAGE_BYTES, data_url
from parley.wire.items import ImageItem

__all__ = ["attached_images"]

_NAMED: Final = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|(\S+?))(?=[.,;:!?)]*(?:\s|$))')
_IMAGE: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")


def attached_images(context: ChatContext, text: str) -> Iterator[ImageItem]:
    """Yield the images whose names are in `text`, the text of a message. An image that is named several times is
    yielded once.

    If a file exists but is not a complete image, the chat prints a note. The names are not removed from the
    message.
    """
    if context.local_cwd is None:
        return
    names = dict.fromkeys(quoted or plain for quoted, plain in _NAMED.findall(text))
    for name in names:
        if not name.lower().endswith(_IMAGE):
            continue
        path = os.path.join(context.local_cwd, os.path.expanduser(name))
        try:
            url = data_url(read_file(path, limit=MAX_IMAGE_BYTES + 1))
        except FileNotFoundError:
            continue  # the text may not be meant as the name of a file
        except (OSError, ValueError) as error:
            context.note(f"{name} is not sent as an image: {error}")
            continue
        yield ImageItem(image_url=url)

"""The `view_image` tool: adds an image file to the model's input.

Images are recognised by their content, not by their file name. Hidden files are never read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from parley.common.guarded_files import read_named
from parley.common.os_errors import os_detail
from parley.conversation.records import CallItem, InputRead
from parley.errors import BadArguments
from parley.ports.model import ToolSpec
from parley.ports.tools import ToolContext
from parley.tools.errors import BadImage
from parley.tools.results import BAD_ARGUMENTS
from parley.wire.arguments import decode_arguments
from parley.wire.images import MAX_IMAGE_BYTES, MAX_IMAGE_SIZE, data_url
from parley.wire.items import ImageItem
from parley.wire.text import replace_surrogates

__all__ = ["ViewImage"]


class ViewImage:
    """Shows an image file to the model."""

    names: tuple[str, ...] = ("view_image",)

    def __init__(self, context: ToolContext) -> None:
        self._context = context

    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.names[0], description=_DESCRIPTION, parameters=_PARAMETERS)

    async def run(self, call: CallItem) -> str:
        try:
            path = decode_arguments(_Arguments, replace_surrogates(call.arguments).encode()).path
        except BadArguments as error:
            return BAD_ARGUMENTS + error.detail
        settings = self._context.settings
        url = await asyncio.to_thread(_read, path, cwd=settings.cwd, hidden=settings.withheld_paths)
        await self._context.transcript.append(InputRead(content=(ImageItem(image_url=url),)))
        return f"The image {path} is attached."


class _Arguments(Struct, frozen=True, kw_only=True):
    path: str


def _read(path: str, *, cwd: str, hidden: Sequence[str]) -> str:
    """Return an image as a data URL. `path` is absolute or relative to `cwd`. `hidden` paths are not read.

    Raises:
        BadImage: the file cannot be read, is hidden, or is not an image.
    """
    try:
        return data_url(read_named(path, cwd=cwd, limit=MAX_IMAGE_BYTES + 1, hidden=hidden))
    except OSError as error:
        raise BadImage(path, os_detail(error)) from None
    except ValueError as error:
        raise BadImage(path, str(error)) from None


_DESCRIPTION: Final = (
    "Look at an image file on this computer, such as a screenshot, a diagram or a plot. "
    f"PNG, JPEG, GIF and WebP, up to {MAX_IMAGE_SIZE}."
)

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "path": {
            "type": "string",
            "description": "The path of the file, absolute or relative to the working directory",
        }
    },
    "required": ["path"],
    "additionalProperties": False,
}

"""Reads the environment variables that control the log of a server."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from parley.errors import BadSetting

__all__ = ["CONTENT_VARIABLE", "LOG_VARIABLE", "LogChoice", "log_choice"]

LOG_VARIABLE: Final = "PARLEY_LOG"
CONTENT_VARIABLE: Final = "PARLEY_LOG_CONTENT"

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMATS: Final = ("text", "json")
_SWITCH: Final = {"": False, "0": False, "false": False, "1": True, "true": True}
_FILE: Final = "file="


class LogChoice(Struct, frozen=True, kw_only=True):
    """The level, the format and the destination of a server's log."""

    level: int = logging.WARNING
    format: Literal["text", "json"] = "text"
    file: str | None = None
    """The absolute path of the log file; None for stderr."""
    has_content: bool = False
    """True if the log contains the text of messages, and the arguments and outputs of tools."""


def log_choice(environ: Mapping[str, str]) -> LogChoice:
    """Return the log settings that the environment variables `PARLEY_LOG` and `PARLEY_LOG_CONTENT` contain.

    `PARLEY_LOG` consists of a level, a format and `file=PATH`, separated by commas, each at most once and in any
    order. A path may contain commas if it comes last.

    Raises:
        BadSetting: the value of a variable is invalid.
    """
    level = form = file = None
    left = environ.get(LOG_VARIABLE, "").strip()
    while left:
        if left.lower().startswith(_FILE):
            part, left = left, ""
            if "," in part and part.rpartition(",")[2].strip().lower() in (*LEVELS, *FORMATS):
                part, _, left = part.partition(",")
        else:
            part, _, left = left.partition(",")
        part, left = part.strip(), left.strip()
        name = part.lower()
        if name in LEVELS and level is None:
            level = LEVELS[name]
        elif name in FORMATS and form is None:
            form = name
        elif name.startswith(_FILE) and file is None:
            file = _path(part[len(_FILE) :], environ)
        elif name in LEVELS or name in FORMATS or name.startswith(_FILE):
            raise _refused(f"`{part}` is a second {_kind(name)}")
        else:
            expected = ", ".join(f"`{one}`" for one in (*LEVELS, *FORMATS))
            raise _refused(f"unknown part `{part}`, expected one of {expected}, or `file=PATH`")
    switch = environ.get(CONTENT_VARIABLE, "").strip().lower()
    if switch not in _SWITCH:
        raise BadSetting(f"unknown value `{switch}`, expected `1` or `0`", source=CONTENT_VARIABLE)
    return LogChoice(
        level=logging.WARNING if level is None else level,
        format="json" if form == "json" else "text",
        file=file,
        has_content=_SWITCH[switch],
    )


def _kind(name: str) -> str:
    return "level" if name in LEVELS else "format" if name in FORMATS else "file"


def _path(path: str, environ: Mapping[str, str]) -> str:
    if path.startswith("~/"):
        path = os.path.join(environ.get("HOME") or os.path.expanduser("~"), path[2:])
    if not os.path.isabs(path) or "\0" in path:
        raise _refused(f"`file={path}` needs an absolute path, or one that begins with `~/`")
    return path


def _refused(why: str) -> BadSetting:
    return BadSetting(why, source=LOG_VARIABLE)

"""Records the path of the log file of this process, so that the sandbox hides the log file from commands.

A command that could replace the log file could hide its own actions. The path is not part of the settings, because
an environment variable contains it.
"""

from __future__ import annotations

from typing import Final

__all__ = ["hidden_log_file", "hide_log_file"]

_hidden: Final[list[str]] = []


def hide_log_file(path: str) -> None:
    """Hide the log file `path` from all commands that start after this call. If another log file was hidden before,
    stop hiding that file.
    """
    _hidden[:] = [path]


def hidden_log_file() -> tuple[str, ...]:
    """Return the absolute path of the log file of this process, which is hidden from commands. Return an empty
    tuple if the process writes no log file.
    """
    return tuple(_hidden)

"""The history of the inputs to the chat, which all chats of a home share.

Each line of the history file contains one input as a JSON string, so that an input can have several lines. Only the
user can read the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Final

from prompt_toolkit.history import History

__all__ = ["FILE", "MAX_LINES", "InputHistory"]

FILE: Final = "chat_history"
MAX_LINES: Final = 1000
"""The maximum number of inputs that are loaded. When the history file contains more than twice this number of
inputs, the oldest inputs are removed from the file.
"""


class InputHistory(History):
    """An input history that is stored in a file. If the file cannot be read or written, the history exists only in
    memory.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """Return the stored inputs, the newest first."""
        lines = self._read()
        if len(lines) > 2 * MAX_LINES:
            lines = lines[-MAX_LINES:]
            self._write(lines)
        return reversed(lines[-MAX_LINES:])

    def store_string(self, string: str) -> None:
        if self._path is None:
            return
        try:
            with open(self._path, "a", encoding="utf-8", opener=_private) as file:
                file.write(json.dumps(string) + "\n")
        except OSError:
            self._path = None  # for example, the home does not exist

    def _read(self) -> list[str]:
        if self._path is None:
            return []
        try:
            with open(self._path, encoding="utf-8", errors="replace") as file:
                return [line for line in map(_decoded, file) if line]
        except OSError:
            return []

    def _write(self, lines: list[str]) -> None:
        assert self._path is not None
        temporary = f"{self._path}.{os.getpid()}"
        try:
            with open(temporary, "w", encoding="utf-8", opener=_private) as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            os.replace(temporary, self._path)
        except OSError:
            pass  # the file remains longer than necessary


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _decoded(line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:  # an incomplete line
        return ""
    return value if isinstance(value, str) else ""

"""Separates the output of a command from bubblewrap's error message that the program could not be executed."""

from __future__ import annotations

import errno
import os
from typing import Final

from parley.ports.commands import Output
from parley.wire.events import OutputStream

__all__ = ["LauncherOutput"]

_MAX_ERROR_BYTES: Final = 128
"""The maximum size, in bytes, of an operating system's error text. The longest such text has 50 bytes."""


class LauncherOutput:
    """Forwards the output of a command, except bubblewrap's error message that the program could not be executed.

    Bubblewrap and the command share stderr. Output that looks like this error message is held back until it is
    known whether bubblewrap or the command has written it.
    """

    def __init__(self, output: Output, program: bytes) -> None:
        self._output = output
        self._beginning = b"bwrap: execvp " + program + b": "
        self._held: bytes | None = b""
        """The bytes of stderr that are held back; None after the first output has been forwarded."""

    def __call__(self, stream: OutputStream, data: bytes) -> None:
        if self._held is not None and stream == "stderr" and self._may_be_error(self._held + data):
            self._held += data
            return
        self.release()
        self._output(stream, data)

    def _may_be_error(self, text: bytes) -> bool:
        rest = len(text) - len(self._beginning)
        return self._beginning.startswith(text[: len(self._beginning)]) and rest <= _MAX_ERROR_BYTES

    def release(self) -> None:
        """Forward the bytes that were held back. Call this method when it is certain that the command has written
        them.
        """
        held, self._held = self._held, None
        if held:
            self._output("stderr", held)

    @property
    def error_number(self) -> int | None:
        """The errno of bubblewrap's failed attempt to execute the program; None if bubblewrap has reported no
        failure.
        """
        held = self._held or b""
        if not held.startswith(self._beginning):
            return None
        text = held.removeprefix(self._beginning).strip().decode(errors="replace")
        return next((number for number in errno.errorcode if os.strerror(number) == text), None)

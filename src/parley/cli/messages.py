"""Reads the message of a command from its argument and from stdin."""

from __future__ import annotations

import os
import select
import stat
import sys
from typing import Final

from parley.cli.printing import print_note
from parley.cli.runner import UsageError

__all__ = ["read_message", "read_prompt"]

NOTE_SECONDS: Final = 2.0
"""The number of seconds without input on stdin after which a command prints that it is waiting for stdin."""

MAX_STDIN_BYTES: Final = 32 * 1024 * 1024
"""The maximum size of the text from stdin, in bytes. No model accepts longer text, and stdin may never end."""

_FROM_STDIN: Final = "-"
_CONTEXT: Final = "{prompt}\n\n<stdin>\n{context}\n</stdin>"
"""The format of a message that consists of a prompt and text from stdin."""


def read_message(given: str) -> str:
    """Return the message that a command-line argument contains. If the argument is `-`, read the message from
    stdin.

    Raises:
        UsageError: the message is empty, or stdin cannot be read, is too long, or is not UTF-8 text.
    """
    return _not_empty(_read_stdin() if given == _FROM_STDIN else given)


def read_prompt(given: str | None, *, command: str) -> str:
    """Return the message that consists of the prompt on the command line and the text from stdin.

    If the prompt is `-`, or if it is missing and stdin is not a terminal, stdin contains the whole message. If a
    prompt is given and stdin is a pipe or a file, the text from stdin follows the prompt. If stdin then has no
    input for `NOTE_SECONDS`, print a note that the command `command` is waiting for stdin.

    Raises:
        UsageError: the message is missing or empty, or stdin cannot be read, is too long, or is not UTF-8 text.
    """
    if given == _FROM_STDIN or (given is None and not _is_terminal()):
        return _not_empty(_read_stdin())
    if given is None:
        raise UsageError("the message is missing")
    prompt = _not_empty(given)
    if not _has_context():
        return prompt
    if not select.select([sys.stdin], (), (), NOTE_SECONDS)[0]:
        print_note(command, "waiting for the context on stdin; if there is none, add </dev/null to the command")
    context = _read_stdin().rstrip("\n")
    return _CONTEXT.format(prompt=prompt, context=context) if context.strip() else prompt


def _not_empty(text: str) -> str:
    if not text.strip():
        raise UsageError("the message is empty")
    return text


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _has_context() -> bool:
    """Return whether stdin is a pipe or a regular file. Other kinds of stdin, such as a socket, may never end."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # stdin is closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_stdin() -> str:
    if sys.stdin is None:
        return ""
    try:
        text = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
        if len(text) > MAX_STDIN_BYTES:
            raise UsageError(f"stdin has more than {MAX_STDIN_BYTES // 1024**2} MiB")
        return text.decode()
    except UnicodeDecodeError:
        raise UsageError("stdin is not UTF-8 text") from None
    except OSError as error:
        raise UsageError(f"cannot read stdin: {error.strerror}") from None

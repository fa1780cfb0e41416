"""Records the TLS files of this process: the certificates and private keys that the HTTP server has loaded.

These files are hidden from commands. The list is not part of the settings, because the server
can load other files while conversations are open. A file stays in the list until the HTTP server has closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["forget_tls_files", "hidden_tls_files", "hide_tls_files"]

_hidden: Final[dict[str, None]] = {}


def hide_tls_files(paths: Iterable[str]) -> None:
    """Hide TLS files from all commands that start after this call."""
    _hidden.update(dict.fromkeys(paths))


def forget_tls_files() -> None:
    """Stop hiding all TLS files from commands. Call this function when the HTTP server of this process has closed
    and no further command can start.
    """
    _hidden.clear()


def hidden_tls_files() -> tuple[str, ...]:
    """Return the absolute paths of all TLS files that this process has loaded."""
    return tuple(_hidden)

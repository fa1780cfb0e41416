"""A conversation server for coding agents.

`import parley` is fast: the client library is imported only when `parley.connect` or `parley.query` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.version import __version__

if TYPE_CHECKING:
    from parley.client import connect, query

__all__ = ["__version__", "connect", "query"]


def __getattr__(name: str) -> object:
    if name in ("connect", "query"):
        from parley import client

        return getattr(client, name)
    raise AttributeError(f"module 'parley' has no attribute {name!r}")

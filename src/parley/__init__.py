"""A conversation server for coding agents.

`import parley` costs next to nothing: the client is loaded when `parley.connect` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.version import __version__

if TYPE_CHECKING:
    from parley.client import connect

__all__ = ["__version__", "connect"]


def __getattr__(name: str) -> object:
    if name == "connect":
        from parley.client import connect

        return connect
    raise AttributeError(f"module 'parley' has no attribute {name!r}")

"""Loading all modules that a server may come to need, which otherwise are loaded when they are first used."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from typing import Final

__all__ = ["load_all_modules"]

_NOT_IN_A_SERVER: Final = ("parley.__main__", "parley.cli", "parley.client", "parley.testing")

_OF_OTHERS: Final = ("aiohttp", "anyio", "mcp", "sqlite3", "tomllib", "ctypes", "fcntl", "email.utils")
"""Packages that Parley imports inside functions."""
_OF_THE_LANGUAGE: Final = ("encodings.idna", "stringprep", "traceback", "tracemalloc", "urllib.request", "inspect")
"""Modules that Python or these packages import while they run."""

_POLITE_SECONDS: Final = 0.0005
"""How long loading may keep the event loop from running, at a time."""


def load_all_modules() -> None:
    """Import them. To be called in a thread beside the event loop. A module that is not installed is left out."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _POLITE_SECONDS))
    try:
        for name in (*_own("parley"), *_OF_OTHERS, *_OF_THE_LANGUAGE):
            try:
                importlib.import_module(name)
            except ImportError:
                continue
    finally:
        sys.setswitchinterval(before)


def _own(package: str) -> Iterator[str]:
    """The modules of a package, and of those in it."""
    folders = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(folders, f"{package}."):
        if module.name not in _NOT_IN_A_SERVER:
            yield module.name
            if module.ispkg:
                yield from _own(module.name)

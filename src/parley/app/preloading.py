"""Imports all modules that a server may need, before a command can change the files of these modules. Otherwise,
Parley would import most of these modules only when they are first used.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Final

from parley.common.interpreter_lock import short_switch_interval

__all__ = ["load_all_modules"]

_NOT_IN_A_SERVER: Final = ("parley.__main__", "parley.cli", "parley.client", "parley.testing")

_IMPORTED_LATE: Final = (
    "aiohttp",
    "cryptography.hazmat.primitives.asymmetric.ec",
    "cryptography.hazmat.primitives.asymmetric.utils",
    "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.hazmat.primitives.serialization",
    "sqlite3",
    "tomllib",
    "ctypes",
    "fcntl",
    "email.utils",
    "json",
    "pathlib",
    "random",
)
"""The modules outside Parley that Parley imports only inside functions."""
_IMPORTED_BY_OTHERS: Final = (
    "encodings.idna",
    "stringprep",
    "traceback",
    "tracemalloc",
    "urllib.request",
    "inspect",
)
"""The modules that Python, or a module in `_IMPORTED_LATE`, imports only when a function is called."""


def load_all_modules() -> None:
    """Import all modules that a server may need. Call this function in a thread. A module that is not installed is
    skipped.
    """
    with short_switch_interval():
        for name in (*_modules_of("parley"), *_IMPORTED_LATE, *_IMPORTED_BY_OTHERS):
            try:
                importlib.import_module(name)
            except ImportError:
                continue


def _modules_of(package: str) -> Iterator[str]:
    """Yield the names of the modules in a package and its subpackages, without the modules that a server never
    imports.
    """
    folders = importlib.import_module(package).__path__
    for module in pkgutil.iter_modules(folders, f"{package}."):
        if module.name not in _NOT_IN_A_SERVER:
            yield module.name
            if module.ispkg:
                yield from _modules_of(module.name)

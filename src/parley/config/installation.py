"""Finds the paths where Parley is installed: its package, its Python, and the directories from which this Python
loads modules.

A confined command that could write there would decide what the server runs. Looked up once, before any command
has run.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Final

__all__ = ["installed_paths", "remove_cwd_from_sys_path"]

_MOST_LINKS: Final = 40
"""The most symbolic links that the system follows in one path."""

_OF_A_PREFIX: Final = ("bin", "lib", "lib64", "ssl", "etc/ssl")
"""The directories of a prefix that belong to Python, or to an OpenSSL beside it (conda), whose `openssl.cnf`
names libraries to load. Other directories of a prefix may hold anything: a prefix can be `/usr` or a home
directory.
"""

_LIBRARIES: Final = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Variables that name files or directories from which the process loads code, or certificates that it trusts."""


@cache
def installed_paths() -> tuple[str, ...]:
    """Return the absolute paths where Parley is installed, each as it is named and with all links resolved. Some
    may not exist.
    """
    names = dict.fromkeys(os.path.normpath(path) for path in _names() if os.path.isabs(path))
    return tuple(dict.fromkeys((*names, *map(os.path.realpath, names))))


def remove_cwd_from_sys_path(package: str) -> None:
    """Remove the working directory, which commands may write to, from the directories that modules are loaded from.

    `python -m` adds the working directory. It stays if it contains Parley's own directory, `package`.
    """
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    if not sys.flags.safe_path and sys.path[:1] in ([""], [here]) and here != os.path.dirname(package):
        del sys.path[0]


def _names() -> Iterator[str]:
    yield os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield from filter(None, (*sys.path, sys.pycache_prefix))
    if os.path.isfile(sys.argv[0]):
        yield os.path.abspath(sys.argv[0])
    for variable in _LIBRARIES:
        yield from re.split(r"[:\s]", os.environ.get(variable, ""))
    for prefix in {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}:
        if os.path.exists(os.path.join(prefix, "pyvenv.cfg")):
            yield prefix
        else:
            yield from (path for name in _OF_A_PREFIX if os.path.exists(path := os.path.join(prefix, name)))
    yield from map(os.path.dirname, _link_targets(sys.executable))


def _link_targets(path: str) -> Iterator[str]:
    """Yield the path, and the target of each symbolic link in succession."""
    for _ in range(_MOST_LINKS):
        yield path
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            return

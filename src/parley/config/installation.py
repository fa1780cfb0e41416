"""Finds the paths where Parley is installed: its package, its Python, and the directories from which this Python
loads modules.

A sandboxed command that could write to these paths could change the code that a server or a relay runs. A relay is
a `parley mcp` process that connects its client to the resident server. Several installations can use the same home,
each in the `.venv` of its project. The paths of this process are determined once, before any command has run. A
relay sends its own paths to the resident server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

__all__ = [
    "add_installation",
    "installed_paths",
    "own_installation",
    "remove_cwd_from_sys_path",
]

_MAX_INSTALLATIONS: Final = 64
"""The maximum number of installations that one server records for relays. A relay is a `parley mcp` process that
connects its client to the server.
"""
_MAX_PATHS: Final = 256
"""The maximum number of paths that the installation of one relay may have. A relay is a `parley mcp` process that
connects its client to the server.
"""

_ENVIRONMENTS: Final = (".venv", "venv", "env")
"""The usual directory names of a virtual environment in its project."""

_MAX_LINKS: Final = 40
"""The maximum number of symbolic links that the server follows in one path. Linux has the same limit."""

_PREFIX_DIRECTORIES: Final = ("bin", "lib", "lib64", "ssl", "etc/ssl")
"""The directories in a Python prefix that belong to Python or to its OpenSSL. The directories of OpenSSL are
included because its `openssl.cnf` names libraries to load. Other directories are not included, because a prefix can
be `/usr` or a home directory.
"""

_LIBRARIES: Final = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Environment variables that name files or directories from which the process loads code or trusted certificates.
"""


_of_relays: Final[dict[tuple[str, ...], None]] = {}
"""The installations of the relays that have connected to this process, each as a tuple of paths. A relay is a
`parley mcp` process that connects its client to this process. An installation is kept after its relay has
disconnected, because the turns of the relay's client continue.
"""


def installed_paths(roots: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the absolute paths where Parley is installed.

    The paths belong to the installation of this process, and to the installations of the `parley mcp` processes
    that have connected their clients to this process. In addition, the result contains each virtual environment
    with the usual name `.venv`, `venv` or `env` that is directly in one of the `roots` and contains Parley. Some
    paths may not exist.
    """
    of_relays = (path for paths in _of_relays if os.path.lexists(paths[0]) for path in paths)
    return tuple(dict.fromkeys((*own_installation(), *of_relays, *_environments_in(roots))))


def add_installation(paths: tuple[str, ...]) -> bool:
    """Record the installation of a relay, a `parley mcp` process that connects its client to this process, and
    return True. If the installation has too many paths, or if too many installations are already recorded, record
    nothing and return False.

    `paths` are the absolute paths where the Parley of the relay is installed.
    """
    if not paths or paths in _of_relays:
        return True
    for known in [known for known in _of_relays if not os.path.lexists(known[0])]:
        del _of_relays[known]  # the relay's installation has been removed from the disk
    if len(paths) > _MAX_PATHS or len(_of_relays) >= _MAX_INSTALLATIONS:
        return False
    _of_relays[paths] = None
    return True


@cache
def own_installation() -> tuple[str, ...]:
    """Return the absolute paths where the Parley of this process is installed.

    The path of the package `parley` is first. A path that contains symbolic links is returned twice: unresolved,
    and with all symbolic links resolved. Some paths may not exist.
    """
    names = dict.fromkeys(os.path.normpath(path) for path in _names() if os.path.isabs(path))
    return tuple(dict.fromkeys((*names, *map(os.path.realpath, names))))


def remove_cwd_from_sys_path(package: str) -> None:
    """Remove the working directory from `sys.path`, because commands may write to the working directory.

    `python -m` adds the working directory to `sys.path`. `package` is the directory of the package `parley`. The
    working directory is kept if it is the parent of that directory, because Parley is then loaded from it.
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
        yield from os.environ.get(variable, "").replace(":", " ").split()
    for prefix in {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}:
        if os.path.exists(os.path.join(prefix, "pyvenv.cfg")):
            yield prefix
        else:
            yield from (path for name in _PREFIX_DIRECTORIES if os.path.exists(path := os.path.join(prefix, name)))
    yield from map(os.path.dirname, _link_targets(sys.executable))


def _environments_in(roots: Iterable[str]) -> Iterator[str]:
    """Yield the path of each virtual environment that is directly in a root and contains a program `parley`.

    For each path, also yield the path with symbolic links resolved.
    """
    for root in roots:
        for name in _ENVIRONMENTS:
            environment = os.path.join(root, name)
            if os.path.lexists(os.path.join(environment, "bin", "parley")):
                yield environment
                yield os.path.realpath(environment)


def _link_targets(path: str) -> Iterator[str]:
    """Yield a path. If the path is a symbolic link, also yield its target, the target of that target, and so on."""
    for _ in range(_MAX_LINKS):
        yield path
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            return

"""Converts the paths in settings to absolute paths, and resolves symbolic links in them. A path in a setting may be
relative, or may begin with `~` for the home directory of the user.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping

__all__ = ["absolute", "expand", "targets_of_links", "user_home"]


def user_home(environ: Mapping[str, str]) -> str:
    """Return the home directory of the user. If the variable `HOME` is not set, return the home directory of the
    user's account, or an empty string if the account is unknown.
    """
    if home := environ.get("HOME"):
        return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def expand(path: str, environ: Mapping[str, str], *, base: str = "/") -> str:
    """Return `path`, which is absolute or begins with `~/`, as an absolute path. The prefix `~` is replaced by the
    home directory of the user (`user_home`). If the home directory is a relative path, it is resolved against
    `base`.
    """
    return os.path.join(base, user_home(environ), path.removeprefix("~/"))


def absolute(cwd: str, server_dir: str) -> str:
    """Return a working directory as an absolute path. A relative path is relative to the server's directory."""
    if cwd.startswith("/"):
        return cwd
    # `..` is kept, because its meaning depends on symbolic links.
    return os.path.join(server_dir, *(part for part in cwd.split("/") if part not in ("", ".")))


def targets_of_links(paths: Iterable[str]) -> Iterator[str]:
    """Yield each path that exists, with symbolic links resolved.

    Callers hide or protect these paths in addition to the given paths, so that the target of a symbolic link stays
    hidden even if the link is removed.
    """
    for path in paths:
        try:
            yield os.path.realpath(path, strict=True)
        except (OSError, ValueError):
            continue

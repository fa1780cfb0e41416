"""What the settings let a command do, as bounds: the directories that may be written to are looked up here, once.

A directory is known by what it was then. One that another takes the place of later, be it by a link, is
not what was allowed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from parley.config.types import Settings
from parley.ports.commands import Bounds, Root

__all__ = ["bounds_for", "read_only"]


def read_only(settings: Settings) -> Bounds:
    """Nothing is written and nobody is reached."""
    chosen = settings.sandbox
    return Bounds(hidden=chosen.hidden_paths, mechanism=chosen.mechanism)


def bounds_for(settings: Settings, environ: Mapping[str, str]) -> Bounds | None:
    """What commands of these settings may do; None: what the user may."""
    if settings.sandbox_mode == "danger-full-access":
        return None
    chosen = settings.sandbox
    return Bounds(
        writable=tuple(_roots(settings, environ)) if settings.sandbox_mode == "workspace-write" else (),
        network=settings.network_access,
        unix_sockets=chosen.allow_unix_sockets,
        hidden=chosen.hidden_paths,
        mechanism=chosen.mechanism,
    )


def _roots(settings: Settings, environ: Mapping[str, str]) -> Iterator[Root]:
    """Those that are there; never one that a call names."""
    chosen = settings.workspace_write
    wanted = [settings.cwd, *chosen.writable_roots]
    if not chosen.exclude_slash_tmp:
        wanted.append("/tmp")
    if not chosen.exclude_tmpdir_env_var and (named := environ.get("TMPDIR", "")).startswith("/"):
        wanted.append(named)
    seen = set[str]()
    for path in wanted:
        try:
            real = os.path.realpath(path, strict=True)
            found = os.lstat(real)
        except (OSError, ValueError):
            continue
        if stat.S_ISDIR(found.st_mode) and real not in seen:
            seen.add(real)
            yield Root(path=real, device=found.st_dev, inode=found.st_ino)

"""Computes the `PATH` of the programs that the server runs itself. This `PATH` contains no directories that
commands may write to.

These programs are tool servers and the notify program. They run outside the sandbox. If a directory of `PATH` is in
the project, such as `node_modules/.bin`, a command could create a program there with the same name as one of these
programs or its interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from parley.common.paths import is_below_any
from parley.config.installation import installed_paths
from parley.config.types import Environment, Settings

__all__ = ["environ_of_programs"]


def environ_of_programs(settings: Settings) -> Environment:
    """Return the environment for the programs that the server runs itself. This is the environment of the client,
    from `settings`. If `sandbox_mode` is `workspace-write`, relative directories and directories that sandboxed
    commands may write to are removed from `PATH`.

    Directories in which Parley is installed remain in `PATH`, because commands cannot write to them.
    """
    path = settings.environ.get("PATH")
    if path is None or settings.sandbox_mode != "workspace-write":
        return settings.environ
    roots = [path for name in settings.writable_directories for path in (name, os.path.realpath(name))]
    installed = installed_paths(roots)
    folders = path.split(os.pathsep)
    kept = [folder for folder in folders if not _is_writable(folder, roots, installed)]
    if kept == folders:
        return settings.environ
    return Environment(settings.environ, PATH=os.pathsep.join(kept) or os.defpath)


def _is_writable(folder: str, roots: Sequence[str], installed: Sequence[str]) -> bool:
    if not os.path.isabs(folder):
        return True
    paths = {os.path.normpath(folder), os.path.realpath(folder)}
    return any(is_below_any(path, roots) and not is_below_any(path, installed) for path in paths)

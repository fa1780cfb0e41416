"""Finds the settings of coding agents: files and directories at the top level of writable roots."""

from __future__ import annotations

import os
from typing import NamedTuple

from parley.common.paths import is_below_any
from parley.config.protected import AGENTS
from parley.sandbox.paths import is_of_another_user, real_path, status_of

__all__ = ["AgentPaths", "find_agents"]


class AgentPaths(NamedTuple):
    """The settings of coding agents: files and directories at the top level of the roots."""

    paths: set[str]
    """The paths of the agents' settings, with symbolic links resolved. A path is omitted if the resolved path is a
    root or lies outside all roots.
    """
    links: tuple[str, ...]
    """The symbolic links with the names of agents' settings at the top level of the roots."""


def find_agents(roots: tuple[str, ...]) -> AgentPaths:
    named = [
        path
        for root in roots
        for name in AGENTS
        if os.path.lexists(path := os.path.join(root, name)) and not is_of_another_user(path, status_of(root))
    ]
    real = filter(None, map(real_path, named))
    paths = {path for path in real if path not in roots and is_below_any(path, roots)}
    return AgentPaths(paths, tuple(filter(os.path.islink, named)))

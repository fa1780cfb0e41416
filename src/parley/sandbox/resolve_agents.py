"""Finds the directories at the top of writable roots in which agents keep their settings."""

from __future__ import annotations

import os
from typing import NamedTuple

from parley.config.protected import AGENTS
from parley.sandbox.paths import is_below_any, is_of_another_user, real_path, status_of

__all__ = ["AgentPaths", "find_agents"]


class AgentPaths(NamedTuple):
    """The existing settings of agents."""

    paths: set[str]
    """Paths in the roots, without links."""
    links: tuple[str, ...]
    """Links by which agents find their settings."""


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

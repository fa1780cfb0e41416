"""The names of directories that no command and no patch may change in a project. Reads no files."""

from __future__ import annotations

from typing import Final

__all__ = ["AGENTS", "GIT"]

GIT: Final = ".git"

AGENTS: Final = (".parley", ".codex", ".agents", ".claude", ".cursor", ".gemini", ".windsurf")
"""Directories with settings of agents, some of which name programs to run. An agent must change neither its own
restrictions nor the behaviour of another agent."""

"""The names of the directories in a project that no command and no patch may change."""

from __future__ import annotations

from typing import Final

__all__ = ["AGENTS", "GIT"]

GIT: Final = ".git"

AGENTS: Final = (".parley", ".codex", ".agents", ".claude", ".cursor", ".gemini", ".windsurf")
"""Directories with settings of coding agents. They are protected because some of these settings name programs to
run, and because an agent must not change its own restrictions or the behaviour of another agent.
"""

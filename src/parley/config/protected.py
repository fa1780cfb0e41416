"""What no command and no patch may change in a project, wherever that is: names alone, nothing is looked up."""

from __future__ import annotations

from typing import Final

__all__ = ["AGENTS", "GIT"]

GIT: Final = ".git"

AGENTS: Final = (".parley", ".codex", ".agents", ".claude", ".cursor", ".gemini", ".windsurf")
"""Where agents have their settings, some of which are programs to run: one must not rewrite what binds it,
nor what another will do."""

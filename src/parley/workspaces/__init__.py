"""Prepares and saves the Git worktrees in which conversations work."""

from parley.workspaces.worktrees import GitWorktrees

__all__ = ["GitWorktrees"]

"""The worktrees of one node, used without a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from kit.servers.git_nodes import git_settings
from parley.agent.sandbox_policy import Roots, policy_for
from parley.config.load import Loader
from parley.config.types import Settings, SettingsOverrides
from parley.ports.commands import Command
from parley.sandbox import Sandboxed
from parley.wire.events import WorkspaceUpdated
from parley.wire.ids import ConversationId
from parley.workspaces.worktrees import GitWorktrees

__all__ = ["WorktreeNode"]


class WorktreeNode:
    """The worktrees of one node: its settings, its directory, and one conversation."""

    def __init__(
        self,
        sandboxed: Sandboxed,
        path: Path,
        url: str,
        *,
        name: str = "a",
        more: str = "",
        first: str = "",
        environ: Mapping[str, str] | None = None,
        conversation: ConversationId | None = None,
    ) -> None:
        self.home, self.directory = path / f"home-{name}", path / f"git-{name}"
        self.home.mkdir(exist_ok=True)
        settings = f"{first}\n[workspace]\n{git_settings(url, self.directory, more)}"
        (self.home / "config.toml").write_text(settings)
        given = {"HOME": str(path), "PATH": os.environ["PATH"], **(environ or {})}
        self.loader = Loader(environ=given, server_dir=str(path), home=str(self.home))
        self.worktrees = GitWorktrees(sandboxed, self.loader.workspace_settings, given, node=lambda: name)
        self.id = conversation or ConversationId(str(uuid4()))
        self.sandboxed = sandboxed

    @property
    def tree(self) -> Path:
        return self.directory / "worktrees" / self.id

    @property
    def clone(self) -> Path:
        return self.directory / "repositories" / "app.git"

    @property
    def settings(self) -> Settings:
        wanted = SettingsOverrides(repository="app", sandbox="workspace-write")
        return replace(self.loader.choose(wanted).settings, cwd=str(self.tree))

    async def prepare(self, last: WorkspaceUpdated | None = None) -> WorkspaceUpdated | None:
        return await self.worktrees.prepare(self.id, self.settings, last)

    async def prepared(self, last: WorkspaceUpdated | None = None) -> WorkspaceUpdated:
        event = await self.prepare(last)
        assert event is not None
        return event

    async def save(self, last: WorkspaceUpdated, message: str = "Work", **options: Any) -> WorkspaceUpdated | None:
        return await self.worktrees.save(self.id, self.settings, last, message, **{"is_urgent": False, **options})

    async def saved(self, last: WorkspaceUpdated, message: str = "Work") -> WorkspaceUpdated:
        event = await self.save(last, message)
        assert event is not None
        return event

    async def run(self, script: str, *, settings: Settings | None = None) -> str:
        """Run a script as the model would, with the settings of another conversation if they are given. Return its
        output.
        """
        printed = bytearray()
        settings = settings or self.settings
        command = Command(
            argv=("sh", "-c", script),
            cwd=settings.cwd,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
            timeout_seconds=60,
            policy=policy_for(settings, Roots()),
        )
        await self.sandboxed.run(command, output=lambda _, data: printed.extend(data))
        return printed.decode()

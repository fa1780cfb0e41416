"""Session grants: what a person approved for the session, and settings with secrets, which no log holds."""

from __future__ import annotations

import os
from typing import NamedTuple

from parley.agent.sandbox_policy import Roots
from parley.config.types import Settings, WorkspaceWrite
from parley.ports.tools import RunCommand
from parley.runtime.settings import SettingsResolver

__all__ = ["SessionGrants"]


class _Grant(NamedTuple):
    """What has to be the same for an approval to hold again."""

    argv: tuple[str, ...]
    real_cwd: str
    covers: str
    sandbox_mode: str
    workspace_write: WorkspaceWrite
    network: bool
    escalated: bool


class SessionGrants:
    """The grants of one conversation. They outlive the conversation in memory."""

    def __init__(self, roots: Roots, resolver: SettingsResolver) -> None:
        self.roots, self.resolver = roots, resolver
        self._granted: set[_Grant] = set()

    @property
    def is_needed(self) -> bool:
        """Whether it holds anything that cannot be made anew."""
        return bool(self._granted) or self.resolver.has_secrets or not self.roots.is_empty

    def holds(self, action: RunCommand, settings: Settings) -> bool:
        """Whether a person approved this for the session."""
        return _grant(action, settings) in self._granted

    def add(self, action: RunCommand, settings: Settings) -> None:
        """Note that a person approved this for the session."""
        if (grant := _grant(action, settings)) is not None:
            self._granted.add(grant)


def _grant(action: RunCommand, settings: Settings) -> _Grant | None:
    """Return the grant that covers an action; None while its directory cannot be resolved."""
    try:
        real_cwd = os.path.realpath(action.cwd) if "\0" not in action.cwd else action.cwd
    except OSError:
        return None
    return _Grant(
        argv=action.argv,
        real_cwd=real_cwd,
        covers=action.covers,
        sandbox_mode=settings.sandbox_mode,
        workspace_write=settings.workspace_write,
        network=settings.network_access,
        escalated=action.escalated,
    )

"""Session grants: actions that a person approved for the session, and settings with secrets.

An approval is a record of the log, so that every process of the home honours it. Secrets are in memory alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import msgspec

from parley.agent.sandbox_policy import Roots
from parley.config.types import Settings
from parley.conversation.records import SessionGranted
from parley.ports.tools import RunCommand
from parley.runtime.settings import SettingsResolver

__all__ = ["SessionGrants"]

LOCAL: Final = "local"
"""The principal of all clients that the user of this computer starts."""
HOUR_SECONDS: Final = 3600.0


class SessionGrants:
    """The session grants of one conversation. Its secrets are not in the log, so this object stays when the
    conversation is evicted."""

    def __init__(self, roots: Roots, resolver: SettingsResolver) -> None:
        self.roots, self.resolver = roots, resolver

    @property
    def is_needed(self) -> bool:
        """True if this object has anything that cannot be restored from the log."""
        return self.resolver.has_secrets or not self.roots.is_empty

    def holds(self, action: RunCommand, settings: Settings, granted: Mapping[str, float], *, now: float) -> bool:
        """Return whether a person approved this action for the session recently enough; `granted` are the grants in
        the log.
        """
        if not granted or (key := _key(action, settings)) is None:
            return False
        at = granted.get(key)
        return at is not None and 0 <= now - at < settings.approvals.session_hours * HOUR_SECONDS

    def record(self, action: RunCommand, settings: Settings) -> SessionGranted | None:
        """Return the record of an approval for the session; None if the approval counts only once."""
        if not settings.approvals.session_hours or (key := _key(action, settings)) is None:
            return None
        return SessionGranted(principal=LOCAL, key=key)


def _key(action: RunCommand, settings: Settings) -> str | None:
    """Return a digest of everything that must be the same for the approval to hold again; None if the directory of
    the action cannot be resolved."""
    try:
        real_cwd = os.path.realpath(action.cwd) if "\0" not in action.cwd else action.cwd
    except OSError:
        return None
    same = (
        LOCAL,
        action.argv,
        real_cwd,
        action.covers,
        settings.sandbox_mode,
        settings.workspace_write,
        settings.network_access,
        action.escalated,
    )
    import hashlib  # most servers need none of it

    return hashlib.sha256(msgspec.json.encode(same)).hexdigest()

"""Checks and creates session grants. A session grant is a person's approval of an action for the session.

A session grant is stored as a record in the log, so it is valid in every process that uses the home directory. This
module also keeps the settings that contain secrets. They are only in memory.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from parley.agent.sandbox_policy import Roots
from parley.config.types import Settings
from parley.conversation.approvals import ApprovalState, may_answer
from parley.conversation.records import SessionGranted
from parley.ports.tools import RunCommand
from parley.runtime.settings import SettingsResolver
from parley.wire.principals import PrincipalRef

__all__ = ["SessionGrants"]

HOUR_SECONDS: Final = 3600.0


class SessionGrants:
    """The session grants of one conversation.

    The object may also contain data that is not in the log, such as secrets (`is_needed`). It then stays in memory
    when the conversation is evicted.
    """

    def __init__(self, roots: Roots, resolver: SettingsResolver) -> None:
        self.roots, self.resolver = roots, resolver

    @property
    def is_needed(self) -> bool:
        """True if this object contains data that cannot be restored from the log, such as secrets."""
        return self.resolver.has_secrets or not self.roots.is_empty

    def holds(self, action: RunCommand, settings: Settings, approvals: ApprovalState, *, now: float) -> bool:
        """Return whether a session grant for an action exists, has not expired and applies to the turn.

        The principal that approved the action must be allowed to answer the approvals of the turn. If messages of
        other principals have joined the turn, the approving principal must also be allowed to answer approvals of
        turns that those principals begin. `settings` are the settings of the turn, `approvals` are the approvals in
        the log, and `now` is the current time in seconds since the epoch.
        """
        if not approvals.granted or (key := _key(action, settings)) is None:
            return False
        if (grant := approvals.granted.get(key)) is None:
            return False
        is_recent = 0 <= now - grant.at < settings.approvals.session_hours * HOUR_SECONDS
        senders = (approvals.began_by, *approvals.joined_by)
        return is_recent and all(
            may_answer(settings.approvals.from_, grant.principal, began_by=one) for one in senders
        )

    def record(
        self, action: RunCommand, settings: Settings, principal: PrincipalRef | None
    ) -> SessionGranted | None:
        """Return the record of a session grant for an action that a person has approved for the session; None if
        the approval is valid only once.

        An approval without a known principal is valid only once.
        """
        if principal is None or not settings.approvals.session_hours or (key := _key(action, settings)) is None:
            return None
        return SessionGranted(principal=principal.name, token_id=principal.token_id, key=key)


def _key(action: RunCommand, settings: Settings) -> str | None:
    """Return the key under which a session grant for an action is stored: a digest of the action and of the
    settings that must not change while the grant is valid.

    Return None if the directory of the action cannot be resolved.
    """
    try:
        real_cwd = os.path.realpath(action.cwd) if "\0" not in action.cwd else action.cwd
    except OSError:
        return None
    same = (
        action.argv,
        real_cwd,
        action.covers,
        settings.sandbox_mode,
        settings.workspace_write,
        settings.network_access,
        action.escalated,
    )
    import hashlib  # imported here: most servers do not need this module

    return hashlib.sha256(msgspec.json.encode(same)).hexdigest()

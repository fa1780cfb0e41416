"""Which action needs whose yes.

This release can neither ask nor confine: what would need either is refused. Nothing runs because
a protection is missing.
"""

from __future__ import annotations

from typing import Final

from parley.config.types import Settings
from parley.ports.tools import Action, Granted, Refused, Verdict

__all__ = ["decide"]

NO_SANDBOX: Final = Refused(why="no sandbox is available on this system: sandboxes are not supported yet")
NOBODY_TO_ASK: Final = Refused(why="the approval policy asks first, and approvals are not supported yet")


def decide(action: Action, settings: Settings) -> Verdict:
    """What the settings say to an action (docs/protocol.md, who decides)."""
    if settings.sandbox_mode != "danger-full-access":
        return NO_SANDBOX
    if settings.approval_policy == "untrusted":
        return NOBODY_TO_ASK
    return Granted()

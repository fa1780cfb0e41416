"""Decides what a principal may do and see. All access checks of tools, resources and tasks are here."""

from __future__ import annotations

import os
from typing import Final

from msgspec.structs import replace

from parley.common.paths import is_below_any
from parley.config.load import Loader
from parley.config.strictness import STRICTEST_FIRST, RestrictedSetting, values_within
from parley.config.types import Settings, SettingsOverrides
from parley.conversation.approvals import PendingApproval
from parley.errors import SettingNotAllowed, UnknownConversation
from parley.server.context import Principal, Role
from parley.server.errors import AccessTooNarrow, RoleTooLow
from parley.server.hosts import Features
from parley.wire.ids import ConversationId

__all__ = [
    "allowed_overrides",
    "allowed_roots",
    "allowed_values",
    "may_answer",
    "may_call_approval_answer",
    "may_interrupt",
    "may_see",
    "require_all_conversations",
    "require_conversation",
    "require_role",
]

ADMIN_SETTINGS: Final = ("config", "profile", "base_instructions", "developer_instructions", "compact_prompt")
"""The names of the settings overrides that only a principal with the role admin may use. These overrides can change
any setting, or replace the server's instructions for the model.
"""
RESTRICTED: Final[dict[str, RestrictedSetting]] = {"sandbox": "sandbox_mode", "approval_policy": "approval_policy"}
"""The tool arguments that a principal with a role below admin can use to make a setting stricter, but not looser.
Maps the name of each argument to the name of the setting.
"""


def require_role(principal: Principal, needed: Role) -> None:
    """Check that the role of the principal is at least `needed`.

    Raises:
        RoleTooLow: the role is lower.
    """
    if principal.role < needed:
        raise RoleTooLow(needed.label, name=principal.name, role=principal.role.label)


def may_see(principal: Principal, conversation_id: ConversationId) -> bool:
    """Return whether the principal may see the given conversation. A principal that is bound to one conversation
    may see only that conversation.
    """
    return principal.conversation is None or principal.conversation == conversation_id


def require_conversation(principal: Principal, conversation_id: ConversationId) -> None:
    """Check that the principal may see the given conversation.

    Raises:
        UnknownConversation: the principal is not allowed to see the conversation. The error is the same as for a
            conversation that does not exist.
    """
    if not may_see(principal, conversation_id):
        raise UnknownConversation(conversation_id)


def require_all_conversations(principal: Principal) -> None:
    """Check that the principal has access to all conversations.

    Raises:
        AccessTooNarrow: the principal is bound to one conversation.
    """
    if principal.conversation is not None:
        raise AccessTooNarrow(principal.name)


def may_answer(principal: Principal, approval: PendingApproval | None = None) -> bool:
    """Return whether the principal may decide `approval`.

    If `approval` is None, return whether the role of the principal allows it to decide approvals at all.
    """
    is_allowed = approval is None or approval.may_be_answered_by(principal.ref)
    return is_allowed and principal.role >= Role.APPROVER


def may_interrupt(principal: Principal) -> bool:
    """Return whether the role of the principal allows it to interrupt turns."""
    return principal.role >= Role.DRIVER


def may_call_approval_answer(
    principal: Principal, features: Features, approval: PendingApproval | None = None
) -> bool:
    """Return whether a client with the given principal and features may use the tool `approvalAnswer` to decide
    `approval`. If `approval` is None, return whether the client may use the tool at all.
    """
    return features.may_answer_approvals and may_answer(principal, approval)


def allowed_overrides(
    principal: Principal, overrides: SettingsOverrides, loader: Loader, *, current: Settings | None = None
) -> SettingsOverrides:
    """Check that the principal may choose `overrides`, the settings in a tool call. Return the overrides to apply.

    The returned overrides differ from `overrides` at most in `cwd`. If the principal may choose only directories
    below `serve.roots`, `cwd` is an absolute path without symbolic links. `cwd` is None if the principal is bound
    to the conversation of the tool call, because such a principal cannot change the directory of its conversation.

    `current` contains the current settings of the conversation; None if the tool call creates a conversation.

    Raises:
        SettingNotAllowed: the principal is not allowed to choose one of the settings in `overrides`.
        ConfigError: the settings of the server cannot be used.
    """
    if principal.role >= Role.ADMIN:
        return overrides
    for name in ADMIN_SETTINGS:
        if getattr(overrides, name) not in (None, {}):
            raise SettingNotAllowed(name, f"needs the role {Role.ADMIN.label}; {_role_of(principal)}")
    for name, setting in RESTRICTED.items():
        given, allowed = getattr(overrides, name), allowed_values(principal, name, loader, current=current)
        if given in STRICTEST_FIRST[setting] and given not in allowed:
            raise SettingNotAllowed(
                name,
                f"must be {' or '.join(map(repr, allowed))}: it may not be looser than the value of the server and "
                f"of the conversation; {_role_of(principal)}",
            )
    return _with_allowed_directory(principal, overrides, loader, current)


def allowed_values(
    principal: Principal, name: str, loader: Loader, *, current: Settings | None = None
) -> tuple[str, ...]:
    """Return the values that the principal may choose for the argument `name`, the strictest value first. `name` is
    `sandbox` or `approval_policy`.

    `current` contains the current settings of the conversation; None for a new conversation.

    Raises:
        ConfigError: the settings of the server cannot be used.
    """
    setting = RESTRICTED[name]
    if principal.role >= Role.ADMIN:
        return STRICTEST_FIRST[setting]
    allowed = values_within(setting, loader.choose(SettingsOverrides()).settings)
    if current is None:
        return allowed
    within = values_within(setting, current)
    # If no value is allowed by both the server and the conversation, the conversation keeps its value.
    return tuple(value for value in allowed if value in within) or (getattr(current, setting),)


def _with_allowed_directory(
    principal: Principal, overrides: SettingsOverrides, loader: Loader, current: Settings | None
) -> SettingsOverrides:
    if overrides.repository is not None or (current is not None and current.repository is not None):
        return overrides  # the server chooses the directory
    roots = loader.serve_settings().roots
    if overrides.cwd is None and not (current is None and roots):
        return overrides
    cwd = os.path.realpath(loader.choose(SettingsOverrides(cwd=overrides.cwd)).settings.cwd)
    if current is not None and principal.conversation is not None:
        if cwd == os.path.realpath(current.cwd):
            return replace(overrides, cwd=None)
        raise SettingNotAllowed("cwd", f"must stay {current.cwd}: {principal.name} is bound to the conversation")
    if not roots:
        own = loader.choose(SettingsOverrides()).settings.cwd
        if cwd == os.path.realpath(own):
            return overrides
        raise SettingNotAllowed("cwd", f"must be {own} while serve.roots is not set; {_role_of(principal)}")
    if is_below_any(cwd, allowed_roots(loader)):
        return replace(overrides, cwd=cwd)
    raise SettingNotAllowed("cwd", f"must lie below {' or '.join(roots)} (serve.roots); {_role_of(principal)}")


def allowed_roots(loader: Loader) -> tuple[str, ...]:
    """Return the directories in the setting `serve.roots`, as paths without symbolic links. A principal with a role
    below admin may choose a working directory only below these directories.

    If the tuple is empty, such a principal can use only the default working directory of the server.

    Raises:
        ConfigError: the settings of the server cannot be used.
    """
    roots = loader.serve_settings().roots
    return tuple(os.path.realpath(os.path.expanduser(root)) for root in roots)


def _role_of(principal: Principal) -> str:
    return f"{principal.name} has the role {principal.role.label}"

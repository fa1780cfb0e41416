"""The tool `settingsList`, which returns the settings that a client can choose, and their defaults. The client
chooses settings for a new conversation or for the next message of a conversation.
"""

from __future__ import annotations

import os
from typing import Any, Final, cast
from uuid import UUID

from parley.common.paths import is_below_any
from parley.config.load import Loader
from parley.config.types import Settings, SettingsOverrides
from parley.server.access import allowed_roots, allowed_values
from parley.server.context import Principal, Role
from parley.server.toolcall import ToolCall
from parley.wire.mcp import CallToolResult, typed_result
from parley.wire.tools import (
    ApprovalPolicy,
    ListedProfile,
    SandboxMode,
    SettingsListArguments,
    SettingsListResult,
)

__all__ = ["list_settings"]

_SHOWN: Final = frozenset(ListedProfile.__struct_fields__) - {"name"}


async def list_settings(call: ToolCall, args: SettingsListArguments) -> CallToolResult:
    principal, loader = call.principal, call.session.loader
    chosen = args.conversation_id
    if chosen is None and principal.conversation is not None:
        chosen = UUID(principal.conversation)
    current = None if chosen is None else (await call.conversation(chosen)).settings
    return typed_result(_listed(principal, loader, current))


def _listed(principal: Principal, loader: Loader, current: Settings | None) -> SettingsListResult:
    """Return the settings that a principal may choose.

    `current` contains the current settings of the conversation; None if the settings are for a new conversation.

    Raises:
        ConfigError: the settings cannot be used.
    """
    chosen = loader.choose(SettingsOverrides())
    default = current or chosen.settings
    is_admin, may_choose = principal.role >= Role.ADMIN, principal.role >= Role.DRIVER
    profiles, roots = loader.profiles(), allowed_roots(loader)
    policies = allowed_values(principal, "approval_policy", loader, current=current)
    modes = allowed_values(principal, "sandbox", loader, current=current)
    return SettingsListResult(
        model=default.model,
        models=_models(default, profiles) if may_choose else (),
        model_provider=default.provider.id,
        model_providers=_providers(default, loader) if is_admin else (),
        profile=chosen.values.get("profile") if is_admin and current is None else None,
        profiles=tuple(_profile(*one) for one in profiles.items()) if is_admin else (),
        cwd=default.cwd if is_admin or current else _default_directory(default.cwd, roots),
        roots=roots if is_admin or (may_choose and principal.conversation is None) else (),
        approval_policy=default.approval_policy,
        approval_policies=cast(tuple[ApprovalPolicy, ...], policies) if may_choose else (),
        sandbox=default.sandbox_mode,
        sandbox_modes=cast(tuple[SandboxMode, ...], modes) if may_choose else (),
        repositories=_repositories(loader) if may_choose and current is None else (),
    )


def _providers(default: Settings, loader: Loader) -> tuple[str, ...]:
    """Return the names of the providers that a client can choose: the default provider, the providers in the
    settings, and the preconfigured providers that can be used without further settings.
    """
    usable = (name for name, missing in loader.ready_providers().items() if missing is None)
    return tuple(dict.fromkeys((default.provider.id, *loader.providers(), *usable)))


def _repositories(loader: Loader) -> tuple[str, ...]:
    workspace = loader.workspace_settings()
    return tuple(workspace.repositories) if workspace.mode == "git" else ()


def _models(default: Settings, profiles: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """Return the models that the argument `model` can name: the default model, and the models of the profiles that
    use the default provider.
    """
    own = default.provider.id
    named = (
        table["model"]
        for table in profiles.values()
        if "model" in table and table.get("model_provider", own) == own
    )
    return tuple(dict.fromkeys((default.model, *named)))


def _profile(name: str, table: dict[str, Any]) -> ListedProfile:
    return ListedProfile(name=name, **{key: value for key, value in table.items() if key in _SHOWN})


def _default_directory(cwd: str, roots: tuple[str, ...]) -> str:
    """If `cwd` is below one of the `roots`, or if there are no roots, return `cwd`. Otherwise, return the first
    root.
    """
    real = os.path.realpath(cwd)
    is_allowed = not roots or is_below_any(real, roots)
    return cwd if is_allowed else roots[0]

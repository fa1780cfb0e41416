"""Resolves the settings of one conversation for each message. The settings come from config.toml, and from the
command line and the environment of this process or of one client.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from parley.config.redaction import stored_arguments, stored_overrides
from parley.config.strictness import looser_setting
from parley.config.types import ResolvedSettings, SettingsOverrides
from parley.conversation.records import SettingsChosen
from parley.conversation.settings_history import SettingsChange
from parley.errors import BadSetting, SettingNotAllowed
from parley.wire.ids import MessageId

__all__ = ["NODE", "ResolveSettings", "SettingsResolver", "refuse_looser"]

ResolveSettings = Callable[[SettingsOverrides, ResolvedSettings | None], ResolvedSettings]
"""A function that applies the overrides of a client's call to the previous settings, and returns the resulting
settings. The previous settings are None for a new conversation.
"""

NODE: Final = "node"
"""The key, in a settings record, of the id of the node that has the working directory on its disk."""

_REAL_CWD: Final = "real_cwd"
"""The key, in a settings record, of the path of the working directory without symbolic links."""


class SettingsResolver:
    """Resolves the settings of one conversation. Settings are resolved when they are first used, and the result is
    cached.
    """

    def __init__(
        self,
        resolve: ResolveSettings,
        node_of: Callable[[str], str | None] = lambda _: None,
        *,
        worktree: Callable[[], str] | None = None,
    ) -> None:
        """Create the resolver.

        `resolve` resolves settings with the configuration of this process. `node_of` returns the id of this node if
        a directory is on the disk of this node; otherwise None. `worktree` is a function that returns the path of
        the conversation's worktree; None if this process has no worktrees.
        """
        self._node_of, self._worktree = node_of, worktree
        self._resolve = self.of_process = resolve
        """The function that currently resolves settings. `of_process` is the default function, which uses
        config.toml, the command line and the environment of this process.
        """
        self._wanted: dict[MessageId | None, SettingsOverrides] = {}
        """Maps each message to the overrides that a client of this process supplied with it, including secrets. The
        key None stands for the creation of the conversation. The log contains no secrets.
        """
        self._known: dict[MessageId | None, ResolvedSettings] = {}
        """Maps each message that changed settings to the settings that were resolved for it. The key None stands
        for the creation of the conversation. If the log is read again, these settings are not resolved again.
        """
        self.real_cwds: dict[str, str] = {}
        """The working directories of the conversation, each with the path without symbolic links that it had when
        it was first chosen. The log also contains these paths, so that they are known after a restart of the
        server.
        """
        self.has_secrets = False
        """True if a client has supplied settings that are secret and therefore not stored."""

    def resolve_for(self, resolve: ResolveSettings | None) -> None:
        """From now on, resolve settings with the function `resolve`, which a client has supplied. Do nothing if
        `resolve` is None.
        """
        if resolve is not None and resolve != self._resolve:
            self._resolve = resolve
            self._known.clear()

    def resolve(self, overrides: SettingsOverrides, before: ResolvedSettings) -> ResolvedSettings:
        """Return the settings that result from applying `overrides` to the settings `before`.

        Raises:
            ConfigError: the settings cannot be used.
        """
        return self.placed(self._resolve(overrides, before))

    def placed(self, resolved: ResolvedSettings) -> ResolvedSettings:
        """Return `resolved` with the conversation's worktree as the working directory, if the conversation works in
        a repository; otherwise return `resolved` unchanged. The path of the worktree depends on the node.

        Raises:
            ConfigError: this process has no worktrees.
        """
        if resolved.settings.repository is None:
            return resolved
        if self._worktree is None:
            raise BadSetting("this process has no worktrees", key="repository")
        if resolved.settings.cwd == (path := self._worktree()):
            return resolved
        return ResolvedSettings(resolved.values, replace(resolved.settings, cwd=path))

    def remember(
        self, change: SettingsChange, overrides: SettingsOverrides | None, resolved: ResolvedSettings
    ) -> None:
        """Cache the settings that were resolved for `change`. If `overrides` is not None, also cache these
        overrides of the client, which may contain secrets.
        """
        self._known[change.by] = resolved
        if overrides is not None:
            cwd = resolved.settings.cwd if resolved.settings.repository is None else None
            self._wanted[change.by] = replace(overrides, cwd=cwd)

    def record(self, overrides: SettingsOverrides, resolved: ResolvedSettings) -> SettingsChosen:
        """Return the log record of a change of settings. `overrides` are the settings that the client supplied, and
        `resolved` are the complete settings that result. Secrets in `overrides` are left out of the record.
        """
        settings, asked = resolved.settings, stored_arguments(overrides)
        self.has_secrets |= stored_overrides(asked) != overrides
        if settings.repository is not None:
            return SettingsChosen(model=settings.model, cwd=settings.cwd, asked=asked)
        asked["cwd"] = settings.cwd
        if (real := self.real_cwds.get(settings.cwd) or _real_path(settings.cwd)) is not None:
            asked[_REAL_CWD] = self.real_cwds[settings.cwd] = real
        if (node := self._node_of(settings.cwd)) is not None:
            asked[NODE] = node
        return SettingsChosen(model=settings.model, cwd=settings.cwd, asked=asked)

    def resolved(self, change: SettingsChange) -> ResolvedSettings:
        """Return the settings that apply after a change. Resolve them if they are not in the cache.

        Raises:
            ConfigError: the settings are no longer valid.
        """
        unknown: list[SettingsChange] = []
        step: SettingsChange | None = change
        while step is not None and step.by not in self._known:
            unknown.append(step)
            step = step.before
        chosen = None if step is None else self._known[step.by]
        for one in reversed(unknown):
            wanted = self._wanted.get(one.by) or stored_overrides(one.asked)
            if isinstance(cwd := one.asked.get("cwd"), str) and isinstance(real := one.asked.get(_REAL_CWD), str):
                self.real_cwds.setdefault(cwd, real)
            chosen = self._known[one.by] = self.placed(self._resolve(wanted, chosen))
        assert chosen is not None  # a chain has at least one change
        return chosen


def refuse_looser(proposed: ResolvedSettings, current: ResolvedSettings, *, names_directory: bool = False) -> None:
    """Check that the settings `proposed` for a limited principal are not looser than the settings `current` of the
    conversation (`config/strictness.py`).

    A working directory that differs from the current one counts as looser, unless `names_directory` is True. True
    means that the principal has named the directory and that `server/access.py` has already checked it.

    Raises:
        SettingNotAllowed: the settings are looser.
    """
    name = looser_setting(proposed, current)
    if name is None and not names_directory and proposed.settings.cwd != current.settings.cwd:
        name = "cwd"
    if name is not None:
        raise SettingNotAllowed(name, "would be looser than the conversation has it now; this needs the role admin")


def _real_path(path: str) -> str | None:
    """Return the given path with symbolic links resolved. Return None if the path cannot be resolved, or if the
    resolved path cannot be encoded as UTF-8 for the log.
    """
    try:
        real = os.path.realpath(path)
        real.encode()  # the log cannot store the path, because the log is UTF-8
    except (OSError, ValueError):
        return None
    return real

"""The settings of one conversation at each message, resolved with the files and the environment of this process."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from parley.config.redaction import kept, stored_overrides
from parley.config.types import ResolvedSettings, SettingsOverrides
from parley.conversation.records import SettingsChosen
from parley.conversation.settings_history import SettingsChange
from parley.wire.ids import MessageId

__all__ = ["ResolveSettings", "SettingsResolver"]

ResolveSettings = Callable[[SettingsOverrides, ResolvedSettings | None], ResolvedSettings]
"""Resolves the overrides of a call on top of the settings that were in force before it."""


class SettingsResolver:
    """Resolves settings when they are first needed, and caches them."""

    def __init__(self, resolve: ResolveSettings) -> None:
        self._resolve = resolve
        self._wanted: dict[MessageId | None, SettingsOverrides] = {}
        """The overrides of clients of this process, including secrets, by message. The log has no secrets."""
        self._known: dict[MessageId | None, ResolvedSettings] = {}
        """By the message that changed them, so that they are known although the log was read again."""
        self.has_secrets = False
        """Whether a client gave settings that are not stored."""

    def resolve_for(self, resolve: ResolveSettings | None) -> None:
        """From now on, resolve with the files and the environment of another client; None changes nothing."""
        if resolve is not None and resolve != self._resolve:
            self._resolve = resolve
            self._known.clear()

    def resolve(self, wanted: SettingsOverrides, before: ResolvedSettings) -> ResolvedSettings:
        """Return the settings after a call. Raises ConfigError."""
        return self._resolve(wanted, before)

    def remember(self, change: SettingsChange, wanted: SettingsOverrides | None, chosen: ResolvedSettings) -> None:
        """Store the resolved settings of a change and the overrides of the client, including secrets."""
        self._known[change.by] = chosen
        if wanted is not None:
            self._wanted[change.by] = replace(wanted, cwd=chosen.settings.cwd)

    def record(self, wanted: SettingsOverrides, chosen: ResolvedSettings) -> SettingsChosen:
        """Return the record of a change, without its secrets."""
        settings, asked = chosen.settings, kept(wanted)
        self.has_secrets |= stored_overrides(asked) != wanted
        return SettingsChosen(model=settings.model, cwd=settings.cwd, asked={**asked, "cwd": settings.cwd})

    def resolved(self, change: SettingsChange) -> ResolvedSettings:
        """Return the settings after a change.

        Raises:
            ConfigError: the settings cannot be used as they are now.
        """
        unknown: list[SettingsChange] = []
        step: SettingsChange | None = change
        while step is not None and step.by not in self._known:
            unknown.append(step)
            step = step.before
        chosen = None if step is None else self._known[step.by]
        for one in reversed(unknown):
            wanted = self._wanted.get(one.by) or stored_overrides(one.asked)
            chosen = self._known[one.by] = self._resolve(wanted, chosen)
        assert chosen is not None  # a chain has at least one change
        return chosen

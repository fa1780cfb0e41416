"""The settings of one conversation at each message, by the files and the environment of this process."""

from __future__ import annotations

from collections.abc import Callable

from parley.config.redaction import kept, stored_overrides
from parley.config.types import ResolvedSettings, SettingsOverrides
from parley.conversation.records import SettingsChosen
from parley.conversation.settings_history import SettingsChange
from parley.wire.ids import MessageId

__all__ = ["ResolveSettings", "SettingsResolver"]

ResolveSettings = Callable[[SettingsOverrides, ResolvedSettings | None], ResolvedSettings]
"""Resolves the overrides of a call on top of the settings that were in force before it."""


class SettingsResolver:
    """Resolves settings when they are first needed, and keeps them."""

    def __init__(self, resolve: ResolveSettings) -> None:
        self.resolve = resolve
        self._known: dict[MessageId | None, ResolvedSettings] = {}
        """By the message that changed them, so that they are known although the log was read again."""
        self.has_secrets = False
        """Whether a client gave settings that are not stored."""

    def remember(self, change: SettingsChange, chosen: ResolvedSettings) -> None:
        """Keep what a change was resolved to when it was made, with its secrets."""
        self._known[change.by] = chosen

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
            chosen = self._known[one.by] = self.resolve(stored_overrides(one.asked), chosen)
        assert chosen is not None  # a chain has at least one change
        return chosen

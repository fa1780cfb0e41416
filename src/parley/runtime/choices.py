"""What the wishes of one conversation come to: settings, by the files and the environment of this process."""

from __future__ import annotations

from collections.abc import Callable

from parley.config.redaction import kept, wanted_again
from parley.config.types import ResolvedSettings, SettingsOverrides
from parley.conversation.records import SettingsChosen
from parley.conversation.settings_history import SettingsChange
from parley.wire.ids import MessageId

__all__ = ["Choices", "Choose"]

Choose = Callable[[SettingsOverrides, ResolvedSettings | None], ResolvedSettings]
"""What holds after a call that asks for something, on top of what was chosen before."""


class Choices:
    """Found out when first needed, and then kept."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self._known: dict[MessageId | None, ResolvedSettings] = {}
        """By the message that asked for it, so that it is known also where the log had to be read again."""
        self.has_secrets = False
        """Whether somebody asked for what is written down nowhere."""

    def know(self, wish: SettingsChange, chosen: ResolvedSettings) -> None:
        """This is what a wish came to when it was made, with all its secrets."""
        self._known[wish.by] = chosen

    def record(self, wanted: SettingsOverrides, chosen: ResolvedSettings) -> SettingsChosen:
        """What is written down of a wish, which is all but its secrets."""
        settings, asked = chosen.settings, kept(wanted)
        self.has_secrets |= wanted_again(asked) != wanted
        return SettingsChosen(model=settings.model, cwd=settings.cwd, asked={**asked, "cwd": settings.cwd})

    def of(self, wish: SettingsChange) -> ResolvedSettings:
        """What a wish comes to.

        Raises:
            ConfigError: the settings cannot be used as they are now.
        """
        unknown: list[SettingsChange] = []
        step: SettingsChange | None = wish
        while step is not None and step.by not in self._known:
            unknown.append(step)
            step = step.before
        chosen = None if step is None else self._known[step.by]
        for one in reversed(unknown):
            chosen = self._known[one.by] = self.choose(wanted_again(one.asked), chosen)
        assert chosen is not None  # a chain has at least one wish
        return chosen

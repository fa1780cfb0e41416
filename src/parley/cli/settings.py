"""Loads the settings for a command, from the home, the environment and the working directory of this process."""

from __future__ import annotations

import os
from collections.abc import Sequence

from parley.cli.printing import print_note
from parley.cli.runner import CommandFailed
from parley.config.load import Loader
from parley.config.toml_lines import KeyPath
from parley.config.working_directory import working_directory
from parley.errors import ConfigError

__all__ = ["refuse_database", "report_override", "settings_loader"]


def settings_loader(overrides: Sequence[str] = (), *, text: str | None = None) -> Loader:
    """Return a settings loader for the environment and working directory of this process. `overrides` are the
    values of `-c`. If `text` is not None, the loader uses it as the content of config.toml.

    Raises:
        BadSetting: the working directory was removed, or an override is invalid.
    """
    return Loader(environ=os.environ, server_dir=working_directory(), overrides=overrides, text=text)


def refuse_database(loader: Loader, instead: str) -> None:
    """Raise an error if the conversations are in a PostgreSQL database, for commands that support only the home.

    `instead` is the end of the error message, which tells the user what to do instead.

    Raises:
        CommandFailed: the conversations are in a PostgreSQL database.
    """
    if loader.store_url() is not None:
        raise CommandFailed(f"the conversations are in a PostgreSQL database (`store.url`); {instead}")


def report_override(path: KeyPath) -> None:
    """If a profile or an environment variable takes precedence over config.toml for the setting `path`, print a
    note. If the settings cannot be used, do nothing.
    """
    from parley.config.effective import effective_settings

    try:
        found = [one for one in effective_settings(settings_loader()) if one.path == path]
    except ConfigError:
        return
    for one in found:
        if one.source in ("profile", "environment"):
            print_note(
                "config", f"`{one.key}` in config.toml has no effect at present: {one.origin} takes precedence"
            )

"""Loads the settings of a command that a person starts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from parley.config.load import Loader
from parley.errors import BadSetting

__all__ = ["settings_loader"]


def settings_loader(overrides: Sequence[str] = ()) -> Loader:
    """Return a loader for the environment and working directory of this process.

    Raises:
        BadSetting: the working directory was removed, or an override is invalid.
    """
    try:
        cwd = os.getcwd()
    except OSError as error:
        raise BadSetting(f"the working directory cannot be used: {error.strerror}") from None
    return Loader(environ=os.environ, server_dir=cwd, overrides=overrides)

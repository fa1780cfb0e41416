"""Whose settings hold for a command that is given by hand."""

from __future__ import annotations

import os
from collections.abc import Sequence

from parley.config.load import Loader
from parley.errors import BadSetting

__all__ = ["loader_here"]


def loader_here(overrides: Sequence[str] = ()) -> Loader:
    """The settings of the environment and the directory that the command was given in.

    Raises:
        BadSetting: there is no such directory any more, or an override does not fit.
    """
    try:
        here = os.getcwd()
    except OSError as error:
        raise BadSetting(f"the working directory cannot be used: {error.strerror}") from None
    return Loader(environ=os.environ, server_dir=here, overrides=overrides)

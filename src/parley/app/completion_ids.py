"""Lists the ids that shell completion offers. No server is started, and no database on another computer is read."""

from __future__ import annotations

import os
from collections.abc import Mapping

from parley.common.home import named_home

__all__ = ["completion_ids"]

STORE_VARIABLE = "PARLEY_STORE_URL"


def completion_ids(kind: str, environ: Mapping[str, str], directory: str) -> list[tuple[str, str]]:
    """Return ids of conversations or of open approvals, each with a title. `kind` is `conversations` or
    `approvals`.

    The variables in `environ` name the home, and a relative path is resolved against `directory`. The result is
    empty if no home is named, or if the conversations are not in the database of the home.
    """
    from parley.stores.sqlite.recent_ids import open_approvals, recent_conversations

    home = named_home(environ, directory)
    if home is None or environ.get(STORE_VARIABLE) or _names_database(home.path):
        return []
    return open_approvals(home.path) if kind == "approvals" else recent_conversations(home.path)


def _names_database(home: str) -> bool:
    """Return whether config.toml names a database other than the database of the home."""
    try:
        with open(os.path.join(home, "config.toml"), "rb", opener=_without_waiting) as file:
            text = file.read()
        if b"postgres" not in text:
            return False
        import tomllib

        return "url" in tomllib.loads(text.decode()).get("store", {})
    except (OSError, ValueError, AttributeError):
        return False


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)

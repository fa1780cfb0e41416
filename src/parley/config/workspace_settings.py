"""Checks the settings for the working directories of a node and for its repositories."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from parley.config.sources import Source, setting_error
from parley.config.types import Repository, WorkspaceSettings

__all__ = ["workspace_settings"]

_REPOSITORY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
"""The pattern of valid names of repositories, which are also used as names of directories."""
_AUTHOR: Final = re.compile(r"[^<>\x00-\x1f\x7f]*[^<>\s\x00-\x1f\x7f] <[^<>\s\x00-\x1f\x7f]*>")


def workspace_settings(table: Mapping[str, Any], sources: Sequence[Source]) -> WorkspaceSettings:
    """Return the settings in the table `workspace`. `sources` are the sources of the table, for errors.

    Raises:
        BadSetting: a value is invalid, or a required value is missing.
    """
    repositories = {name: Repository(**one) for name, one in table.get("repositories", {}).items()}
    settings = WorkspaceSettings(**{**table, "repositories": repositories})
    for name, repository in repositories.items():
        if not _REPOSITORY_NAME.fullmatch(name) or name.endswith((".git", ".lock", ".")):
            detail = (
                "expected 1 to 64 letters, digits, `.`, `_` and `-`, beginning with a letter or a digit, "
                "and not ending with `.`, `.git` or `.lock`"
            )
            raise setting_error(sources, ("workspace", "repositories", name), detail)
        if repository.url is None:
            raise setting_error(sources, ("workspace", "repositories", name, "url"), "missing")
        if repository.branch is not None and not _is_branch(repository.branch):
            raise setting_error(sources, ("workspace", "repositories", name, "branch"), "not the name of a branch")
    if settings.mode == "git" and settings.directory is None:
        raise setting_error(sources, ("workspace", "directory"), "missing, and the mode `git` needs it")
    if not _AUTHOR.fullmatch(settings.author):
        raise setting_error(sources, ("workspace", "author"), "expected the form `NAME <ADDRESS>`")
    return settings


def _is_branch(name: str) -> bool:
    """Return whether a string is a valid name of a branch, by rules that are stricter than the rules of Git."""
    parts = name.split("/")
    is_plain = re.fullmatch(r"[A-Za-z0-9._/@+-]{1,200}", name, re.ASCII) is not None and ".." not in name
    return is_plain and all(part and part[0] not in ".-@" and not part.endswith((".", ".lock")) for part in parts)

"""Writes the files of the site, and removes the files of the previous build."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["NotASite", "write"]

MARK: Final = ".parley-docs"
"""The name of an empty file which shows that a directory contains a site that this program has written."""


class NotASite(Exception):
    """Raised if the directory contains files of another origin, which must not be deleted."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"{directory} contains other files; name an empty or a new directory")


def write(files: Mapping[str, bytes], directory: Path) -> None:
    """Replace the contents of a directory with the files of the site.

    Raises:
        NotASite: the directory contains other files, and nothing was changed.
    """
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARK).exists():
            raise NotASite(directory)
        shutil.rmtree(directory)
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (directory / MARK).touch()

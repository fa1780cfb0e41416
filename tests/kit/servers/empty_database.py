"""The database of a new home, copied from a template instead of created by the server.

Creating the tables of a database takes longer than most tests. Servers that run as child processes still create
their databases themselves.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from parley.config.load import STORE_VARIABLE
from parley.stores.sqlite.database import make_database
from parley.stores.sqlite.files import DATABASE

__all__ = ["provide_database"]


def provide_database(environ: Mapping[str, str]) -> None:
    """Copy an empty database into the home that `environ` names, if the home is new and keeps its conversations in
    SQLite.
    """
    home = Path(environ.get("PARLEY_HOME", ""))
    config = home / "config.toml"
    if (
        not home.is_absolute()
        or STORE_VARIABLE in environ
        or not config.is_file()
        or "[store]" in config.read_text(errors="replace")
        or any(home.glob(f"{DATABASE}*"))
    ):
        return
    descriptor = os.open(home / DATABASE, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_template())


@cache
def _template() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, DATABASE)
        make_database(directory, path)
        return Path(path).read_bytes()

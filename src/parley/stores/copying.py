"""A copy of a database that others go on using."""

from __future__ import annotations

import os
import sqlite3
from threading import Event
from typing import Final

from parley.errors import StoreFailed
from parley.stores.home import sync_directory
from parley.stores.moment import one_moment
from parley.stores.unfinished import Unfinished, folder_of

__all__ = ["copy_to"]

STEP_PAGES: Final = 1000
"""How much is copied before it is looked whether that is still wanted: some megabytes."""


def copy_to(db: sqlite3.Connection, path: str, given_up: Event) -> bool:
    """Write the whole database as of one moment into one file, which has its name when it is complete.

    Says whether it did: a file that is there stays as it is.

    Raises:
        StoreFailed: it was given up, and nothing of it is left.
    """

    def refuse_in_vain(*_: int) -> None:
        if given_up.is_set():
            raise StoreFailed("the copy was given up")

    if os.path.lexists(path):
        return False
    with one_moment(db), Unfinished(path) as unfinished:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from here on the moment is this one
        copy = sqlite3.connect(unfinished.name, isolation_level=None)
        try:
            copy.execute("PRAGMA synchronous = OFF")  # the whole file is synced below
            db.backup(copy, pages=STEP_PAGES, progress=refuse_in_vain)
            copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            copy.close()
        refuse_in_vain()
        try:
            unfinished.give_name(over=False)
        except FileExistsError:  # of another copy, which was faster
            return False
    sync_directory(folder_of(path))
    return True

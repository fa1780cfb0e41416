"""Opens home directories for `parley` commands, even while servers are using the directories."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePath
from typing import Final

from parley.conversation.export_format import read_head
from parley.conversation.log import Entry
from parley.errors import BadFile, BadHome, UnknownConversation
from parley.ports.store import Store
from parley.stores.sqlite.database import is_new
from parley.stores.sqlite.errors import opening_error
from parley.stores.sqlite.files import DATABASE, directory_of
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import START, ConversationId, Seq

__all__ = ["entries_until", "open_home", "why_not_overwrite"]

NEEDED: Final = "is a file that the home itself needs"
ALLOWED: Final = (".jsonl", ".db")
"""The suffixes of the files that `parley` commands may create in a home directory."""
HEAD_BYTES: Final = 1024**2
"""The maximum length of the first line of an export, in bytes."""


@asynccontextmanager
async def open_home(home: str, *, to_write: bool = False) -> AsyncIterator[SqliteStore]:
    """Open the store of a home directory, and yield it. If `to_write` is True, create the directory if it is
    missing.

    Raises:
        BadHome: the home directory contains no conversations, or its conversations cannot be used.
    """
    if not to_write:
        _refuse_empty(home)
    store = SqliteStore(home)
    try:
        yield store
    finally:
        await store.close()


def _refuse_empty(home: str) -> None:
    """Check that a home directory has a database.

    Raises:
        BadHome: the database is missing or damaged.
    """
    try:
        has_none = is_new(home)
    except OSError as error:
        raise opening_error(home, error) from error
    if has_none:
        raise BadHome(home, "there are no conversations here")


def why_not_overwrite(home: str, path: str) -> str | None:
    """Return the reason why a `parley` command must not write to the file `path`. Return None if the command may
    write to this file.
    """
    is_there = os.path.lexists(path)
    if os.path.basename(path) in ("", os.curdir, os.pardir):
        return "names no file"
    if is_there and not stat.S_ISREG(os.lstat(path).st_mode):
        return "is not a regular file; only regular files are replaced"
    place = PurePath(os.path.realpath(directory_of(path)), os.path.basename(path))
    database = PurePath(os.path.realpath(os.path.join(home, DATABASE)))
    if place.parent == database.parent and place.name.startswith(database.name):
        return NEEDED
    if not place.is_relative_to(os.path.realpath(home)):
        return None
    inside = place.relative_to(os.path.realpath(home))
    if inside.name.startswith(DATABASE) or inside.suffix == ".lock" or inside.parts[0] == "run":
        return NEEDED
    if inside.suffix not in ALLOWED or (is_there and not _is_export(path)):
        return "is in the home, where commands create only *.jsonl and *.db files, and replace only exports"
    return None


def _is_export(path: str) -> bool:
    with open(path, "rb") as file:
        try:
            read_head(file.readline(HEAD_BYTES))
        except BadFile:
            return False
    return True


async def entries_until(store: Store, conversation_id: ConversationId, *, until: Seq) -> AsyncIterator[Entry]:
    """Yield the entries of a conversation up to the position `until`."""
    at = START
    while at < until:
        page = await store.read(conversation_id, after=at)
        if not page:
            raise UnknownConversation(conversation_id)
        for entry in page[: until - at]:
            yield entry
        at = page[-1].seq

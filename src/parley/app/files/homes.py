"""A home as its owner sees it from outside: its conversations, whoever uses them meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parley.conversation.log import Entry
from parley.errors import BadHome, UnknownConversation
from parley.ports.store import Store
from parley.stores.opening import DATABASE
from parley.stores.sqlite import SqliteStore
from parley.wire.ids import START, ConversationId, Seq

__all__ = ["entries_until", "open_home", "why_not_over"]


@asynccontextmanager
async def open_home(home: str, *, to_write: bool = False) -> AsyncIterator[SqliteStore]:
    """The conversations of a home, which is made if it is `to_write` to.

    Raises:
        BadHome: there are none, or they cannot be used.
    """
    if not to_write:
        _refuse_empty(home)
    store = SqliteStore(home)
    try:
        yield store
    finally:
        await store.close()


def _refuse_empty(home: str) -> None:
    if not os.path.exists(os.path.join(home, DATABASE)):
        raise BadHome(home, "there are no conversations here")


def why_not_over(home: str, path: str) -> str | None:
    """Why nothing may be written to a path, whoever wants it; None: it may, in place of the file that is there."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        return "is no regular file, and nothing else is replaced"
    folder, name = os.path.split(os.path.abspath(path))
    inside = os.path.join(os.path.realpath(folder), name).removeprefix(os.path.join(os.path.realpath(home), ""))
    if inside.startswith((DATABASE, "run/")) or (inside.endswith(".lock") and not inside.startswith("/")):
        return "is a file that the home itself needs"
    return None


async def entries_until(store: Store, conversation_id: ConversationId, *, until: Seq) -> AsyncIterator[Entry]:
    """Entries from the first to this one.

    Raises:
        UnknownConversation: it is not there, or not there any more.
    """
    at = START
    while at < until:
        page = await store.read(conversation_id, after=at)
        if not page:
            raise UnknownConversation(conversation_id)
        for entry in page[: until - at]:
            yield entry
        at = page[-1].seq

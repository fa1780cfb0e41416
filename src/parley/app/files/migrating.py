"""Copies the conversations of a home directory to a PostgreSQL database."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple

from parley.app.files.homes import open_home
from parley.common.unix_sockets import short_path
from parley.errors import BadHome, UnknownConversation
from parley.ports.store import ConversationListing, Query
from parley.stores.postgres.drafts import PostgresDraft
from parley.stores.postgres.migration import ReadMarks
from parley.stores.postgres.store import PostgresStore
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import START

__all__ = ["Migrated", "migrate_home"]


class Migrated(NamedTuple):
    """The result of a migration."""

    conversations: int
    """The number of conversations in the database."""
    copied: int
    """The number of conversations that this run has copied. Earlier runs have copied the other conversations."""
    tokens: int


async def migrate_home(
    home: str, url: str, *, report: Callable[[int, int], None] = lambda done, of: None
) -> Migrated:
    """Copy all conversations, tokens and read marks of a home to an empty database. Return the numbers of
    conversations and tokens. The home is not changed.

    A migration that was interrupted continues with the first conversation that the database lacks. `report` is
    called before each conversation is copied, and again after all conversations have been copied. Its arguments are
    the number of conversations that are already in the database and the number of conversations in the home.

    Raises:
        BadHome: a server is using the home, the home has no conversations, or the database is not empty.
        StoreError: the home cannot be read, or the database cannot be written.
    """
    if (socket_path := _listening(home)) is not None:
        raise BadHome(home, f"a server is running ({socket_path}); stop it first")
    source = _name_of(home)
    target = PostgresStore(url)
    try:
        async with open_home(home) as store:
            await target.begin_migration(source)
            listings = [one async for one in _listed(store)]
            copied = 0
            for done, listed in enumerate(reversed(listings)):
                report(done, len(listings))
                copied += await _copied(store, target, listed)
            report(len(listings), len(listings))
            await _refuse_changed(home, store, target)
            tokens = await store.tokens()
            present = {one.digest for one in await target.tokens()}
            for token in tokens:
                if token.digest not in present:
                    await target.add_token(token)
            await target.end_migration(source)
            return Migrated(len(listings), copied, len(tokens))
    finally:
        await target.close()


def _name_of(home: str) -> str:
    """Return a name that identifies the home among the homes of all computers. The database stores this name, so
    that an interrupted migration can be continued only from the same home.
    """
    return f"{os.uname().nodename}:{os.path.realpath(home)}"


def _listening(home: str) -> str | None:
    """Return the path of a socket in the home on which a server listens; None if no server listens in the home."""
    for directory in (home, os.path.join(home, "run")):
        with suppress(OSError):
            for name in sorted(os.listdir(directory)):
                path = os.path.join(directory, name)
                with suppress(OSError), socket.socket(socket.AF_UNIX) as channel:
                    if stat.S_ISSOCK(os.lstat(path).st_mode):
                        with short_path(directory, name) as short:
                            channel.connect(short)
                        return path
    return None


async def _listed(store: SqliteStore) -> AsyncIterator[ConversationListing]:
    """Yield all conversations in the store. The conversation with the latest activity is first."""
    query = Query(archived=None, limit=500)
    while True:
        page = await store.find(query)
        for one in page.items:
            yield one
        if not page.more:
            return
        query = Query(archived=None, limit=500, after=page.items[-1].cursor)


async def _refuse_changed(home: str, store: SqliteStore, target: PostgresStore) -> None:
    """Check that no process has written to the home since its conversations were copied.

    Raises:
        BadHome: a conversation has changed.
    """
    async for listed in _listed(store):
        one = listed.conversation_id
        last = (await store.head(one)).last
        try:
            is_same = (await target.head(one)).last == last
        except UnknownConversation:
            is_same = False
        if not is_same:
            why = f"conversation {one} was changed during the migration; stop all servers and use a new database"
            raise BadHome(home, why)


async def _copied(store: SqliteStore, target: PostgresStore, listed: ConversationListing) -> bool:
    """Copy one conversation, completely or not at all, and return True. If the database already contains the
    conversation, copy nothing and return False.
    """
    conversation_id = listed.conversation_id
    with suppress(UnknownConversation):
        await target.head(conversation_id)
        return False
    head = await store.head(conversation_id)
    await target.raise_epochs(head.epoch)
    draft: PostgresDraft = await target.draft()
    try:
        at = START
        while page := await store.read(conversation_id, after=at):
            await draft.add(page)
            at = page[-1].seq
        by_all, by_reader = await store.read_marks(conversation_id)
        await draft.finish(
            conversation_id,
            head.summary,
            archived=head.archived,
            checkpoint=await store.checkpoint(conversation_id),
            read=ReadMarks(by_all, by_reader),
        )
    except BaseException:
        await draft.drop()
        raise
    return True

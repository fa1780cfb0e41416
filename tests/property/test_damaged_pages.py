"""Any damaged page of the database: the affected data is reported, and everything else is read as it was
written."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kit.builders.events import agent_message, task_started, user_message
from kit.builders.logs import AT, log_of
from kit.builders.records import command_output, settings_chosen, turn_ended, turn_started
from parley.conversation.log import Entry
from parley.errors import BadHome, Unreadable
from parley.ports.store import Query, Summary
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import START, ConversationId

PAGE_BYTES = 4096
CONVERSATIONS = 120
Kept = dict[ConversationId, list[Entry]]


def named(number: int) -> ConversationId:
    return ConversationId(f"11111111-1111-4111-8111-{number:012}")


async def made(home: Path) -> Kept:
    """Create a home in which every table that can grow has several pages."""
    store = SqliteStore(str(home))
    kept: Kept = {}
    for number in range(CONVERSATIONS):
        output = command_output("c", number.to_bytes(2) * 4500)
        said = [agent_message(f"Hello {number} {word}") for word in range(12)]
        begun = (settings_chosen(), turn_started(), task_started(), user_message("go"))
        log = log_of(*begun, output, *said, agent_message("long " * 3000), turn_ended())
        kept[named(number)] = list(log.entries)
        summary = Summary(
            title=f"Talk {number} {'x' * 80}", cwd="/", model="m", state="idle", updated_at=AT + number
        )
        await store.create(named(number), log.entries, summary)
    await store.close()
    return kept


async def everything(store: SqliteStore, name: ConversationId) -> list[Entry]:
    found: list[Entry] = []
    while page := await store.read(name, after=found[-1].seq if found else START):
        found += page
    return found


async def survey(home: Path, kept: Kept) -> tuple[set[ConversationId], set[ConversationId]]:
    """Return the listed conversations, and the conversations that are read exactly as they were written.

    All other conversations must be unreadable.
    """
    store = SqliteStore(str(home))
    try:
        listed = {one.conversation_id for one in (await store.find(Query(limit=2 * CONVERSATIONS))).items}
        whole: set[ConversationId] = set()
        for name, entries in kept.items():
            try:
                assert await everything(store, name) == entries
                whole.add(name)
            except Unreadable:
                continue
        await store.find(Query(text="hello"))
        await store.has_approvals(["q"])  # type: ignore[list-item]  # any id
    finally:
        await store.close()
    return listed, whole


def root_pages(home: Path) -> set[int]:
    """Return the root pages of the tables and indexes that have child pages."""
    with closing(sqlite3.connect(home / "parley.db")) as db:
        return {page for (page,) in db.execute("SELECT rootpage FROM sqlite_master")}


def damage(home: Path, page: int) -> None:
    with (home / "parley.db").open("r+b") as file:
        file.seek((page - 1) * PAGE_BYTES)
        file.write(bytes(PAGE_BYTES))


async def damaged_pages(tmp_path: Path, pages: int | None) -> None:
    kept = await made(tmp_path / "home")
    count = (tmp_path / "home" / "parley.db").stat().st_size // PAGE_BYTES
    roots = root_pages(tmp_path / "home")
    rest = [page for page in range(2, count + 1) if page not in roots]
    some = rest if pages is None else rest[:: max(1, len(rest) // pages)]
    for page in sorted({*roots, *some}):
        home = tmp_path / str(page)
        home.mkdir()
        shutil.copy(tmp_path / "home" / "parley.db", home)
        damage(home, page)

        listed, whole = await survey(home, kept)

        assert listed == set(kept), page
        if page not in roots:  # one page affects a few conversations, or the index of some dozens
            assert len(kept) - len(whole) <= CONVERSATIONS // 2, page
        shutil.rmtree(home)


@pytest.mark.promises("keeping.damaged")
async def test_a_damaged_page_hits_some_conversations_and_no_list(tmp_path: Path) -> None:
    await damaged_pages(tmp_path, 6)


@pytest.mark.long
@pytest.mark.promises("keeping.damaged")
async def test_any_damaged_page_hits_some_conversations_and_no_list(tmp_path: Path) -> None:
    await damaged_pages(tmp_path, None)


@pytest.mark.parametrize("defect", ["without its first page", "cut off"])
async def test_a_database_that_sqlite_does_not_open_is_to_be_repaired(tmp_path: Path, defect: str) -> None:
    await made(tmp_path)
    if defect == "cut off":
        os.truncate(tmp_path / "parley.db", 20 * PAGE_BYTES)
    else:
        damage(tmp_path, 1)
    store = SqliteStore(str(tmp_path))

    with pytest.raises(BadHome, match="parley doctor --repair"):
        await store.find(Query())
    await store.close()

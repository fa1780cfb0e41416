"""Importing into a store that fails in the middle, and what else cannot be seen from the command line."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from kit.events import agent_message, user_message
from kit.logs import AT
from kit.records import settings_chosen, turn_started
from parley.app.files.importing import Imported, Outcome, import_file
from parley.config.load import Loader
from parley.config.types import Settings, Wanted
from parley.conversation.exported import ExportHead, entry_line, head_line
from parley.conversation.log import Entry, Log
from parley.conversation.records import SettingsChosen
from parley.errors import StoreFailed, UnknownConversation
from parley.ports.store import PAGE, Lease, Query, Summary
from parley.stores.memory import MemoryStore
from parley.wire.ids import ConversationId, Seq
from parley.wire.jsonrpc import encode

ID = ConversationId(str(UUID(int=7)))


class Filling(MemoryStore):
    """Takes one append and then has no room, or hangs."""

    def __init__(self, *, hangs: bool = False, can_delete: bool = True) -> None:
        super().__init__()
        self._hangs, self._can_delete = hangs, can_delete
        self._appended = 0
        self.waiting = asyncio.Event()

    def append(self, lease: Lease, entries: Sequence[Entry], summary: Summary) -> Future[None]:
        self._appended += 1
        if self._appended == 1:
            return super().append(lease, entries, summary)
        pending: Future[None] = asyncio.get_running_loop().create_future()
        if self._hangs:
            self.waiting.set()
        else:
            pending.set_exception(StoreFailed("No space left on device"))
        return pending

    async def delete(self, lease: Lease) -> None:
        if not self._can_delete:
            raise StoreFailed("No space left on device")
        await super().delete(lease)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    loader = Loader(environ={"PARLEY_HOME": str(tmp_path)}, server_dir="/project")
    return loader.choose(Wanted()).settings


def write_export(path: Path, chosen: SettingsChosen, *, texts: int) -> str:
    """An export whose turn runs."""
    log = Log()
    talk = (agent_message(str(number)) for number in range(texts))
    log.append((chosen, turn_started(), user_message("go"), *talk), at=AT)
    head = ExportHead(conversation_id=ID, last=log.last, exported_at=AT, archived=False, title="", cwd="", model="")
    path.write_bytes(b"".join((head_line(head), *map(entry_line, log.entries))))
    return str(path)


@pytest.fixture
def long_file(tmp_path: Path) -> str:
    """Three pages."""
    return write_export(tmp_path / "long.jsonl", settings_chosen(), texts=2 * PAGE)


async def test_a_long_conversation_is_written_page_by_page_and_belongs_to_nobody(
    long_file: str, settings: Settings
) -> None:
    store = MemoryStore()

    imported = await import_file(store, long_file, settings)

    count = 2 * PAGE + 3
    head = await store.head(ID)
    assert imported == Imported(Outcome.IMPORTED, f"imported as {ID}, {count} entries")
    assert (head.last, head.owner, head.summary.state) == (count, None, "running")
    assert head.summary == Summary(title="go", cwd="/project", model="mock-model", state="running", updated_at=AT)


async def test_what_was_begun_is_removed_when_there_is_no_room(long_file: str, settings: Settings) -> None:
    store = Filling()

    imported = await import_file(store, long_file, settings)

    assert imported == Imported(Outcome.FAILED, str(StoreFailed("No space left on device")))
    with pytest.raises(UnknownConversation):
        await store.head(ID)


async def test_what_was_begun_is_removed_when_somebody_has_enough(long_file: str, settings: Settings) -> None:
    store = Filling(hangs=True)
    importing = asyncio.ensure_future(import_file(store, long_file, settings))
    async with asyncio.timeout(20):
        await store.waiting.wait()

    importing.cancel()
    await asyncio.wait({importing})

    assert importing.cancelled()
    assert (await store.find(Query())).page == ()


async def test_it_says_what_it_could_not_remove(long_file: str, settings: Settings) -> None:
    store = Filling(can_delete=False)

    imported = await import_file(store, long_file, settings)

    assert imported.outcome is Outcome.FAILED
    assert imported.text.endswith(f"No space left on device; the unfinished conversation {ID} is left behind")


async def test_until_it_is_whole_it_counts_as_idle(long_file: str, settings: Settings) -> None:
    store = Filling(hangs=True)
    importing = asyncio.ensure_future(import_file(store, long_file, settings))
    async with asyncio.timeout(20):
        await store.waiting.wait()

    begun = await store.head(ID)
    importing.cancel()
    await asyncio.wait({importing})

    assert (begun.last > PAGE, begun.summary.state) == (True, "idle")


async def test_what_has_gone_on_here_is_here_already(long_file: str, settings: Settings) -> None:
    store = MemoryStore()
    await import_file(store, long_file, settings)
    head, lease = await store.head(ID), await store.acquire(ID, address="")
    more = Entry(Seq(head.last + 1), AT + 1, "agent_message", True, encode(agent_message("and on")))
    await store.append(lease, [more], head.summary)
    await store.release(lease)

    again = await import_file(store, long_file, settings)

    assert again == Imported(Outcome.ALREADY_HERE, f"already here as {ID}")


async def test_settings_that_nobody_can_ask_for_are_refused(tmp_path: Path, settings: Settings) -> None:
    chosen = SettingsChosen(model="m", cwd="/project", asked={"cwd": 7})
    path = write_export(tmp_path / "odd.jsonl", chosen, texts=1)

    imported = await import_file(MemoryStore(), path, settings)

    assert imported == Imported(
        Outcome.FAILED, "line 2: settings that nobody can ask for: Expected `str | null`, got `int` - at `$.cwd`"
    )

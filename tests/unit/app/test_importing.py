"""Imports into a store that fails, and other cases that the command line cannot cause."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from kit.builders.approvals import approval_id, approval_settlement, command_approval
from kit.builders.events import agent_message, user_message
from kit.builders.logs import AT
from kit.builders.records import call, call_output, model_said, settings_chosen, turn_started
from kit.builders.rollouts import SESSION, rollout, user
from parley.app.files.importing import Imported, Outcome, import_file
from parley.config.load import Loader
from parley.config.types import Settings, SettingsOverrides
from parley.conversation.export_format import ExportHead, entry_line, head_line
from parley.conversation.log import Entry, Log, LogPayload
from parley.conversation.projections import Projections
from parley.conversation.records import SettingsChosen
from parley.conversation.state import Phase
from parley.errors import StoreFailed, UnknownConversation
from parley.ports.store import PAGE, Draft, Query, Summary
from parley.stores.memory import MemoryStore
from parley.stores.sqlite.store import SqliteStore
from parley.wire.events import ApprovalSettled
from parley.wire.ids import START, CallId, ConversationId, Seq
from parley.wire.jsonrpc import encode

ID = ConversationId(str(UUID(int=7)))
ASKED = re.compile(rb'"approval_id":"([^"]*)"')


class Filling(MemoryStore):
    """A store that accepts one page, and then fails because it is full, or hangs."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__()
        self.hangs = hangs
        self.waiting = asyncio.Event()

    async def draft(self) -> Draft:
        return FillingDraft(await super().draft(), self)


class FillingDraft:
    def __init__(self, draft: Draft, store: Filling) -> None:
        self._store = store
        self.finish, self.drop = draft.finish, draft.drop
        self._add = draft.add
        self._pages = 0

    async def add(self, entries: Sequence[Entry]) -> None:
        self._pages += 1
        if self._pages == 1:
            await self._add(entries)
        elif self._store.hangs:
            self._store.waiting.set()
            await asyncio.Event().wait()
        else:
            raise StoreFailed("No space left on device")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    loader = Loader(environ={"PARLEY_HOME": str(tmp_path)}, server_dir="/project")
    return loader.choose(SettingsOverrides()).settings


def write_export(path: Path, chosen: SettingsChosen, *more: LogPayload, texts: int = 0, at: float = AT) -> str:
    """Write an export with a running turn."""
    log = Log()
    talk = (agent_message(str(number)) for number in range(texts))
    log.append((chosen, turn_started(), user_message("go"), *talk, *more), at=at)
    head = ExportHead(conversation_id=ID, last=log.last, exported_at=AT, archived=False, title="", cwd="", model="")
    path.write_bytes(b"".join((head_line(head), *map(entry_line, log.entries))))
    return str(path)


@pytest.fixture
def long_file(tmp_path: Path) -> str:
    """Return the path of an export of three pages."""
    return write_export(tmp_path / "long.jsonl", settings_chosen(), texts=2 * PAGE)


async def test_a_long_conversation_is_written_page_by_page_without_an_owner(
    long_file: str, settings: Settings
) -> None:
    store = MemoryStore()

    imported = await import_file(store, long_file, settings)

    count = 2 * PAGE + 3
    head = await store.head(ID)
    assert imported == Imported(Outcome.IMPORTED, f"imported as {ID}, {count} entries", conversation=ID)
    assert (head.last, head.owner, head.summary.state) == (count, None, "running")
    assert head.summary == Summary(title="go", cwd="/project", model="mock-model", state="running", updated_at=AT)


async def test_a_partial_import_is_removed_if_the_disk_is_full(long_file: str, settings: Settings) -> None:
    store = Filling()

    imported = await import_file(store, long_file, settings)

    assert imported == Imported(Outcome.FAILED, str(StoreFailed("No space left on device")))
    with pytest.raises(UnknownConversation):
        await store.head(ID)


async def test_a_cancelled_import_is_removed(long_file: str, settings: Settings) -> None:
    store = Filling(hangs=True)
    importing = asyncio.ensure_future(import_file(store, long_file, settings))
    async with asyncio.timeout(90):
        await store.waiting.wait()

    importing.cancel()
    await asyncio.wait({importing})

    assert importing.cancelled()
    assert (await store.find(Query())).items == ()


async def test_a_conversation_that_continued_here_is_not_imported_again(long_file: str, settings: Settings) -> None:
    store = MemoryStore()
    await import_file(store, long_file, settings)
    head, lease = await store.head(ID), await store.acquire(ID, address="")
    more = Entry(Seq(head.last + 1), AT + 1, "agent_message", True, encode(agent_message("and on")))
    await store.append(lease, [more], head.summary)
    await store.release(lease)

    again = await import_file(store, long_file, settings)

    assert again == Imported(Outcome.ALREADY_HERE, f"already here as {ID}", conversation=ID)


@pytest.mark.parametrize("texts", [1, 2 * PAGE])
async def test_of_many_imports_of_one_file_at_once_one_imports_it_and_the_others_find_it(
    tmp_path: Path, settings: Settings, texts: int
) -> None:
    file = write_export(tmp_path / "talk.jsonl", settings_chosen(), texts=texts)
    stores = [SqliteStore(str(tmp_path / "home")) for _ in range(3)]

    imported = await asyncio.gather(*(import_file(store, file, settings) for store in stores))
    for store in stores:
        await store.close()

    assert sorted(one.text for one in imported) == [
        f"already here as {ID}",
        f"already here as {ID}",
        f"imported as {ID}, {texts + 3} entries",
    ]


async def test_the_draft_of_another_import_is_not_touched(long_file: str, settings: Settings) -> None:
    store = Filling(hangs=True)
    first = asyncio.ensure_future(import_file(store, long_file, settings))
    async with asyncio.timeout(90):
        await store.waiting.wait()
    store.hangs = False
    second = await import_file(store, long_file, settings)
    is_first_at_it = not first.done()
    first.cancel()
    await asyncio.wait({first})

    assert (second.outcome, is_first_at_it) == (Outcome.FAILED, True)
    assert (await store.find(Query())).items == ()


async def test_an_older_state_of_a_conversation_is_left_alone(tmp_path: Path, settings: Settings) -> None:
    store = MemoryStore()
    older = write_export(tmp_path / "older.jsonl", settings_chosen(), texts=1)
    newer = write_export(tmp_path / "newer.jsonl", settings_chosen(), agent_message("more"), texts=1, at=AT + 1)
    await import_file(store, older, settings)
    before = await store.head(ID)

    imported = await import_file(store, newer, settings)

    assert f", because {ID} is the id of another conversation here" in imported.text
    assert await store.head(ID) == before


APPROVAL: Sequence[LogPayload] = (
    model_said(call("call1")),
    model_said(call("call2")),
    *command_approval(1, "rm", "x"),
    approval_settlement(1, "denied"),
    ApprovalSettled(approval_id=approval_id(1), call_id=CallId("call1"), decision="denied", by="client"),
    call_output("call1", "no"),
    *command_approval(2, "rm", "y"),
)


async def test_a_file_that_was_given_another_id_is_known_by_it_the_next_time(
    tmp_path: Path, settings: Settings
) -> None:
    store = MemoryStore()
    files = [
        write_export(tmp_path / f"{one}.jsonl", settings_chosen(), agent_message(one), *APPROVAL) for one in "abc"
    ]
    first = [await import_file(store, file, settings) for file in files]
    count = len((await store.find(Query())).items)

    again = [await import_file(store, file, settings) for file in files]

    assert [one.outcome for one in first] == [Outcome.IMPORTED] * 3
    assert [one.outcome for one in again] == [Outcome.ALREADY_HERE] * 3
    assert count == len((await store.find(Query())).items) == 3


def approvals_in(entries: Sequence[Entry]) -> list[bytes]:
    """Return all approval ids in the entries."""
    return [found for entry in entries for found in ASKED.findall(entry.body)]


async def test_the_approvals_of_a_copy_are_its_own(tmp_path: Path, settings: Settings) -> None:
    store = MemoryStore()
    path = write_export(tmp_path / "asking.jsonl", settings_chosen(), *APPROVAL)
    await import_file(store, path, settings)

    copied = await import_file(store, path, settings, new_id=True)

    copy = ConversationId(copied.text.removeprefix("imported as ")[:36])
    entries = await store.read(copy, after=START)
    theirs, own = approvals_in(await store.read(ID, after=START)), approvals_in(entries)
    folded = Projections()
    folded.replay(entries)
    assert [theirs.index(one) for one in theirs] == [own.index(one) for one in own] == [0, 0, 0, 3]
    assert not set(theirs) & set(own)
    assert folded.state.phase is Phase.ASKING


async def test_an_import_can_be_cancelled_while_a_file_is_read(long_file: str, settings: Settings) -> None:
    store = MemoryStore()
    importing = asyncio.ensure_future(import_file(store, long_file, settings))
    await asyncio.sleep(0)
    importing.cancel()
    await asyncio.wait({importing})

    assert importing.cancelled()
    assert (await store.find(Query())).items == ()


@pytest.mark.parametrize("at", [1e300, -1.0])
async def test_a_time_that_no_calendar_has_is_refused_with_its_line(
    tmp_path: Path, settings: Settings, at: float
) -> None:
    path = write_export(tmp_path / "late.jsonl", settings_chosen(), texts=1, at=at)

    imported = await import_file(MemoryStore(), path, settings)

    assert imported.outcome is Outcome.FAILED
    assert imported.text.startswith("line 2: not an entry: Expected `float` ")


@pytest.mark.parametrize("timestamp", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-01-01"])
async def test_a_session_of_no_calendar_is_refused(tmp_path: Path, settings: Settings, timestamp: str) -> None:
    path = tmp_path / "rollout.jsonl"
    path.write_bytes(b"".join(rollout(user("go"), session={**SESSION, "timestamp": timestamp})))

    imported = await import_file(MemoryStore(), str(path), settings)

    assert imported == Imported(Outcome.FAILED, f"line 1: {timestamp!r} is not a time")


async def test_secrets_in_a_file_are_not_taken_over(tmp_path: Path, settings: Settings) -> None:
    store = MemoryStore()
    provider = {"base_url": "http://localhost:1", "http_headers": {"a": "sesame"}, "bearer_token": "sesame"}
    chosen = settings_chosen(config={"model_providers.p": provider, "notify": ["sesame"], "model": "m"})
    path = write_export(tmp_path / "secret.jsonl", chosen, texts=1)

    await import_file(store, path, settings)

    kept = msgspec.json.decode((await store.read(ID, after=START))[0].body)
    assert kept["asked"]["config"] == {"model_providers.p": {"base_url": "http://localhost:1"}, "model": "m"}
    assert "sesame" not in str(kept)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"cwd": 7}, "Expected `str | null`, got `int` - at `$.cwd`"),
        (
            {"sandbox": "nope"},
            "`sandbox`: unknown variant `nope`, expected one of "
            "`read-only`, `workspace-write`, `danger-full-access`",
        ),
        (
            {"config": {"limits.turn_calls": -1}},
            "config argument: `limits.turn_calls`: invalid value: integer `-1`, "
            "expected an integer from 0 to 9223372036854775807",
        ),
    ],
)
async def test_settings_that_no_call_can_give_are_refused(
    tmp_path: Path, settings: Settings, asked: dict[str, Any], why: str
) -> None:
    chosen = SettingsChosen(model="m", cwd="/project", asked=asked)
    path = write_export(tmp_path / "odd.jsonl", chosen, texts=1)

    imported = await import_file(MemoryStore(), path, settings)

    assert imported == Imported(Outcome.FAILED, f"line 2: invalid settings: {why}")


async def test_a_profile_that_does_not_exist_here_may_be_requested(tmp_path: Path, settings: Settings) -> None:
    path = write_export(tmp_path / "other.jsonl", settings_chosen(profile="elsewhere"), texts=1)

    assert (await import_file(MemoryStore(), path, settings)).outcome is Outcome.IMPORTED

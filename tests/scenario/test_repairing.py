"""`parley doctor --repair`: copies everything that is readable in a damaged home to a new home."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
from asyncio.subprocess import PIPE
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from kit.builders.entries import everything_in
from kit.builders.events import agent_message, task_complete, task_started, user_message
from kit.builders.logs import AT, log_of
from kit.builders.records import command_output, settings_chosen, turn_ended, turn_started
from kit.servers.lock_holders import held_by_flock
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import ToolFailed
from parley.conversation.log import Entry
from parley.ports.store import Query, Summary
from parley.stores.sqlite.store import SqliteStore
from parley.testing import ParleyProcess, ScriptedModel
from parley.wire.events import TaskComplete
from parley.wire.ids import ConversationId

PAGE_BYTES = 4096
CONVERSATIONS = 40
Kept = dict[ConversationId, list[Entry]]


class Outcome(NamedTuple):
    lines: list[str]
    stderr: str
    exit_code: int | None


async def doctor(home: Path, *arguments: str) -> Outcome:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", "doctor", *arguments),
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PARLEY_HOME": str(home)},
        stdout=PIPE,
        stderr=PIPE,
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, err = await process.communicate()
    return Outcome(out.decode().splitlines(), err.decode(), process.returncode)


def named(number: int) -> ConversationId:
    return ConversationId(f"11111111-1111-4111-8111-{number:012}")


async def made(home: Path) -> Kept:
    store = SqliteStore(str(home))
    kept: Kept = {}
    for number in range(CONVERSATIONS):
        begun = (settings_chosen(), turn_started(), task_started(), user_message("go"))
        said = [agent_message(f"Hello {number} {word}") for word in range(20)]
        ended = (command_output("c", random.Random(number).randbytes(9000)), task_complete("Hello"), turn_ended())
        log = log_of(*begun, *said, *ended)
        kept[named(number)] = list(log.entries)
        summary = Summary(title="Talk", cwd="/", model="m", state="idle", updated_at=AT + number)
        await store.create(named(number), log.entries, summary, archived=number % 2 == 1)
    await store.close()
    return kept


async def found_in(home: Path) -> Kept:
    store = SqliteStore(str(home))
    page = (await store.find(Query(archived=None, limit=1000))).items
    found = {one.conversation_id: await everything_in(store, one.conversation_id) for one in page}
    await store.close()
    return found


def damage(home: Path, *pages: int) -> None:
    with (home / "parley.db").open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * PAGE_BYTES)
            file.write(bytes(PAGE_BYTES))


def counted(outcome: Outcome) -> tuple[int, ...]:
    """Return the numbers of complete, partial and lost conversations."""
    words = next(line for line in outcome.lines if line.startswith("conversations: ")).split()
    return int(words[1]), int(words[3]), int(words[5])


def files_in(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}


def roots(home: Path) -> dict[str, int]:
    with closing(sqlite3.connect(home / "parley.db")) as db:
        return dict(db.execute("SELECT name, rootpage FROM sqlite_master"))


@pytest.mark.promises("keeping.repair")
async def test_readable_data_is_in_the_new_home_and_the_old_one_is_not_changed(
    tmp_path: Path, parley_model: ScriptedModel
) -> None:
    home, new = tmp_path / "home", tmp_path / "new"
    kept = await made(home)
    sound = await doctor(home)
    damage(home, (home / "parley.db").stat().st_size // PAGE_BYTES // 2)
    before = files_in(home)

    looked = await doctor(home)
    repaired = await doctor(home, "--repair", str(new))
    again = await doctor(home, "--repair", str(new))
    found = await found_in(new)
    async with ParleyProcess(parley_model, home=new) as parley:
        statuses = [(await parley.client.conversation(name).status()).state for name in found]

    whole, partial, lost = counted(repaired)
    assert not any("damaged" in line for line in sound.lines)
    assert any("the database is damaged (" in line and "--repair" in line for line in looked.lines)
    assert (looked.exit_code, whole + partial + lost) == (1, CONVERSATIONS)
    assert whole > CONVERSATIONS // 2
    assert sum(found.get(name) == entries for name, entries in kept.items()) == whole
    assert (len(found), set(statuses)) == (whole + partial, {"idle"})
    assert files_in(home) == before
    assert again.stderr == f"parley doctor: {new}: is not empty; name a new directory\n"
    assert {path.name for path in new.iterdir() if path.name.startswith(".")} == set()


@pytest.mark.promises("keeping.repair")
async def test_whole_conversations_are_read_around_lost_indexes_and_a_lost_first_page(tmp_path: Path) -> None:
    home = tmp_path / "home"
    kept = await made(home)
    at = roots(home)
    names = ("conversations_by_activity", "sqlite_autoindex_entries_1", "cuts_by_blob", "sqlite_autoindex_blobs_1")
    damage(home, 1, *(at[name] for name in (*names, "epochs", "removed", "sqlite_sequence")))

    repaired = await doctor(home, "--repair", str(tmp_path / "new"))

    assert (repaired.stderr, counted(repaired), repaired.exit_code) == ("", (CONVERSATIONS, 0, 0), 0)
    assert await found_in(tmp_path / "new") == kept


@pytest.mark.long
async def test_of_a_file_that_was_cut_off_the_rest_is_saved(tmp_path: Path) -> None:
    home = tmp_path / "home"
    kept = await made(home)
    size = (home / "parley.db").stat().st_size // PAGE_BYTES
    os.truncate(home / "parley.db", size // 2 * PAGE_BYTES)

    repaired = await doctor(home, "--repair", str(tmp_path / "new"))
    found = await found_in(tmp_path / "new")

    whole, partial, lost = counted(repaired)
    assert whole + partial + lost == CONVERSATIONS
    assert 0 < sum(found.get(name) == entries for name, entries in kept.items()) == whole < CONVERSATIONS


@pytest.mark.promises("keeping.repair")
@pytest.mark.parametrize("is_emptied", [True, False])
async def test_if_the_database_is_lost_its_log_is_saved(tmp_path: Path, is_emptied: bool) -> None:
    store = SqliteStore(str(tmp_path / "running"))
    entries = log_of(settings_chosen(), turn_started(), user_message("go"), turn_ended()).entries
    await store.create(named(1), entries, Summary(title="Talk", cwd="/", model="m", state="idle", updated_at=AT))
    home = tmp_path / "home"
    home.mkdir()
    (home / "parley.db-wal").write_bytes((tmp_path / "running/parley.db-wal").read_bytes())
    await store.close()
    if is_emptied:
        (home / "parley.db").touch()

    repaired = await doctor(home, "--repair", str(tmp_path / "new"))

    assert (repaired.stderr, counted(repaired), repaired.exit_code) == ("", (1, 0, 0), 0)
    assert await found_in(tmp_path / "new") == {named(1): list(entries)}


async def test_a_conversation_without_its_row_gets_a_new_id(tmp_path: Path) -> None:
    home = tmp_path / "home"
    kept = await made(home)
    at = roots(home)
    damage(
        home,
        *(at[name] for name in ("conversations", "conversations_by_activity", "sqlite_autoindex_conversations_1")),
    )

    repaired = await doctor(home, "--repair", str(tmp_path / "new"))
    found = await found_in(tmp_path / "new")

    assert counted(repaired) == (0, CONVERSATIONS, 0)
    assert sorted(map(repr, found.values())) == sorted(map(repr, kept.values()))


@pytest.mark.waits
async def test_a_home_that_another_process_writes_to_is_not_copied(tmp_path: Path) -> None:
    home = tmp_path / "home"
    await made(home)
    with held_by_flock(home) as held:
        repaired = await doctor(home, "--repair", str(tmp_path / "new"))

    assert (repaired.exit_code, f"process {held.holder} (flock" in repaired.stderr) == (1, True)


@pytest.mark.promises("keeping.damaged")
async def test_a_server_continues_with_what_a_damaged_page_does_not_hit(
    tmp_path: Path, parley_model: ScriptedModel
) -> None:
    home = tmp_path / "home"
    kept = await made(home)
    at = roots(home)
    damage(home, at["conversations_by_activity"] + 40, at["cuts"])
    async with ParleyProcess(parley_model, home=home) as parley:
        listed = {one.conversation_id for one in (await parley.client.list(limit=100)).conversations}
        states: dict[str, int] = {}
        sound = None
        for name in kept:
            conversation = parley.client.conversation(name)
            try:
                state: str = (await conversation.status()).state
                sound = conversation
            except ToolFailed as error:
                state = "damaged" if "cannot be read" in str(error) else str(error)
            states[state] = states.get(state, 0) + 1
        assert sound is not None
        parley_model.says("Fine.")
        async with sound.stream(after=(await sound.status()).seq) as stream:
            await sound.send("Go on.")
            events = await stream.turn()

    assert listed == set(list(kept)[::2])  # the other conversations are archived
    assert states.keys() == {"idle", "damaged"}
    assert states["damaged"] < CONVERSATIONS // 2
    assert events[-1] == TaskComplete(last_agent_message="Fine.")


async def test_a_directory_that_other_users_can_change_is_no_new_home(tmp_path: Path) -> None:
    home, target = tmp_path / "home", tmp_path / "target"
    await made(home)
    target.mkdir()
    target.chmod(0o777)

    outcome = await doctor(home, "--repair", str(target))

    assert (outcome.exit_code, outcome.lines, list(target.iterdir())) == (1, [], [])
    assert "can be changed by other users; name a new directory" in outcome.stderr

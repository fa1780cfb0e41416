"""Files of the home are removed or replaced while servers use it: no acknowledged entry is lost."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import sys
from pathlib import Path

import pytest

from kit.builders.entries import FIRST, everything_in
from kit.clients.approving import ApprovingClient
from kit.clients.shared_home import log_of, said
from kit.servers.store_process import Answer, StoreProcess
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.client import ToolFailed
from parley.conversation.export_format import read_head
from parley.errors import BadHome, HomeLost, UnknownConversation
from parley.stores.sqlite.store import SqliteStore
from parley.testing import HOLD, ParleyProcess, RawParley, ScriptedModel
from parley.wire.mcp import FULL_VERSION

DEFECTS = {
    "the log": ("parley.db-wal",),
    "the shared memory": ("parley.db-shm",),
    "both": ("parley.db-wal", "parley.db-shm"),
    "the database": ("parley.db",),
    "all": ("parley.db", "parley.db-wal", "parley.db-shm"),
}


def saved_in(error: str) -> Path | None:
    found = re.search(r"`parley import (.+?)`", error)
    return None if found is None else Path(found[1])


def last_saved(error: str) -> int:
    """Return the last position of the conversation in the saved file."""
    path = saved_in(error)
    if path is None:
        return 0
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == read_head(lines[0]).last + 1
    return read_head(lines[0]).last


async def last_kept(home: Path) -> int:
    store = SqliteStore(str(home))
    try:
        return len(await everything_in(store))
    except (UnknownConversation, BadHome):
        return 0
    finally:
        await store.close()


def acknowledged(child: StoreProcess, number: int) -> int:
    """Wait for `number` acknowledgements, and return the last acknowledged position."""
    last = 0
    for _ in range(number):
        last = child.on_notification()[0]
    return last


def up_to_the_error(child: StoreProcess) -> tuple[int, Answer]:
    """Return the positions that were acknowledged before the error, and the error."""
    last = 0
    while isinstance(answer := child.on_notification(), list):
        last = answer[0]
    return last, answer


@pytest.mark.promises("keeping.removed")
@pytest.mark.parametrize("defect", DEFECTS)
async def test_acknowledged_entries_are_in_the_database_or_in_the_saved_file(tmp_path: Path, defect: str) -> None:
    choose = random.Random(defect)
    with StoreProcess(tmp_path) as child:
        child.ask("create", FIRST)
        child.ask("acquire", FIRST)
        child.tell("append_for_ever", FIRST)
        last = acknowledged(child, choose.randrange(1, 40))
        for name in DEFECTS[defect]:
            (tmp_path / name).unlink()
        more, error = up_to_the_error(child)
    kept = await last_kept(tmp_path)

    assert error["error"] == "HomeLost"
    assert max(kept, last_saved(error["detail"])) >= max(last, more)
    if (path := saved_in(error["detail"])) is not None:
        assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)


async def test_a_log_that_is_replaced_or_emptied_is_noticed_too(tmp_path: Path) -> None:
    for defect in ("replaced", "emptied"):
        home = tmp_path / defect
        with StoreProcess(home) as child:
            child.ask("create", FIRST)
            child.ask("acquire", FIRST)
            child.ask("append", FIRST, 3)
            wal = home / "parley.db-wal"
            if defect == "replaced":
                copy = home / "copy"
                shutil.copy(wal, copy)
                os.replace(copy, wal)
            else:
                os.truncate(wal, 0)
            answer = child.ask("append", FIRST, 3)

        assert answer["error"] == "HomeLost"
        assert "nothing to save" not in str(answer)


async def test_the_last_acknowledged_entries_are_saved_when_the_server_ends(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path))
    lost: list[HomeLost] = []
    store.watch(lost.append)
    with StoreProcess(tmp_path) as child:
        child.ask("create", FIRST)
        child.ask("acquire", FIRST)
        child.ask("append", FIRST, 5)
        await store.head(FIRST)
        child.ask("close")  # other processes use the database, so the child leaves the write-ahead log in place
    (tmp_path / "parley.db-wal").unlink()
    await store.close()
    await until(lambda: bool(lost))

    assert last_saved(lost[0].detail) == 5


@pytest.mark.promises("keeping.removed")
async def test_a_server_that_lost_its_log_says_what_to_import_and_nothing_is_lost(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with ParleyProcess(parley_model, home=home) as parley:
        conversation = await parley.create()
        async with conversation.stream() as stream:
            for number in range(3):
                parley_model.says(f"answer {number}")
                await conversation.send(f"message {number}")
                await stream.turn()
            before = await log_of(conversation)
            (home / "parley.db-wal").unlink()
            with pytest.raises(ToolFailed) as failed:
                await conversation.send("never")
        with pytest.raises(ToolFailed, match="was removed or replaced"):
            await conversation.status()
        with pytest.raises(ToolFailed, match="was removed or replaced"):
            await parley.client.list()
    place = saved_in(str(failed.value))
    assert place is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        importing = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "parley", "import", str(place), env=os.environ | {"PARLEY_HOME": str(home)}
        )
        code = await importing.wait()
    async with ParleyProcess(parley_model, home=home) as parley:
        again = await log_of(parley.client.conversation(conversation.id))

    assert (code, again) == (0, before)
    assert said(again) == ["message 0", "message 1", "message 2"]


@pytest.mark.promises("keeping.removed")
async def test_when_the_home_disappears_turns_end_streams_report_it_and_nothing_runs(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    raw = RawParley(parley_model, home=home)
    async with asyncio.timeout(TIMEOUT_SECONDS), raw:
        client = ApprovingClient(raw, {})
        await client.initialize(FULL_VERSION)
        other = await client.create()
        parley_model.says("Half ", HOLD, "a sentence")
        calling = client.codex("Go.")
        await parley_model.wait_until_held()
        listed = await client.value_after(client.call("conversationsList"))
        conversation = next(
            one["conversation_id"] for one in listed["conversations"] if one["conversation_id"] != other
        )
        for one in (conversation, other):
            await client.open_stream(one)
        shutil.rmtree(home)
        disconnects = [
            message["params"]
            for _ in range(2)
            for message in await client.until_method("notifications/stream_disconnected")
            if message["method"] == "notifications/stream_disconnected"
        ]
        await parley_model.wait_abandoned()
        answer = (await client.until_answer(calling))[-1]["result"]
        status = await client.value_after(client.call("conversationStatus", conversation_id=conversation))

    assert {one["_meta"]["conversationId"] for one in disconnects} == {conversation, other}
    assert all("removed or replaced while Parley had the database open" in one["reason"] for one in disconnects)
    assert (answer["isError"], "removed or replaced" in answer["error"]) == (True, True)
    assert (status["status"], "removed or replaced" in status["message"]) == ("error", True)
    saved = saved_in(status["message"])
    assert saved is not None
    assert saved.is_relative_to(home)  # the file is hidden from commands
    assert (home.stat().st_mode & 0o777, saved.exists()) == (0o700, True)


async def test_nothing_is_saved_where_commands_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.stores.sqlite.emergency_export.ELSEWHERE", str(tmp_path))
    home = tmp_path / "deep" / "home"
    home.mkdir(parents=True)
    store = SqliteStore(str(home))
    lost: list[HomeLost] = []
    store.watch(lost.append)
    with StoreProcess(home) as child:
        child.ask("create", FIRST)
        child.ask("acquire", FIRST)
        child.ask("append", FIRST, 5)
        await store.head(FIRST)
        child.ask("close")
    shutil.rmtree(home.parent)
    home.parent.write_text("no directory can be made here")
    await store.close()
    await until(lambda: bool(lost))

    saved = saved_in(lost[0].detail)
    assert saved is not None
    assert (saved.parent.parent, saved.parent.stat().st_mode & 0o777) == (tmp_path, 0o700)

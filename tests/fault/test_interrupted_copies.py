"""Forks and imports that are interrupted: complete or not at all, and partial data is removed."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from kit.builders.entries import FIRST, summary
from kit.builders.events import agent_message
from kit.builders.logs import AT, log_of
from kit.builders.records import settings_chosen
from kit.clients.wire_client import speaking
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.conversation.export_format import ExportHead, entry_line, head_line
from parley.conversation.log import Entry
from parley.runtime.bulk_create import bulk_create, pages_of
from parley.stores.sqlite.store import SqliteStore
from parley.testing import ParleyProcess, ScriptedModel
from parley.wire.ids import Seq

LENGTH: Final = 40_001


@cache
def long() -> Sequence[Entry]:
    """Return the given number of entries."""
    return log_of(settings_chosen(), *(agent_message(f"{number}") for number in range(LENGTH - 1))).entries


def entries_in(home: Path) -> int:
    with closing(sqlite3.connect(home / "parley.db")) as db:
        try:
            count: int = db.execute("SELECT count(*) FROM entries").fetchone()[0]
        except sqlite3.OperationalError:
            return 0  # the database has no tables yet
        return count


async def until_begun(home: Path, *, before: int) -> None:
    await until(lambda: (home / "parley.db").exists() and entries_in(home) != before)


async def parley(home: Path, *arguments: str) -> str:
    process = await start(home, *arguments)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def start(home: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", *arguments),
        env={"PATH": os.environ["PATH"], "PARLEY_HOME": str(home)},
        stdin=DEVNULL,
        stdout=PIPE,
    )


@pytest.mark.parametrize("how", ["kill", "end of input"])
async def test_a_fork_that_is_cut_is_whole_or_not_there(
    parley_model: ScriptedModel, tmp_path: Path, how: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    store = SqliteStore(str(home))
    await bulk_create(store, FIRST, pages_of(long()), summary())
    await store.close()
    async with speaking(parley_model, home=home) as client:
        client.call("conversationFork", conversation_id=FIRST)
        await until_begun(home, before=LENGTH)
        if how == "kill":
            client.raw.kill()
        else:
            client.raw.close_stdin()
        await client.raw.exit_code()

    async with ParleyProcess(parley_model, home=home) as server:
        listed = [one.conversation_id for one in (await server.client.list()).conversations]
        lengths = [(await server.client.conversation(one).status()).seq for one in listed]
    await parley(home, "gc", "--yes")

    assert lengths == [LENGTH] * len(listed)
    assert entries_in(home) == LENGTH * len(listed)


async def test_an_import_that_is_killed_leaves_nothing_and_can_be_done_again(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home, file = tmp_path / "home", tmp_path / "long.jsonl"
    home.mkdir()
    head = ExportHead(
        conversation_id=FIRST, last=Seq(LENGTH), exported_at=AT, archived=False, title="", cwd="", model=""
    )
    file.write_bytes(b"".join((head_line(head), *map(entry_line, long()))))
    importing = await start(home, "import", str(file))
    await until_begun(home, before=0)
    importing.kill()
    await importing.communicate()

    async with ParleyProcess(parley_model, home=home) as server:
        listed = (await server.client.list()).conversations
    again = await parley(home, "import", str(file))
    await parley(home, "gc", "--yes")

    assert listed == ()
    assert again == f"{file}: imported as {FIRST}, {LENGTH} entries\n"
    assert entries_in(home) == LENGTH

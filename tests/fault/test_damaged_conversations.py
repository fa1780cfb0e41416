"""The stored data of a conversation is damaged: it is reported, can be deleted, and affects no other
conversation."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from kit.builders.events import agent_message, task_started, user_message
from kit.builders.logs import AT, log_of
from kit.builders.records import command_output, settings_chosen, turn_ended, turn_started
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.files.gc import DAY_SECONDS, find_unneeded, remove_unneeded
from parley.client import ToolFailed
from parley.ports.store import Query, StateName, Summary
from parley.stores.sqlite.store import SqliteStore
from parley.testing import ParleyProcess, ScriptedModel
from parley.wire.ids import ConversationId

pytestmark = pytest.mark.usefixtures("servers_in_process")

DAMAGE: Final = {
    "a record": "UPDATE entries SET body = x'7b' WHERE row = ? AND type = 'turn_started'",
    "an event": "UPDATE entries SET body = x'7b22' WHERE row = ? AND type = 'task_started'",
    "a letter": """
        UPDATE entries SET body = CAST('{"message":"' || x'ff227d' AS BLOB)
        WHERE row = ? AND type = 'agent_message'
    """,
    "an output": "UPDATE entries SET body = x'7b' WHERE row = ? AND type = 'command_output'",
    "a blob": "UPDATE blobs SET data = x'00' WHERE hash IN (SELECT hash FROM cuts WHERE row = ?)",
    "a lost blob": "DELETE FROM blobs WHERE hash IN (SELECT hash FROM cuts WHERE row = ?)",
    "a hole": "DELETE FROM entries WHERE row = ? AND seq = 3",
    "letters of a type": "UPDATE entries SET type = CAST(x'ff41' AS TEXT) WHERE row = ? AND type = 'task_started'",
    "a number": "UPDATE entries SET body = 12 WHERE row = ? AND type = 'agent_message'",
    "a text": "UPDATE entries SET body = CAST(x'ff41' AS TEXT) WHERE row = ? AND type = 'agent_message'",
    "a time": "UPDATE entries SET at = 'noon' WHERE row = ? AND type = 'agent_message'",
    "an end": "UPDATE conversations SET last = 'late' WHERE row = ?",
    "no end": "DELETE FROM entries WHERE row = ? AND seq = (SELECT max(seq) FROM entries)",
}
STATES: Final[tuple[StateName, ...]] = ("idle", "running", "asking")
LOST_END: Final = [*DAMAGE].index("an end") + 1
SOUND: Final = ConversationId("99999999-9999-4999-8999-999999999999")


def named(number: int) -> ConversationId:
    return ConversationId(f"11111111-1111-4111-8111-{number:012}")


async def damaged_home(home: Path) -> list[ConversationId]:
    """Create one conversation for each kind of damage, in different states, and an intact one."""
    store = SqliteStore(str(home))
    kinds = [*DAMAGE, None]
    for number, _ in enumerate(kinds, start=1):
        turn = (turn_started(), task_started(), user_message("go"))
        output = command_output("c", number.to_bytes() * 9000)
        log = log_of(settings_chosen(), *turn, output, agent_message("Hello"), turn_ended())
        name = SOUND if number == len(kinds) else named(number)
        state = "idle" if name == SOUND else STATES[number % len(STATES)]
        summary = Summary(title="", cwd="/", model="m", state=state, updated_at=AT)
        await store.create(name, log.entries, summary)
    await store.close()
    with closing(sqlite3.connect(home / "parley.db")) as db, db:
        for row, damage in enumerate(DAMAGE.values(), start=1):
            assert db.execute(damage, (row,)).rowcount == 1
    return [named(number) for number in range(1, len(kinds))]


@pytest.mark.promises("keeping.damaged")
async def test_they_say_so_and_can_be_deleted_and_lists_do_without_them(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    damaged = await damaged_home(tmp_path / "home")
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        ParleyProcess(parley_model, home=tmp_path / "home") as parley,
    ):
        listed = {one.conversation_id for one in (await parley.client.list(text="hello")).conversations}
        listed |= {one.conversation_id for one in (await parley.client.list()).conversations}
        approvals = await parley.client.approvals()
        for name in damaged:
            conversation = parley.client.conversation(name)
            for call in (conversation.read(), conversation.status(), conversation.send("go")):
                with pytest.raises(ToolFailed, match=f"conversation {name} cannot be read: "):
                    await call
            await conversation.delete()
        left = [one.conversation_id for one in (await parley.client.list()).conversations]
        sound = await parley.client.conversation(SOUND).status()
        warnings = [line for line in parley.stderr_text().splitlines() if "left out" in line]

    assert (listed, approvals) == ({*damaged, SOUND}, ())
    assert (left, sound.state) == ([SOUND], "idle")
    assert len(warnings) == sum(STATES[number % len(STATES)] != "idle" for number in range(1, len(damaged) + 1))


SHOWN: Final = {
    "a title": "UPDATE conversations SET title = CAST(x'ff41' AS TEXT) WHERE id = ?",
    "no text": "UPDATE conversations SET title = x'ff41' WHERE id = ?",
    "a directory": "UPDATE conversations SET cwd = CAST(x'ff41' AS TEXT) WHERE id = ?",
    "a state": "UPDATE conversations SET state = 'dancing' WHERE id = ?",
}


@pytest.mark.promises("keeping.damaged")
async def test_a_list_shows_what_it_can(parley_model: ScriptedModel, tmp_path: Path) -> None:
    home = tmp_path / "home"
    store = SqliteStore(str(home))
    names = [named(number) for number, _ in enumerate(SHOWN)]
    for name in (*names, SOUND):
        summary = Summary(title="go", cwd="/", model="m", state="idle", updated_at=AT)
        await store.create(name, log_of(settings_chosen(), user_message("go")).entries, summary)
    await store.close()
    with closing(sqlite3.connect(home / "parley.db")) as db, db:
        for name, damage in zip(names, SHOWN.values(), strict=True):
            assert db.execute(damage, (name,)).rowcount == 1
    async with asyncio.timeout(TIMEOUT_SECONDS), ParleyProcess(parley_model, home=home) as parley:
        listed = (await parley.client.list()).conversations
        found = (await parley.client.list(text="go")).conversations
        there = (await parley.client.list(cwd="/")).conversations
        states = [(await parley.client.conversation(name).status()).state for name in names]
        for name in names:
            await parley.client.conversation(name).delete()
        left = [one.conversation_id for one in (await parley.client.list()).conversations]

    assert {one.conversation_id for one in listed} == {one.conversation_id for one in found} == {*names, SOUND}
    assert {one.title for one in listed} == {"\ufffdA", "go"}
    assert {one.conversation_id for one in there} == {*names, SOUND} - {names[2]}
    assert (states, left) == (["idle"] * len(names), [SOUND])


async def test_a_damaged_conversation_is_removed_with_the_other_unneeded_ones(tmp_path: Path) -> None:
    damaged = await damaged_home(tmp_path)
    store = SqliteStore(str(tmp_path))
    for name in (*damaged, SOUND):
        await store.archive(name, archived=True)
    unneeded = await find_unneeded(store, keep_days=1, now=AT + 2 * DAY_SECONDS)
    await store.archive(damaged[0], archived=False)
    await store.archive(named(LOST_END), archived=False)
    removed = await remove_unneeded(store, unneeded)
    left = [one.conversation_id for one in (await store.find(Query(archived=None))).items]
    await store.close()

    assert (len(unneeded.conversations), removed.conversations) == (len(damaged) + 1, len(damaged) - 1)
    assert sorted(left) == [damaged[0], named(LOST_END)]

"""Servers and commands whose conversations are in a PostgreSQL database (`parley.app.stores`), and migrations
(`parley.cli.migrate`, `parley.stores.postgres.migration`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kit.builders.entries import FIRST, OTHER, answers, everything_in, said, summary
from kit.servers.command_line import Outcome, run_parley
from kit.servers.database_port import DatabasePort
from kit.servers.postgres import NEEDS_POSTGRES, PASSWORD, Databases
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.files.migrating import migrate_home
from parley.client import events
from parley.client.errors import ToolFailed
from parley.errors import BadHome
from parley.ports.store import PAGE, Checkpoint, Query, StoredToken, Viewer
from parley.stores.postgres.store import PostgresStore
from parley.stores.sqlite.store import SqliteStore
from parley.testing import HOLD, ParleyProcess
from parley.wire.ids import Seq

pytestmark = NEEDS_POSTGRES

TOKEN = StoredToken(name="phone", digest=b"p" * 32, role="observer", created_at=2.0, used_at=3.0)


async def parley(home: Path, *arguments: str, url: str | None = None) -> Outcome:
    """Run a command of Parley, and check that it does not print the password."""
    done = await run_parley(home, *arguments, variables={} if url is None else {"PARLEY_STORE_URL": url})
    assert PASSWORD not in done.stdout + done.stderr
    return done


async def test_a_server_keeps_its_conversations_in_the_database(
    parley_process: Callable[..., Awaitable[ParleyProcess]], databases: Databases
) -> None:
    server = await parley_process(env={"PARLEY_STORE_URL": databases.url()})
    server.model.says("an answer of the model")
    conversation = await server.create()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        turn = await conversation.send("a question")
        assert (await turn.result()).text == "an answer of the model"
    store = PostgresStore(databases.url())
    (listed,) = (await store.find(Query(text="of the model"))).items

    assert listed.conversation_id == conversation.id
    assert listed.summary.state == "idle"
    await store.close()


async def test_servers_with_different_homes_share_the_conversations_of_a_database(
    parley_process: Callable[..., Awaitable[ParleyProcess]], databases: Databases
) -> None:
    first, other = [await parley_process(env={"PARLEY_STORE_URL": databases.url()}) for _ in range(2)]
    for server, text in ((first, "one"), (other, "two"), (first, "three")):
        server.model.says(text)
    conversation = await first.create()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert (await (await conversation.send("1")).result()).text == "one"
        here = other.client.conversation(conversation.id)
        async with here.stream() as stream:
            assert (await (await here.send("2")).result()).text == "two"
            assert (await (await conversation.send("3")).result()).text == "three"
            async for event in stream:
                if isinstance(event, events.AgentMessage) and event.message == "three":
                    break


@pytest.mark.promises("nodes.not-linked")
async def test_without_nodes_the_other_home_can_read_a_running_turn_and_is_told_what_to_do(
    parley_process: Callable[..., Awaitable[ParleyProcess]],
    databases: Databases,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("runtime.conversation", "runtime.mailbox", "server.toolcall"):
        monkeypatch.setattr(f"parley.{module}.CALL_SECONDS", 0.5)
    first, other = [await parley_process(env={"PARLEY_STORE_URL": databases.url()}) for _ in range(2)]
    first.model.says("Let me ", HOLD, "think.")
    other.model.says("From the other home")
    conversation = await first.create()
    there = other.client.conversation(conversation.id)
    failures: list[tuple[str | None, str]] = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        turn = await conversation.send("1")
        await first.model.wait_until_held()
        page = await there.read()
        for call in (there.send("2"), there.interrupt()):
            with pytest.raises(ToolFailed) as failed:
                await call
            failures.append((failed.value.code, str(failed.value)))
        first.model.release()
        result = await turn.result()
        after = await (await there.send("3")).result()

    assert any(isinstance(event.msg, events.UserMessage) for event in page.events)
    assert [code for code, _ in failures] == ["owner_not_linked"] * 2
    assert all("uses another home" in text and "PARLEY_NODE_TOKEN" in text for _, text in failures)
    assert (result.text, after.text) == ("Let me think.", "From the other home")


async def test_commands_say_what_to_use_instead(tmp_path: Path, databases: Databases) -> None:
    url = databases.url()
    commands = (("backup", str(tmp_path / "x.db")), ("doctor", "--repair", str(tmp_path / "new")))
    for command, instead in zip(commands, ("use pg_dump", "pg_dump"), strict=True):
        done = await parley(tmp_path, *command, url=url)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "the conversations are in a PostgreSQL database (`store.url`); " in done.stderr
        assert instead in done.stderr
        assert done.stderr.count("\n") == 1


async def test_gc_removes_archived_conversations_from_the_database(tmp_path: Path, databases: Databases) -> None:
    store = PostgresStore(databases.url())
    await store.create(FIRST, answers(1, 2), summary(updated_at=1.0), archived=True)
    await store.create(OTHER, answers(1, 2), summary(updated_at=1.0))
    days = ("-c", "store.keep_days=30")
    would = await parley(tmp_path, "gc", "--dry-run", *days, url=databases.url())
    done = await parley(tmp_path, "gc", *days, url=databases.url())

    assert (would.stderr, would.exit_code) == ("", 0)
    assert would.stdout.startswith("archived conversations, last active more than 30 days ago: 1, ")
    assert would.stdout.endswith("\nentries of deleted conversations: 0 bytes\n")
    assert done.stdout == f"{would.stdout}removed conversations: 1\nremoved images and outputs: 0, 0 bytes\n"
    assert [one.conversation_id for one in (await store.find(Query(archived=None))).items] == [OTHER]
    assert not (tmp_path / "parley.db").exists()
    await store.close()


async def test_doctor_checks_the_database(tmp_path: Path, databases: Databases) -> None:
    parts = urlsplit(databases.url())
    location = f"PostgreSQL at {parts.hostname}:{parts.port}{parts.path}"
    works = await parley(tmp_path, "doctor", url=databases.url())
    fails = await parley(tmp_path, "doctor", url=databases.url() + "_missing")

    assert f"database    {location}: ok\ndatabase    the server is PostgreSQL " in works.stdout
    assert "database    the connection is not encrypted\n" in works.stdout
    assert "database    unsafe: fsync is off, " in works.stdout
    missing = f'database    {location}_missing: database "{parts.path[1:]}_missing" does not exist\n'
    assert missing in fails.stdout
    assert fails.exit_code == 1


async def test_export_and_token_use_the_database(tmp_path: Path, databases: Databases) -> None:
    store = PostgresStore(databases.url())
    await store.create(FIRST, answers(1, 2), summary())
    exported = await parley(tmp_path, "export", FIRST, url=databases.url())
    created = await parley(tmp_path, "token", "create", "phone", "--role", "observer", url=databases.url())

    assert (exported.exit_code, created.exit_code) == (0, 0), exported.stderr + created.stderr
    assert "answer 2" in exported.stdout
    assert [one.name for one in await store.tokens()] == ["phone"]
    assert not (tmp_path / "parley.db").exists()
    await store.close()


async def fill(home: Path) -> None:
    """Store two conversations, a token and read marks in a home."""
    store = SqliteStore(str(home))
    await store.create(FIRST, answers(1, PAGE), summary("First"))
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, answers(PAGE + 1, PAGE + 3), summary("First", updated_at=7.5))
    await store.save_checkpoint(lease, Checkpoint(seq=Seq(PAGE), data=b"checkpoint"))
    await store.mark_read(FIRST, "alice", Seq(PAGE + 2))
    await store.create(OTHER, [said(1, "data:image/png;base64," + "iVBO" * 3000)], summary("Other"), archived=True)
    await store.add_token(TOKEN)
    await store.close()


async def test_a_home_is_copied_completely(tmp_path: Path, databases: Databases) -> None:
    home, url = tmp_path / "home", databases.new_url()
    home.mkdir()
    await fill(home)
    done = await parley(home, "migrate", "--to", url)
    again = await parley(home, "migrate", "--to", url)
    as_json = await parley(home, "migrate", "--to", databases.new_url(), "--json")

    assert (done.exit_code, done.stdout) == (0, "conversations: 2, copied now: 2; tokens: 1\n"), done.stderr
    assert json.loads(as_json.stdout) == {"type": "migrate", "conversations": 2, "copied": 2, "tokens": 1}
    assert again.exit_code == 1
    assert "has all conversations of this home already" in again.stderr
    old, new = SqliteStore(str(home)), PostgresStore(url)
    for one in (FIRST, OTHER):
        assert await everything_in(new, one) == await everything_in(old, one)
        assert (await new.head(one)).summary == (await old.head(one)).summary
        assert (await new.head(one)).archived == (await old.head(one)).archived
        assert await new.checkpoint(one) == await old.checkpoint(one)
    query = Query(archived=None, viewer=Viewer(identity="alice"))
    assert await new.find(query) == await old.find(query)
    assert await new.tokens() == [TOKEN]
    lease = await new.acquire(FIRST, address="")
    assert lease.epoch > (await old.head(FIRST)).epoch
    await old.close()
    await new.close()


async def test_the_variable_names_the_database_of_a_migration(tmp_path: Path, databases: Databases) -> None:
    await fill(tmp_path)
    done = await parley(tmp_path, "migrate", url=databases.new_url())

    assert done == ("conversations: 2, copied now: 2; tokens: 1\n", "", 0)


async def test_a_migration_that_was_interrupted_is_continued(tmp_path: Path, databases: Databases) -> None:
    url = databases.new_url()
    await fill(tmp_path)
    async with DatabasePort(url) as port:
        with pytest.MonkeyPatch.context() as patch:

            def cut(done: int, total: int) -> None:
                if done == 1:
                    patch.setattr("parley.stores.postgres.database.CALL_SECONDS", 0.3)
                    port.refuses = True
                    port.cut()

            with pytest.raises(Exception, match="cannot be reached"):
                await migrate_home(str(tmp_path), port.url, report=cut)
    migrated = await migrate_home(str(tmp_path), url)

    assert migrated == (2, 1, 1)
    store = PostgresStore(url)
    assert len((await store.find(Query(archived=None))).items) == 2
    await store.close()


async def test_a_home_that_changes_during_its_migration_is_refused(tmp_path: Path, databases: Databases) -> None:
    await fill(tmp_path)

    async def change() -> None:
        store = SqliteStore(str(tmp_path))
        lease = await store.acquire(OTHER, address="")
        await store.append(lease, [said(2, "more")], summary())
        await store.close()

    def report(done: int, total: int) -> None:
        if done == 1:  # the other conversation was copied
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lambda: asyncio.run(change())).result()

    with pytest.raises(BadHome, match="was changed during the migration"):
        await migrate_home(str(tmp_path), databases.new_url(), report=report)


async def test_neither_a_used_database_nor_a_used_home_is_migrated(
    tmp_path: Path, databases: Databases, parley_process: Callable[..., Awaitable[ParleyProcess]]
) -> None:
    await fill(tmp_path)
    store = PostgresStore(databases.url())
    await store.create(OTHER, [], summary())
    with pytest.raises(BadHome, match="is not empty; migrate to a new database"):
        await migrate_home(str(tmp_path), databases.url())
    await store.close()

    server = await parley_process()
    server.model.says("an answer")
    conversation = await server.create()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await (await conversation.send("a question")).result()
    with pytest.raises(BadHome, match="a server is running"):
        await migrate_home(str(server.home), databases.url("other"))

"""Two adjacent versions of Parley that share a database: nodes with different versions of the link, and servers
that know different formats of the database (`parley.wire.nodes`, `parley.stores.postgres.schema`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from kit.builders.entries import FIRST, everything_in, said, summary
from kit.clients.shared_home import events_until, is_, log_of
from kit.servers.in_process_resident import InProcessResident
from kit.servers.node_process import NODE_TOKEN
from kit.servers.postgres import NEEDS_POSTGRES, Databases, with_connection
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.http_choice import HttpChoice
from parley.client import Client, connect
from parley.client.errors import ToolFailed
from parley.ports.nodes import Node
from parley.stores.postgres.driver import Connection
from parley.stores.postgres.schema import MIGRATIONS, Migration
from parley.stores.postgres.store import PostgresStore
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import AgentMessageDelta, TaskComplete
from parley.wire.nodes import FIRST_VERSION, NODE_VERSIONS

pytestmark = NEEDS_POSTGRES

TOKEN: Final = "t" * 32
OLDER: Final = (FIRST_VERSION,)


async def start(
    stack: AsyncExitStack, model: ScriptedModel, directory: Path, url: str, *, older: bool, workspace: str
) -> Client:
    """Start a node in this process, and return a client."""
    name = "older" if older else "newer"
    config = f'[node]\nid = "{name}"\n[workspace]\n{workspace}\n'
    env = {"PARLEY_STORE_URL": url, "PARLEY_NODE_TOKEN": NODE_TOKEN}
    versions = OLDER if older else NODE_VERSIONS
    http = HttpChoice(token=TOKEN)
    node = InProcessResident(
        model, directory / name / "home", config=config, env=env, http=http, node_versions=versions
    )
    await stack.enter_async_context(node)
    options: dict[str, Any] = {"url": node.resident.description["url"], "token": TOKEN}
    return await stack.enter_async_context(connect(**options))


@pytest_asyncio.fixture(params=["newer", "older"])
async def clients(
    request: pytest.FixtureRequest, parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> AsyncIterator[tuple[Client, Client]]:
    """Yield clients of two nodes of different versions, in both orders."""
    async with asyncio.timeout(TIMEOUT_SECONDS), AsyncExitStack() as stack:
        pair = [
            await start(stack, parley_model, tmp_path, databases.url(), older=older, workspace='mode = "shared"')
            for older in (request.param == "older", request.param != "older")
        ]
        yield pair[0], pair[1]


@pytest.mark.promises("nodes.versions")
async def test_a_client_streams_sends_and_interrupts_over_a_link_of_the_older_version(
    clients: tuple[Client, Client], parley_model: ScriptedModel, tmp_path: Path
) -> None:
    one, two = clients
    parley_model.says("Let me ", HOLD, "think.")
    parley_model.says("Joined")
    parley_model.says("On the other node")
    here = await one.create(cwd=tmp_path, model=MODEL)
    there = two.conversation(here.id)
    async with there.stream() as stream:
        await here.send("go")
        await parley_model.wait_until_held()
        seen = await events_until(stream, is_(AgentMessageDelta))
        await there.send("and this")
        parley_model.release()
        await events_until(stream, is_(TaskComplete))
    result = await (await there.send("go on")).result()
    pages = await log_of(here), await log_of(there)

    assert isinstance(seen[-1], AgentMessageDelta)
    assert seen[-1].delta == "Let me "
    assert result.text == "On the other node"
    assert pages[0] == pages[1]
    assert isinstance(pages[0][-1], TaskComplete)


@pytest.mark.promises("nodes.versions")
async def test_a_node_of_the_older_version_begins_only_its_own_turns(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    """Only the older node announces the directory, so no node can run the turn of a client of the newer node."""
    directory = tmp_path / "of-older"
    directory.mkdir()
    parley_model.says("Here")
    async with asyncio.timeout(TIMEOUT_SECONDS), AsyncExitStack() as stack:
        roots = {"newer": tmp_path / "newer", "older": directory}
        newer, older = [
            await start(
                stack,
                parley_model,
                tmp_path,
                databases.url(),
                older=name == "older",
                workspace=f'roots = ["{roots[name]}"]',
            )
            for name in ("newer", "older")
        ]
        conversation = await older.create(cwd=directory, model=MODEL)
        with pytest.raises(ToolFailed) as refused:
            await newer.conversation(conversation.id).send("go")
        result = await (await conversation.send("go")).result()

    assert refused.value.code == "no_node_for_directory"
    assert result.text == "Here"


# --- the database -----------------------------------------------------------------------------


async def additive(db: Connection) -> None:
    """Add what a later version could add."""
    await db.execute(
        """
        ALTER TABLE parley.conversations ADD COLUMN colour text NOT NULL DEFAULT 'blue';
        ALTER TABLE parley.holders ADD COLUMN colour text NOT NULL DEFAULT 'blue';
        ALTER TABLE parley.nodes ADD COLUMN colour text NOT NULL DEFAULT 'blue';
        ALTER TABLE parley.entries ADD COLUMN colour text;
        CREATE TABLE parley.colours (name text PRIMARY KEY);
        """
    )


NODE: Final = Node(id="older", url="http://127.0.0.1:1", version="1")


@pytest.mark.promises("nodes.versions")
async def test_a_newer_server_migrates_the_database_while_an_older_one_is_running(databases: Databases) -> None:
    url = databases.new_url()
    newer_migrations: list[Migration] = [*MIGRATIONS, additive]
    older = PostgresStore(url)
    await older.create(FIRST, [], summary())
    lease = await older.acquire(FIRST, address="")
    appended, goes_on = 0, True

    async def keep_appending() -> None:
        nonlocal appended
        while goes_on:
            await older.append(lease, [said(appended + 1, f"{appended + 1}")], summary())
            appended += 1

    async with asyncio.timeout(TIMEOUT_SECONDS):
        appending = asyncio.ensure_future(keep_appending())
        while appended < 20:  # noqa: ASYNC110 - the statements are prepared now
            await asyncio.sleep(0.01)
        newer = PostgresStore(url, migrations=newer_migrations)
        await newer.tokens()
        migrated = appended
        await older.join(NODE)
        while appended < migrated + 20:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        goes_on = False
        await appending
        await older.release(lease)
        second = await newer.acquire(FIRST, address="")
        await newer.append(second, [said(appended + 1, "newer")], summary())
        await newer.release(second)
        another = PostgresStore(url)  # an older server that starts after the migration
        third = await another.acquire(FIRST, address="")
        await another.append(third, [said(appended + 2, "older")], summary())
        log = await everything_in(newer)
        nodes = await newer.nodes()
        for store in (another, older, newer):
            await store.close()

    assert len(log) == appended + 2
    assert nodes == [NODE]
    number = await with_connection(url, lambda db: db.fetchval("SELECT version FROM parley.format"))
    assert number == len(newer_migrations)

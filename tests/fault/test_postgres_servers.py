"""PostgreSQL servers with TLS, and servers whose disk is full."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from kit.builders.entries import FIRST, everything_in, said, summary
from kit.clients.shared_home import log_of
from kit.servers.node_process import NodeProcess
from kit.servers.postgres import NEEDS_POSTGRES, PostgresServer, with_connection
from kit.system.certificates import make_certificate
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.app.stores import inspect_postgres
from parley.client import Client, Conversation
from parley.client.errors import ToolFailed
from parley.errors import StoreFailed
from parley.stores.postgres.store import PostgresStore
from parley.testing import ScriptedModel
from parley.testing.home import MODEL

pytestmark = [NEEDS_POSTGRES, pytest.mark.waits]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """The files of a server that is not running."""
    with tempfile.TemporaryDirectory(prefix="parley-postgres-") as directory:
        os.chmod(directory, 0o755)  # the server may run as another user
        server = PostgresServer(Path(directory, "server"), fsync=True)
        server.create()
        yield server
        server.remove()


async def test_a_server_with_a_certificate_of_another_authority_is_refused(
    server: PostgresServer, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    cert, key = await make_certificate(tmp_path)
    other, _ = await make_certificate(tmp_path / "other")
    for path in (cert, key):
        copy = server.directory / path.name
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o600)
        server.own(copy)
    server.options |= {
        "ssl": "on",
        "ssl_cert_file": str(server.directory / cert.name),
        "ssl_key_file": str(server.directory / key.name),
    }
    server.start()
    url = server.url.replace("127.0.0.1", "localhost") + "?sslmode=verify-full&sslrootcert="
    accepted = await inspect_postgres(url + quote(str(cert)))
    refused = await inspect_postgres(url + quote(str(other)))
    wrong_name = await inspect_postgres(url.replace("localhost", "127.0.0.1") + quote(str(cert)))

    location = f"PostgreSQL at localhost:{server.port}/postgres"
    assert accepted[0]
    assert accepted[1][0] == f"{location}: ok"
    assert "the connection is encrypted with TLSv1.3" in accepted[1]
    assert refused == (
        False,
        [f"{location}: the certificate of the server is not accepted: self-signed certificate"],
    )
    assert not wrong_name[0]
    assert "is not accepted: IP address mismatch" in wrong_name[1][0]


@pytest.fixture
def small_disk(server: PostgresServer) -> Iterator[Path]:
    """A small file system that the server may write to."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    disk = server.directory / "disk"
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=48m", "none", disk)
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"needs a mount: {mounted.stderr.strip()}")
    try:
        server.own(disk)
        yield disk
    finally:
        server.stop()
        subprocess.run(("umount", "-l", disk), check=True)


async def test_a_full_disk_fails_appends_and_appends_succeed_when_there_is_space(
    server: PostgresServer, small_disk: Path
) -> None:
    server.start()
    store = PostgresStore(server.url)
    await store.create(FIRST, [], summary())

    await with_connection(server.url, lambda db: move_entries(db, small_disk))
    lease = await store.acquire(FIRST, address="")
    await store.append(lease, [said(1, "one")], summary())
    filler = small_disk / "filler"
    filler.touch()
    await asyncio.get_running_loop().run_in_executor(None, fill, filler)
    large = os.urandom(50_000).hex()  # PostgreSQL cannot compress it much
    with pytest.raises(StoreFailed, match="No space left on device"):
        await store.append(lease, [said(seq, f"{seq} {large}") for seq in range(2, 50)], summary())
    assert await everything_in(store) == [said(1, "one")]
    filler.unlink()
    await store.append(lease, [said(2, "two")], summary())

    assert await everything_in(store) == [said(1, "one"), said(2, "two")]
    assert (await store.head(FIRST)).last == 2
    await store.close()


@pytest.mark.long
@pytest.mark.child_process
@pytest.mark.promises("outages.full-disk")
async def test_clients_of_a_node_get_an_error_while_the_disk_of_the_primary_is_full(
    server: PostgresServer, small_disk: Path, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    server.start()
    large = os.urandom(50_000).hex()
    parley_model.says("One")
    parley_model.says("Two")
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        NodeProcess(parley_model, tmp_path, "a", server.url) as node,
        node.client() as client,
    ):
        conversation = await client.create(cwd=tmp_path, model=MODEL)
        await (await conversation.send("first")).result()
        await with_connection(server.url, lambda db: move_entries(db, small_disk))
        filler = small_disk / "filler"
        await asyncio.to_thread(fill, filler)
        with pytest.raises(ToolFailed) as refused:
            await send_repeatedly(conversation, large)
        before = await log_of(conversation)
        await asyncio.to_thread(filler.unlink)
        result = await (await conversation.send("second")).result()
        log = await log_of(conversation)

    assert refused.value.code == "store_failed"
    assert "No space left on device" in str(refused.value)
    assert result.text == "Two"
    assert log[: len(before)] == before
    assert "Traceback" not in node.stderr_text()


@pytest.mark.long
@pytest.mark.child_process
@pytest.mark.promises("outages.full-disk")
async def test_nodes_continue_after_a_primary_whose_log_had_no_space_was_started_again(
    server: PostgresServer, small_disk: Path, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    """PostgreSQL stops if it cannot write its write-ahead log. A person makes room and starts it again."""
    move_log(server, small_disk)
    server.start()
    parley_model.says("One")
    parley_model.says("Two")
    async with (
        asyncio.timeout(2 * TIMEOUT_SECONDS),
        NodeProcess(parley_model, tmp_path, "a", server.url) as node,
        NodeProcess(parley_model, tmp_path, "b", server.url) as other,
        node.client() as client,
        other.client() as elsewhere,
    ):
        conversation = await client.create(cwd=tmp_path, model=MODEL)
        await (await conversation.send("first")).result()
        acknowledged: list[str] = []
        filler = small_disk / "filler"
        await asyncio.to_thread(fill, filler)
        with pytest.raises(ToolFailed) as refused:
            await create_repeatedly(client, tmp_path, acknowledged)
        await until(server.has_ended)
        filler.unlink()
        await asyncio.to_thread(server.start)
        await until_ready(node, other)
        result = await (await elsewhere.conversation(conversation.id).send("second")).result()
        stored = [await client.conversation(one).read() for one in acknowledged]

    assert refused.value.code in ("store_failed", "outcome_unknown")
    assert acknowledged
    assert len(stored) == len(acknowledged)
    assert result.text == "Two"
    assert "No space left on device" in (server.directory / "log").read_text()
    assert "Traceback" not in node.stderr_text() + other.stderr_text()


async def create_repeatedly(client: Client, cwd: Path, acknowledged: list[str]) -> None:
    """Create conversations with long instructions until a call fails. `acknowledged` gets their ids."""
    while True:
        created = await client.create(cwd=cwd, model=MODEL, base_instructions=os.urandom(50_000).hex())
        acknowledged.append(created.id)


async def until_ready(*nodes: NodeProcess) -> None:
    """Wait until the nodes can reach their database."""
    async with aiohttp.ClientSession() as session:
        for node in nodes:
            url = node.description["url"].removesuffix("/mcp") + "/readyz"
            while True:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.05)


async def send_repeatedly(conversation: Conversation, text: str) -> None:
    for _ in range(20):
        await conversation.send(text)


async def move_entries(db: Any, directory: Path) -> None:
    """Move the entries to a tablespace in a directory."""
    await db.execute(f"CREATE TABLESPACE small LOCATION '{directory}'")
    for (partition,) in await db.fetch(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'parley.entries'::regclass"
    ):
        await db.execute(f"ALTER TABLE {partition} SET TABLESPACE small")


def move_log(server: PostgresServer, directory: Path) -> None:
    """Move the write-ahead log of a server that is not running to a directory."""
    log = Path(shutil.move(server.data / "pg_wal", directory / "pg_wal"))
    for path in (log, *log.rglob("*")):
        server.own(path)
    (server.data / "pg_wal").symlink_to(log)


def fill(path: Path) -> None:
    """Write to a file until its file system is full."""
    with path.open("wb", buffering=0) as filler:
        for size in (65536, 4096):
            try:
                while True:
                    filler.write(b"x" * size)
            except OSError:
                continue

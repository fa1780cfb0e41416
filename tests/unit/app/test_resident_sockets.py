"""The sockets of a resident server: a removed file, silent connections, and too many connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.app import resident
from parley.app.resident import Resident
from parley.app.resident_sockets import ResidentSockets
from parley.common.resident_socket import NoResident, connect, open_socket
from parley.config.types import NodeSettings, ServeSettings


def can_connect(home: Path) -> bool:
    try:
        connect(str(home)).close()
    except NoResident:
        return False
    return True


@asynccontextmanager
async def sockets(
    home: Path, path: str | None = None, *, on_bound_again: Callable[[], None] = lambda: None
) -> AsyncIterator[ResidentSockets]:
    opened = ResidentSockets(
        str(home),
        path,
        on_channel=lambda channel: channel.close(),
        on_bound_again=on_bound_again,
        check_seconds=0.01,
    )
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.promises("resident.socket")
async def test_a_removed_socket_is_bound_again(tmp_path: Path) -> None:
    again: list[str] = []
    async with sockets(tmp_path, on_bound_again=lambda: again.append("described")):
        (tmp_path / "serve.sock").unlink()
        assert not can_connect(tmp_path)
        await until(lambda: can_connect(tmp_path))
        mode = stat.S_IMODE(os.stat(tmp_path / "serve.sock").st_mode)

    assert (again, mode) == (["described"], 0o600)
    assert not (tmp_path / "serve.sock").exists()


async def test_a_socket_that_another_server_has_taken_is_left_to_it(tmp_path: Path) -> None:
    second, again = tmp_path / "second.sock", asyncio.Event()
    async with sockets(tmp_path, str(second), on_bound_again=again.set):
        (tmp_path / "serve.sock").unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(tmp_path / "serve.sock"))
            other.listen()
            taken = os.stat(tmp_path / "serve.sock").st_ino
            second.unlink()  # the server checks both sockets, and binds only this one again
            await again.wait()

    assert os.stat(tmp_path / "serve.sock").st_ino == taken


@pytest.mark.promises("resident.socket")
async def test_a_second_socket_is_beside_the_one_in_the_home(tmp_path: Path) -> None:
    path = str(tmp_path / "elsewhere.sock")
    async with sockets(tmp_path, path) as opened:
        assert opened.path == path
        assert can_connect(tmp_path)
        open_socket(path, timeout_seconds=TIMEOUT_SECONDS).close()


@pytest.mark.promises("resident.socket")
async def test_a_socket_that_cannot_be_bound_leaves_none(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        ResidentSockets(str(tmp_path), "/nowhere/s", on_channel=lambda channel: None)

    assert os.listdir(tmp_path) == []


# --- connections without a first line ------------------------------------------------------


def server(home: Path, *, most: int = 1024, seconds: float = 3600) -> Resident:
    settings = ServeSettings(max_connections=most)
    loader = SimpleNamespace(serve_settings=lambda: settings, node_settings=NodeSettings, store_url=lambda: None)
    stub: Any = SimpleNamespace(conversations=SimpleNamespace(running=[]), loader=loader)
    made = Resident(stub, str(home), first_line_seconds=seconds)
    made.listen()
    return made


async def silent(home: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(home / "serve.sock")


@pytest.mark.promises("resident.socket")
async def test_a_connection_without_a_first_line_is_closed(tmp_path: Path) -> None:
    serving = server(tmp_path, seconds=0.01)
    reader, writer = await silent(tmp_path)
    writer.write(b'{"parley": "sta')

    assert await reader.read() == b""
    writer.close()
    serving.stop_listening()


@pytest.mark.promises("resident.socket")
async def test_many_silent_connections_do_not_keep_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "MAX_SILENT", 3)
    serving = server(tmp_path)
    connections = [await silent(tmp_path) for _ in range(4)]

    assert await connections[0][0].read() == b""
    for _, writer in connections:
        writer.close()
    serving.stop_listening()


@pytest.mark.promises("resident.socket")
async def test_beyond_the_limit_a_connection_is_refused_with_a_reason(tmp_path: Path) -> None:
    serving = server(tmp_path, most=8)
    connections = [await silent(tmp_path) for _ in range(9)]
    answer = json.loads(await connections[-1][0].read())

    assert answer == {"ok": False, "reason": "it has too many connections"}
    for _, writer in connections:
        writer.close()
    serving.stop_listening()

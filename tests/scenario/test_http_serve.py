"""`parley serve` with HTTP: what it prints, what it stores, and which server has it."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kit.clients.http_client import HttpClient
from kit.clients.requests import ping, pong
from kit.servers.resident_process import ResidentProcess, outcome_of, parley, start_parley
from kit.system.commands import PATIENCE_SECONDS
from parley.testing import ScriptedModel

pytestmark = pytest.mark.child_process


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest_asyncio.fixture
async def resident(parley_model: ScriptedModel, home: Path) -> AsyncIterator[ResidentProcess]:
    async with ResidentProcess(parley_model, home, env={"PARLEY_LOG": "debug"}) as server:
        yield server


def content_of(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


@pytest.mark.promises("http.discovery")
async def test_the_token_is_printed_once_and_nowhere_else(resident: ResidentProcess, home: Path) -> None:
    told = resident.description
    async with HttpClient(told["url"], token=told["token"]) as client:
        await client.initialize()
        answered = (await client.post(ping(1))).json
        status = await parley("serve", "--status", "--json", env=resident.environ)
        second = await parley("serve", "--json", env=resident.environ)
        await client.send("DELETE")
    stored = content_of(home)

    assert answered == pong(1)
    assert set(told) == {"url", "token", "socket", "pid", "version"}
    assert json.loads((home / "serve.json").read_text())["url"] == told["url"] == json.loads(status[1])["url"]
    assert json.loads(status[1])["clients"] == 1
    assert stat.S_IMODE((home / "serve.json").stat().st_mode) == 0o600
    assert (second[0], json.loads(second[1])["url"]) == (4, told["url"])
    for text in (stored, resident.stderr_text().encode(), *(part.encode() for part in (*status[1:], *second[1:]))):
        assert told["token"].encode() not in text


@pytest.mark.promises("http.discovery")
async def test_a_token_from_the_environment_is_accepted_and_removed(
    parley_model: ScriptedModel, home: Path
) -> None:
    token = "a-token-of-more-than-thirty-two-characters"
    config = '[shell_environment_policy]\ninherit = "all"\nignore_default_excludes = true\n'
    async with (
        ResidentProcess(parley_model, home, config=config, env={"PARLEY_SERVE_TOKEN": token}) as resident,
        HttpClient(resident.description["url"], token=token) as client,
    ):
        await client.initialize()
        conversation = await client.create()
        parley_model.says("Done.")
        await client.say(conversation, "go")

        assert resident.description["token"] != token
        assert token not in resident.stderr_text()


@pytest.mark.promises("http.discovery")
async def test_a_server_in_the_background_and_one_without_http_have_no_address(
    parley_model: ScriptedModel, home: Path
) -> None:
    for options in (("--no-http",), ("--exit-when-idle",)):
        async with ResidentProcess(parley_model, home, arguments=options) as resident:
            assert (resident.description["url"], resident.description["token"]) == (None, None)
    async with ResidentProcess(
        parley_model, home, config='[serve]\nhttp = "on"\n', arguments=("--exit-when-idle",)
    ) as resident:
        assert resident.description["url"] is not None


@pytest.mark.promises("http.discovery")
async def test_a_server_without_a_token_does_not_listen_on_http_and_says_so(
    parley_model: ScriptedModel, home: Path
) -> None:
    async with ResidentProcess(parley_model, home, arguments=("--no-http",)) as resident:
        env = {**resident.environ, "PARLEY_HOME": str(home.with_name("other"))}
        (home.with_name("other")).mkdir()
        process = await start_parley("serve", env=env)
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            serving = (await process.stdout.readline()).decode()
        stopped = await parley("serve", "--stop", env=env)
        _, _, errors = await outcome_of(process)

    assert "http" not in serving
    assert "serve.sock" in serving
    assert stopped[0] == 0
    said = [line for line in errors.splitlines() if "HTTP" in line]
    assert said == ["parley serve: not listening on HTTP: there is no token; use --json, or set PARLEY_SERVE_TOKEN"]


@pytest.mark.promises("http.exposure")
async def test_an_address_that_cannot_be_used_ends_the_server(parley_model: ScriptedModel, home: Path) -> None:
    async with ResidentProcess(parley_model, home, arguments=("--no-http",)) as resident:
        other = home.with_name("other")
        other.mkdir()
        env = {**resident.environ, "PARLEY_HOME": str(other)}
        exposed = await parley("serve", "--json", "--host", "0.0.0.0", env=env)
        wrong = await parley("serve", "--port", "70000", env=env)

    assert (exposed[0], exposed[1]) == (2, "")
    assert "is not loopback" in exposed[2]
    assert wrong[0] == 2
    assert not (other / "serve.json").exists()

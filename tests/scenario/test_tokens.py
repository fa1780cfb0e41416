"""`parley token` (`parley.cli.token`, `parley.app.http_urls`), and the effect of new and revoked tokens on a
running server.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kit.clients.http_client import HttpClient
from kit.clients.page_client import PageClient
from kit.clients.requests import ping, pong
from kit.servers.command_line import run_parley
from kit.servers.resident_process import ResidentProcess, content_of, parley
from kit.system.commands import TIMEOUT_SECONDS

pytestmark = pytest.mark.child_process


async def created(resident: ResidentProcess, *arguments: str) -> dict[str, Any]:
    code, out, errors = await parley("token", "create", *arguments, "--json", env=resident.environ)
    assert code == 0, errors
    record: dict[str, Any] = json.loads(out)
    return record


@pytest.mark.promises("roles.tokens")
async def test_a_new_token_works_at_once_and_is_stored_as_a_hash(resident: ResidentProcess, home: Path) -> None:
    code, out, _ = await parley("token", "create", "phone", "--role", "driver", env=resident.environ)
    parley_server = json.loads(out)["mcpServers"]["parley"]
    token = parley_server["headers"]["Authorization"].removeprefix("Bearer ")
    async with HttpClient(parley_server["url"], token=token) as client:
        begun = await client.initialize()
        answered = (await client.post(ping(2))).json
        listed = await parley("token", "ls", env=resident.environ)
    content = content_of(home)

    assert (code, begun.status, answered) == (0, 200, pong(2))
    assert parley_server["type"] == "http"
    assert listed[1].split()[:2] == ["phone", "driver"]
    for text in (content, resident.stderr_text().encode(), listed[1].encode()):
        assert token.encode() not in text


@pytest.mark.promises("roles.tokens")
async def test_a_revoked_token_ends_its_sessions_and_streams_at_once(resident: ResidentProcess) -> None:
    gone = await created(resident, "gone", "--role", "approver", "--expires", "7d")
    kept = await created(resident, "kept", "--role", "approver")
    async with (
        HttpClient(gone["url"], token=gone["token"]) as client,
        HttpClient(kept["url"], token=kept["token"]) as other,
    ):
        await client.initialize()
        await other.initialize()
        async with client.stream() as events:
            revoked = await parley("token", "revoke", "gone", "--json", env=resident.environ)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                rest = await events.rest()
        refused = await client.post(ping(2))
        begin = await client.post(ping(3), Mcp_Session_Id=None)
        going_on = await other.post(ping(4))

    assert json.loads(revoked[1]) == {"type": "token_revoked", "name": "gone"}
    assert (rest, refused.status, begin.status) == ([], 401, 401)
    assert going_on.json == pong(4)


@pytest.mark.promises("roles.tokens")
async def test_mistakes_on_the_command_line(resident: ResidentProcess) -> None:
    await created(resident, "phone", "--role", "observer")
    found = [
        await parley("token", *arguments, env=resident.environ)
        for arguments in (
            (),
            ("create", "tablet"),
            ("create", "tablet", "--role", "owner"),
            ("create", "tablet", "--role", "driver", "--expires", "soon"),
            ("create", "-", "--role", "driver"),
            ("create", "local", "--role", "driver"),
            ("create", "phone", "--role", "driver"),
            ("create", "tablet", "--role", "driver", "--conversation", "00000000"),
            ("revoke", "tablet"),
        )
    ]

    assert [code for code, _, _ in found] == [2, 2, 2, 2, 2, 2, 2, 1, 1]
    assert [out for _, out, _ in found] == [""] * len(found)
    assert "already" in found[6][2]
    assert "no conversation has an id that begins with '00000000'" in found[7][2]
    assert (await parley("token", "ls", env=resident.environ))[1].count("\n") == 1


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8080/mcp"),
        ("", "http://127.0.0.1:8080/mcp"),
        ("::", "http://[::1]:8080/mcp"),
        ("fd00::1", "http://[fd00::1]:8080/mcp"),
        ("example.com", "http://example.com:8080/mcp"),
    ],
)
async def test_the_url_without_a_running_server_is_one_that_clients_can_use(
    tmp_path: Path, host: str, url: str
) -> None:
    (tmp_path / "config.toml").write_text(f'[serve]\nhost = "{host}"\nport = 8080\n')
    done = await run_parley(tmp_path, "token", "create", "phone", "--role", "driver", "--json")

    assert json.loads(done.stdout)["url"] == url


async def test_a_token_for_one_conversation_is_named_by_a_prefix(resident: ResidentProcess) -> None:
    description = resident.description
    async with HttpClient(description["url"], token=description["token"]) as client:
        await client.initialize()
        conversation = await client.create()
    bound = await created(resident, "guest", "--role", "observer", "--conversation", conversation[:8])

    assert bound["conversation_id"] == conversation
    assert conversation in (await parley("token", "ls", env=resident.environ))[1]


@pytest.mark.promises("page.revoke")
async def test_all_browsers_that_signed_in_with_a_code_can_be_signed_out(resident: ResidentProcess) -> None:
    url, env = resident.description["url"], resident.environ
    before = await parley("token", "ls", env=env)
    record = await created(resident, "phone", "--role", "driver")
    async with PageClient(url) as browser, PageClient(url) as other, PageClient(url) as guest:
        await browser.sign_in(code=resident.description["page"].partition("#code=")[2])
        page = (await parley("serve", "--sign-in", env=env))[1].strip()
        await other.sign_in(code=page.partition("#code=")[2])
        await guest.sign_in(token=record["token"])
        await browser.initialize()
        listed, as_json = await parley("token", "ls", env=env), await parley("token", "ls", "--json", env=env)
        async with browser.stream() as stream:
            revoked = await parley("token", "revoke", "page", env=env)
            await stream.rest()
        statuses = [(await one.fetch("/sign-in")).status for one in (browser, other, guest)]
    after = await parley("token", "ls", env=env)

    assert "page" not in before[1]
    assert (
        listed[1]
        .splitlines()[-1]
        .startswith("page                  admin     2 browsers signed in with a code, used ")
    )
    row = json.loads(as_json[1].splitlines()[-1])
    assert (row["type"], row["name"], row["count"]) == ("sign_ins", "page", 2)
    assert (revoked[0], statuses) == (0, [401, 401, 200])
    assert "page" not in after[1]

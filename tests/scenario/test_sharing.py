"""`parley share` (`parley.cli.share`), and what people who open a link can see."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from kit.clients.http_client import HttpClient
from kit.clients.page_client import PageClient
from kit.clients.requests import tool
from kit.servers.resident_process import ResidentProcess, content_of, parley
from parley.server.tools import TOOLS
from parley.testing import ScriptedModel

pytestmark = pytest.mark.child_process

WRITING: dict[str, dict[str, object]] = {
    "codex": {"prompt": "go"},
    "conversationCreate": {"cwd": "/tmp"},
    "conversationSendMessage": {"content": [{"type": "text", "text": "go"}]},
    "conversationInterrupt": {},
    "conversationContinue": {},
    "conversationCompact": {},
    "conversationRename": {"title": "mine"},
    "conversationArchive": {},
    "conversationDelete": {},
    "conversationFork": {},
    "queueResume": {},
}


@pytest.mark.promises("share.link")
async def test_a_link_shows_one_conversation_until_it_is_revoked(resident: ResidentProcess, home: Path) -> None:
    description = resident.description
    async with HttpClient(description["url"], token=description["token"]) as admin:
        await admin.initialize()
        shown, hidden = await admin.create(), await admin.create()
    code, link, notes = await parley("share", shown[:13], env=resident.environ)
    address, _, token = link.strip().partition("#token=")
    async with PageClient(description["url"]) as browser:
        signed_in = await browser.sign_in(token=token)
        await browser.initialize()
        listed = await browser.call("conversationsList")
        status = await browser.call("conversationStatus", conversation_id=shown)
        other = await browser.post(tool(1, "conversationStatus", {"conversation_id": hidden}))
        writes = {
            name: await browser.post(tool(2, name, {"conversation_id": shown, **arguments}))
            for name, arguments in WRITING.items()
        }
        rows = (await parley("token", "ls", env=resident.environ))[1]
        name = rows.split()[0]
        revoked = await parley("token", "revoke", name, env=resident.environ)
        after = await browser.fetch("/sign-in")

    assert (code, address) == (0, description["url"].removesuffix("mcp"))
    assert "the port" not in link
    assert "port changes" in notes
    assert f"`parley token revoke {name}`" in notes
    assert "valid until 20" in notes
    assert "works on this computer only" in notes
    assert (signed_in.json["role"], signed_in.json["conversation_id"]) == ("observer", shown)
    assert [one["conversation_id"] for one in listed["conversations"]] == [shown]
    assert status["state"] == "idle"
    assert "does not exist" in other.json["result"]["content"][0]["text"]
    assert set(WRITING) <= {one.name for one in TOOLS}
    for name_of_tool, reply in writes.items():
        assert reply.json["result"]["isError"], name_of_tool
    assert name.startswith(f"share-{shown[:8]}-")
    assert f"only {shown}" in rows
    assert (revoked[0], after.status) == (0, 401)
    assert token.encode() not in content_of(home)


@pytest.mark.promises("share.link")
async def test_a_link_is_valid_for_seven_days_or_the_given_time(resident: ResidentProcess) -> None:
    description = resident.description
    async with HttpClient(description["url"], token=description["token"]) as admin:
        await admin.initialize()
        conversation = await admin.create()
    shares = [
        json.loads((await parley("share", conversation, *options, "--json", env=resident.environ))[1])
        for options in ((), ("--expires", "12h"))
    ]
    unknown = await parley("share", "ffffffff", env=resident.environ)
    wrong = await parley("share", conversation, "--expires", "soon", env=resident.environ)

    assert [round(one["expires_at"] - one["created_at"]) for one in shares] == [7 * 86_400, 12 * 3600]
    assert all(abs(one["created_at"] - time.time()) < 3600 for one in shares)
    assert len({one["name"] for one in shares}) == 2
    assert (unknown[0], wrong[0]) == (1, 2)


@pytest.mark.promises("share.link")
async def test_without_an_address_there_is_no_link_and_no_token(parley_model: ScriptedModel, home: Path) -> None:
    async with ResidentProcess(parley_model, home, arguments=("--no-http",)) as resident:
        code, out, errors = await parley("share", "ffffffff", env=resident.environ)
        tokens = await parley("token", "ls", env=resident.environ)

    assert (code, out) == (1, "")
    assert "start `parley serve`" in errors
    assert tokens[1] == ""

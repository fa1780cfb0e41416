"""Patches with many files or lines are shown in parts, and can be approved after all parts have been shown."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, open_page
from kit.servers.http_server import HttpServer
from parley.testing import Call, ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

FILES = 45
LINES = 40


def patch(*changes: str) -> Call:
    return Call("apply_patch", {"input": "\n".join(["*** Begin Patch", *changes, "*** End Patch"])})


async def test_a_patch_with_many_files_is_approved_after_all_files_were_shown(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    lines = ["+x = 1"] * LINES
    model.says(patch(*(line for number in range(FILES) for line in (f"*** Add File: f{number}.py", *lines))))
    model.says("written")
    client = await server.client(capabilities={"elicitation": {}})
    conversation = await client.create(cwd=str(server.work))
    await client.say(conversation, "go")
    async with open_page(browser, server, **DESKTOP) as user:
        card = user.page.locator(".waiting-card")
        await expect(card.get_by_role("button", name="Deny", exact=True)).to_be_enabled()
        await expect(card.get_by_role("button", name="Approve", exact=True)).to_be_disabled()
        await user.open(conversation)
        request = user.transcript.locator(".call.patch")
        await expect(request.get_by_role("button", name="Deny", exact=True)).to_be_enabled()
        assert await request.locator("tr.add").count() == 400
        await expect(request.get_by_text("Show all of it before you approve it.")).to_be_visible()
        await expect(request.get_by_role("button", name="Approve", exact=True)).to_be_disabled()
        assert not (server.work / "f0.py").exists()

        await request.get_by_role("button", name=f"Show more files ({FILES - 10} left)").click()
        await expect(request.locator("tr.add")).to_have_count(FILES * LINES)
        await expect(request.get_by_text("Show all of it before you approve it.")).to_be_hidden()
        await request.get_by_role("button", name="Approve", exact=True).click()
        await user.sees("written")

    assert (server.work / f"f{FILES - 1}.py").exists()


async def test_a_long_file_is_approved_after_all_its_lines_were_shown(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(patch("*** Add File: short.py", "+x = 1", "*** Add File: long.py", *["+y = 2"] * 500))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        request = user.transcript.locator(".call.patch")
        approve = request.get_by_role("button", name="Approve", exact=True)
        await expect(request.get_by_role("button", name="Deny", exact=True)).to_be_enabled()
        await expect(approve).to_be_disabled()
        await request.locator("summary", has_text="long.py").last.click()
        await expect(request.locator("tr.add")).to_have_count(401)
        await expect(approve).to_be_disabled()
        await request.get_by_role("button", name="Show 100 more lines").click()
        await expect(request.locator("tr.add")).to_have_count(501)
        await expect(approve).to_be_enabled()


async def test_words_are_compared_only_in_a_part_of_a_large_patch(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    old, new = "a;" * 140 + "b", "a;" * 140 + "c"
    (server.work / "a.py").write_text(f"{old}\n" * 190)
    model.says(patch("*** Update File: a.py", "@@", *[f"-{old}"] * 190, *[f"+{new}"] * 190))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        request = user.transcript.locator(".call.patch")
        await expect(request.locator("tr.add")).to_have_count(190)
        assert 0 < await request.locator("tr.add mark").count() < 60
        await expect(request.get_by_role("button", name="Approve", exact=True)).to_be_enabled()

"""The first minutes with the page: the dialog of a new conversation, and keys while the focus changes."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, open_page
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from parley.testing import ScriptedModel

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_first_message_is_sent_and_the_next_keys_write_a_message(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(sh("call", "touch made"))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.page.keyboard.press("n")
        await expect(user.page.get_by_role("textbox", name="First message (optional)")).to_be_focused()
        await user.page.keyboard.type("go on")
        await user.page.keyboard.press("Enter")
        await user.sees("go on")
        await expect(user.message).to_be_focused()
        await user.sees_state("Waiting for you")
        await expect(user.transcript.locator("[data-key=a]")).to_be_enabled()
        await user.page.keyboard.type("a nada")
        await expect(user.message).to_have_value("a nada")
        await expect(user.page.get_by_role("dialog")).to_have_count(0)
        await user.sees_state("Waiting for you")

    assert not (server.work / "made").exists()


@pytest.mark.long
async def test_start_moves_the_focus_into_the_message(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await expect(user.message).to_be_focused()
        await user.page.keyboard.type("no shortcuts")
        await expect(user.message).to_have_value("no shortcuts")
        await expect(user.transcript.locator(".turn")).to_have_count(0)
        assert model.requests == []


@pytest.mark.long
async def test_a_key_opens_one_dialog_and_further_keys_wait_for_it(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(sh("call", "touch made"))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await expect(user.transcript.locator("[data-key=a]")).to_be_enabled()
        await user.message.press("Escape")
        await user.page.evaluate(
            "key => key.split('').forEach((one) =>"
            " document.body.dispatchEvent(new KeyboardEvent('keydown', { key: one, bubbles: true })))",
            "nna",
        )
        await expect(user.page.get_by_role("dialog")).to_have_count(1)
        await user.page.keyboard.type("a")
        await user.sees_state("Waiting for you")

    assert not (server.work / "made").exists()


@pytest.mark.long
async def test_a_key_shows_an_approval_that_is_not_in_view_and_does_not_answer_it(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says("\n\n".join(f"paragraph {number}" for number in range(200)))
    model.says(sh("call", "touch made"))
    model.says("finished")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("tell a long story")
        await user.sees_state("Done")
        await user.send("go")
        approve = user.transcript.locator("[data-key=a]")
        await expect(approve).to_be_enabled()
        await user.message.press("Escape")
        await user.page.locator(".scroller").evaluate("scroller => { scroller.scrollTop = 0 }")
        await expect(approve).not_to_be_in_viewport()
        await user.page.keyboard.press("a")
        await expect(approve).to_be_in_viewport(ratio=1)
        await user.sees_state("Waiting for you")
        assert not (server.work / "made").exists()
        await user.page.keyboard.press("a")
        await user.sees("finished")

    assert (server.work / "made").exists()

"""Texts that are being written while the page changes: they stay, and their letters never answer an approval."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, PageUser, open_page
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from parley.testing import HOLD, Call, ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

ASKED_SECONDS = 0.6
"""The time after which the buttons of a new approval request can be pressed."""


def adding(name: str, call_id: str) -> Call:
    return Call("apply_patch", {"input": f"*** Begin Patch\n*** Add File: {name}\n+x = 1\n*** End Patch"}, call_id)


async def type_slowly(user: PageUser, text: str) -> None:
    for character in text:
        await user.page.keyboard.type(character)
        await asyncio.sleep(0.1)


async def test_letters_meant_for_a_reason_do_not_answer_the_next_request(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(sh("first", "touch first"))
    model.says(sh("second", "touch second"))
    model.says("finished")
    client = await server.client(capabilities={})
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        await user.button("Deny with a reason…").click()
        await type_slowly(user, "no, take")
        [waiting] = (await client.call("attentionList"))["conversations"]
        await client.call("approvalAnswer", approval_id=waiting["approval"]["approval_id"], decision="approved")
        await type_slowly(user, " that path, take that path, and aaa")
        await expect(user.transcript.locator(".call[data-state=asking]")).to_contain_text("touch second")
        await user.sees_state("Waiting for you")
        assert not (server.work / "second").exists()

        await asyncio.sleep(2)  # the person has stopped typing
        await user.page.keyboard.press("a")
        await user.sees("finished")

    assert (server.work / "second").exists()


async def test_a_comment_keeps_its_text_and_focus_while_the_changes_change(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(adding("one.py", "one"))
    model.says(HOLD, adding("two.py", "two"))
    model.says("finished")
    client = await server.client(capabilities={"elicitation": {}})
    conversation = await client.create(cwd=str(server.work), approval_policy="never")
    async with open_page(browser, server, **DESKTOP) as user:
        await client.say(conversation, "go")
        await user.open(conversation)
        await user.sees("one.py")
        await user.page.get_by_role("tab", name="Changes").click()
        row = user.page.locator(".changes tr.add").first
        await row.hover()
        await row.get_by_role("button").click()
        comment = user.page.get_by_role("textbox", name="Comment")
        await comment.press_sequentially("first part, ")
        model.release()
        await user.sees_state("Done")
        await expect(comment).to_be_focused()
        await user.page.keyboard.type("second part")
        await expect(comment).to_have_value("first part, second part")
        await user.button("Add comment").click()
        await expect(user.page.locator(".changes")).to_contain_text("two.py")
        await expect(user.page.locator(".changes tr.comment")).to_contain_text("first part, second part")


async def test_a_queued_message_keeps_its_text_and_focus_while_the_queue_changes(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client(capabilities={})
    async with open_page(browser, server, **DESKTOP) as user:
        conversation = await user.start_conversation()
        model.says("working ", HOLD, "on it")
        await user.send("start")
        await user.sees("working")
        await user.message.fill("queued")
        await user.button("Queue").click()
        await user.button("Edit the queued message").click()
        field = user.page.get_by_role("textbox", name="Queued message")
        await field.press("End")
        await user.page.keyboard.type(" and")
        await client.call(
            "conversationSendMessage",
            conversation_id=conversation,
            content=[{"type": "text", "text": "another"}],
            delivery="queue",
        )
        await expect(user.page.locator(".queue li")).to_have_count(2)
        await expect(field).to_be_focused()
        await user.page.keyboard.type(" changed")
        await expect(field).to_have_value("queued and changed")
        await field.press("Enter")
        await expect(field).to_have_count(0)
        await expect(user.page.locator(".queue li").first).to_contain_text("queued and changed")
        model.says("second")
        model.says("third")
        model.release()
        await user.sees("third")


async def test_a_reason_in_the_list_keeps_its_text_and_focus_while_others_begin_to_wait(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    model.says(sh("first", "touch first"))
    first = await client.create()
    await client.say(first, "first")
    async with open_page(browser, server, **DESKTOP) as user:
        card = user.page.locator(".waiting-card", has_text="touch first")
        await card.get_by_role("button", name="Deny with a reason…").click()
        await user.page.keyboard.type("no, ")
        model.says(sh("second", "touch second"))
        await client.say(await client.create(), "second")
        await expect(user.page.locator(".waiting-card")).to_have_count(2)
        await client.call("conversationRename", conversation_id=first, title="A new title")
        await asyncio.sleep(ASKED_SECONDS)
        await user.page.keyboard.type("a, d")
        reason = card.get_by_role("textbox", name="Reason for the agent")
        await expect(reason).to_be_focused()
        await expect(reason).to_have_value("no, a, d")

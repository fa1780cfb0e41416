"""Requests of a hostile model: they are seen completely before an approval, and a click answers one request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, PHONE, open_page
from kit.clients.shell_turns import sh, shell
from kit.servers.http_server import HttpServer
from parley.testing import Call, ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

HINT = "Show all of it before you approve it."

# Clicks at a position as soon as one request is left. Returns the key of the button at this position.
SECOND_CLICK = """([x, y]) => new Promise(resolve => {
    const click = () => {
        if (document.querySelectorAll(".waiting-card").length !== 1) return requestAnimationFrame(click)
        const button = document.elementFromPoint(x, y).closest("button")
        button.click()
        resolve(button.dataset.key)
    }
    click()
})"""

# Presses the key `a` as soon as one request is left.
SECOND_KEY = """() => new Promise(resolve => {
    const press = () => {
        if (document.querySelectorAll(".waiting-card").length !== 1) return requestAnimationFrame(press)
        resolve(document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "a", bubbles: true })))
    }
    press()
})"""

IS_DISABLED_AFTER_CLICK = """more => {
    const card = more.closest(".call")
    more.click()
    return new Promise(resolve => requestAnimationFrame(() =>
        setTimeout(() => resolve(card.querySelector("[data-key=a]").disabled))))
}"""


def patch(*lines: str) -> Call:
    return Call("apply_patch", {"input": "\n".join(["*** Begin Patch", *lines, "*** End Patch"])})


async def test_a_double_click_answers_one_request_of_the_list(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    for name in ("one", "two"):
        model.says(sh("call", f"touch {name}"))
        await client.say(await client.create(cwd=str(server.work)), "go")
    async with open_page(browser, server, **DESKTOP) as user:
        cards = user.page.locator(".waiting-card")
        await expect(cards).to_have_count(2)
        await expect(cards.locator("[data-key=a]:enabled")).to_have_count(2)
        place = await cards.first.locator("[data-key=a]").bounding_box()
        assert place is not None
        x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
        await user.page.mouse.click(x, y)
        assert await user.page.evaluate(SECOND_CLICK, [x, y]) == "a"  # the button of the other request
        await expect(cards.locator("[data-key=a]")).to_be_enabled()
        assert len(list(server.work.iterdir())) == 1


async def test_a_key_that_is_pressed_twice_answers_one_request(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client(capabilities={"elicitation": {}})
    conversations = []
    for name in ("one", "two"):
        model.says(sh("call", f"touch {name}"))
        conversations.append(await client.create(cwd=str(server.work)))
        await client.say(conversations[-1], "go")
    async with open_page(browser, server, **DESKTOP) as user:
        await user.open(conversations[0])
        await expect(user.transcript.locator("[data-key=a]")).to_be_enabled()
        card = user.page.locator(".waiting-card:not(.current)")
        await expect(card.locator("[data-key=a]")).to_be_enabled()
        await card.locator("a").focus()
        pressed_again = asyncio.ensure_future(user.page.evaluate(SECOND_KEY))
        await user.page.keyboard.press("a")
        await pressed_again
        await expect(card).to_have_count(0)
        await expect(user.transcript.locator("[data-key=a]")).to_be_enabled()
        await user.sees_state("Waiting for you")
        assert [path.name for path in server.work.iterdir()] == ["two"]


@pytest.mark.parametrize("kind", ["command", "patch"])
async def test_a_hidden_part_is_shown_where_its_button_was(
    browser: Browser, server: HttpServer, model: ScriptedModel, kind: str
) -> None:
    if kind == "command":
        model.says(sh("call", "".join(f"true {number}\n" for number in range(10_000))))
    else:
        files = (line for name in "ab" for line in (f"*** Add File: {name}", *["+x = 1"] * 390))
        model.says(patch(*files))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        call = user.transcript.locator(".call")
        more, approve = call.locator(".more"), call.locator("[data-key=a]")
        await expect(call.locator("[data-key=d]")).to_be_enabled()
        await expect(approve).to_be_disabled()
        await expect(call.get_by_text(HINT)).to_be_in_viewport()
        top = await more.evaluate("more => more.getBoundingClientRect().top")
        # A click that follows at once does not answer the request.
        assert await more.evaluate(IS_DISABLED_AFTER_CLICK)
        await expect(more).to_have_count(0)
        await expect(approve).to_be_enabled()
        await expect(approve).not_to_be_in_viewport()
        if kind == "patch":
            second = call.locator(".file-head", has_text="b")
            assert abs(await second.evaluate("head => head.getBoundingClientRect().top") - top) < 20


@pytest.mark.parametrize("view", [DESKTOP, PHONE], ids=["desktop", "phone"])
async def test_a_long_reason_and_directory_do_not_move_the_command_out_of_view(
    browser: Browser, server: HttpServer, model: ScriptedModel, view: dict[str, Any]
) -> None:
    reason = "It only lists the files. " * 2000
    directory = "/".join(["d" * 100] * 30)
    model.says(shell("c", "rm", "x", workdir=directory, with_escalated_permissions=True, justification=reason))
    client = await server.client(capabilities={"elicitation": {}})
    conversation = await client.create(cwd=str(server.work), approval_policy="on-request")
    await client.say(conversation, "go")
    async with open_page(browser, server, **view) as user:
        card = user.page.locator(".waiting-card")
        await expect(card.locator("[data-key=d]")).to_be_enabled()
        await expect(card.locator("[data-key=a]")).to_be_disabled()
        await expect(card.locator("pre")).to_be_in_viewport(ratio=1)
        await user.open(conversation)
        call = user.transcript.locator(".call")
        await expect(call.locator("[data-key=d]")).to_be_enabled()
        await expect(call.locator("[data-key=d]")).to_be_in_viewport()
        await expect(call.locator("pre.command-text")).to_be_in_viewport(ratio=1)
        await expect(call.locator("[data-key=a]")).to_be_disabled()
        while await call.locator(".more").count():
            await call.locator(".more").first.click()
        await expect(call.locator("[data-key=a]")).to_be_enabled()
        await expect(call.locator(".reason")).to_have_text(reason.strip())


@pytest.mark.parametrize("kind", ["command", "patch"])
async def test_letters_that_are_slow_to_draw_are_shown_in_parts(
    browser: Browser, server: HttpServer, model: ScriptedModel, kind: str
) -> None:
    letters = "a\u0e01b\u6f22\U0001f469\u0628"
    line = letters * 250
    model.says(
        sh("call", f"echo {letters * 40_000}")
        if kind == "command"
        else patch("*** Add File: a", *[f"+{line}"] * 390)
    )
    client = await server.client(capabilities={"elicitation": {}})
    conversation = await client.create(cwd=str(server.work))
    await client.say(conversation, "go")
    async with open_page(browser, server, **DESKTOP) as user:
        card = user.page.locator(".waiting-card")
        await expect(card.locator("[data-key=d]")).to_be_enabled()
        await user.open(conversation)
        call = user.transcript.locator(".call")
        await expect(call.locator("[data-key=d]")).to_be_enabled()
        await expect(call.locator("[data-key=a]")).to_be_disabled()
        assert len(await call.text_content() or "") < 100_000
        if kind == "patch":
            await call.locator("summary", has_text="added").click()
            shown = await call.locator("tr.add").count()
            assert 1 < shown < 100
            await call.get_by_role("button", name="more lines").click()
            assert await call.locator("tr.add").count() > shown
        model.says("understood")
        await call.locator("[data-key=d]").click()
        await user.sees("understood")


async def test_stacked_marks_and_spaces_of_names_are_visible(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    marks = "\u0301\u0323\u0302\u0324"
    model.says(sh("call", f"echo e{marks} e{marks}\u0301\u0301\u0301 \u0e01\u0e34\u0e48"))
    async with open_page(browser, server, **DESKTOP) as user:
        await user.start_conversation()
        await user.send("go")
        command = user.transcript.locator("pre.command-text")
        await expect(command).to_have_text(f"echo e{marks} e{marks}⟨U+0301⟩⟨U+0301⟩⟨U+0301⟩ \u0e01\u0e34\u0e48")
        model.says(patch("*** Add File: a  b/c   d.txt", "+x"))
        model.says("finished")
        await user.button("Deny").click()
        path = user.transcript.locator(".file-head .path")
        await expect(path).to_be_visible()
        assert await path.inner_text() == "a  b/c   d.txt"

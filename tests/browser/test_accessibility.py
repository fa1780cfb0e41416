"""The page is accessible: axe-core reports no violation in any view, and everything works with the keyboard."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, expect

from kit.clients.npm import AXE, fetched
from kit.clients.page import DESKTOP, PHONE, PageUser, open_page
from kit.servers.http_server import HttpServer
from parley.testing import HOLD, Call, Reasoning, ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]

TEXT = "## Heading\n\n- [x] done\n- [ ] open\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n```python\nx = 1\n```\n[link](https://example.org)"
PLAN = {
    "explanation": "Why",
    "plan": [{"step": "one", "status": "completed"}, {"step": "two", "status": "pending"}],
}
PATCH = "*** Begin Patch\n*** Add File: a.py\n+x = 1\n*** End Patch"
SECOND_PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch"


async def violations(user: PageUser) -> list[str]:
    """Run axe-core, and return what it reports."""
    modules = await fetched("the accessibility of the page", *AXE)
    devtools = await user.context.new_cdp_session(user.page)
    await devtools.send("Page.setBypassCSP", {"enabled": True})
    source = (modules / "axe-core" / "axe.min.js").read_text()
    await devtools.send("Runtime.evaluate", {"expression": source})
    report: dict[str, Any] = await user.page.evaluate("axe.run()")
    return [f"{one['id']}: {node['html'][:200]}" for one in report["violations"] for node in one["nodes"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [pytest.param(DESKTOP, id="desktop"), pytest.param(PHONE, id="phone")])
async def test_axe_reports_no_violation(
    browser: Browser, server: HttpServer, model: ScriptedModel, size: dict[str, Any], scheme: str
) -> None:
    model.says(Reasoning("Look"), TEXT, Call("update_plan", PLAN), Call("apply_patch", {"input": PATCH}))
    model.says(TEXT, Call("update_plan", PLAN), Call("apply_patch", {"input": SECOND_PATCH}))
    for code in (1, 2):
        model.says(Call("shell", {"command": ["bash", "-c", f"printf '\\033[31mred\\033[0m'; exit {code}"]}))
    model.says("finished")
    async with open_page(browser, server, color_scheme=scheme, **size) as user:
        found = {"empty list": await violations(user)}
        await user.button("New conversation").click()
        found["new conversation"] = await violations(user)
        await user.button("Start").click()
        await user.send("go")
        await user.sees_state("Waiting for you")
        await expect(user.transcript.locator(".approval-buttons button").first).to_be_enabled()
        found["patch to approve"] = await violations(user)
        await user.page.evaluate("location.hash = ''")
        await expect(user.page.locator(".waiting-card button").first).to_be_enabled()
        found["waiting card"] = await violations(user)
        await user.page.locator(".waiting-card a").click()
        for _ in range(4):
            await user.transcript.locator("[data-key=a]:enabled").click()
            await expect(user.transcript.locator("[data-key=a]:enabled")).to_have_count(0)
        await user.sees_state("Done")
        await user.transcript.locator("details.reasoning summary").click()
        found["done"] = await violations(user)
        await user.page.locator(".turn-settings summary").click()
        await expect(user.page.get_by_label("Sandbox").locator("option")).not_to_have_count(0)
        found["settings"] = await violations(user)
        await user.page.keyboard.press("Escape")
        await user.page.locator(".menu summary").click()
        found["menu"] = await violations(user)
        await user.button("Rename…").click()
        found["rename"] = await violations(user)
        await user.page.keyboard.press("Escape")
        await user.transcript.press("f")
        await user.page.get_by_role("searchbox", name="Find in conversation").fill("finished")
        found["find"] = await violations(user)
        await user.page.get_by_role("tab", name="Changes").click()
        await expect(user.page.locator(".changes .file")).to_be_visible()
        found["changes"] = await violations(user)
        await user.page.locator(".changes").press("?")
        await expect(user.page.get_by_role("heading", name="Keys")).to_be_in_viewport(ratio=1)
        found["keys"] = await violations(user)
        await user.page.keyboard.press("Escape")
        model.says("working", HOLD)
        await user.send("again")
        await user.sees("working")
        await user.message.fill("later")
        await user.button("Queue").click()
        await user.button("Edit the queued message").click()
        found["queue"] = await violations(user)
        await user.page.evaluate("location.hash = ''")
        await user.page.get_by_role("searchbox").fill("go")
        await user.page.locator(".hit").wait_for()
        found["search"] = await violations(user)
        await user.button("Sign out").click()
        await user.page.get_by_label("Code or token").wait_for()
        found["sign-in"] = await violations(user)

    assert {view: problems for view, problems in found.items() if problems} == {}


async def test_a_change_is_approved_commented_and_archived_with_the_keyboard_alone(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    model.says(Call("apply_patch", {"input": "*** Begin Patch\n*** Add File: a.py\n+x = 1\n+y = 2\n*** End Patch"}))
    model.says("written")
    async with open_page(browser, server, **DESKTOP) as user:
        keys = user.page.keyboard
        for message in ("first", "second"):
            if message == "second":
                model.says("answer")
            await keys.press("n")
            await expect(user.page.get_by_role("textbox", name="First message (optional)")).to_be_focused()
            await keys.type(message)
            await keys.press("Enter")
            await user.sees(message)
            if message == "first":
                await expect(user.transcript.locator("[data-key=a]")).to_be_enabled()
                await keys.press("Escape")
                await keys.press("a")
            await user.sees_state("Done")
            await keys.press("Escape")
        await keys.press("j")
        await user.sees("written")
        await keys.press("c")
        region = user.page.get_by_role("region", name="Changes")
        await expect(region.get_by_role("button", name="Comment on line 1: x = 1")).to_be_attached()
        for _ in range(30):
            if await user.page.evaluate("document.activeElement.className") == "comment-here":
                break
            await keys.press("Tab")
        await keys.press("ArrowDown")
        await expect(region.get_by_role("button", name="Comment on line 2: y = 2")).to_be_focused()
        await keys.press("Enter")
        await keys.type("Use a name.")
        await keys.press("Control+Enter")
        await expect(region.locator("tr.comment")).to_contain_text("Use a name.")
        await expect(user.page.locator(".composer-note").first).to_contain_text("1 comment")
        await keys.press("k")
        await user.sees("answer")
        await keys.press("/")
        await keys.press("ArrowDown")
        await keys.press("ArrowDown")
        await keys.press("Enter")
        await user.sees("written")
        await keys.press("e")
        await expect(user.page.locator(".entry")).to_have_count(1)

"""The page is accessible: axe-core reports no violation in any view, and everything works with the keyboard."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, expect

from kit.clients.npm import AXE, fetched
from kit.clients.page import DESKTOP, PHONE, PageUser, open_page
from kit.servers.http_server import HttpServer
from parley.testing import Call, Reasoning, ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]

TEXT = "## Heading\n\n- [x] done\n- [ ] open\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n```python\nx = 1\n```\n[link](https://example.org)"
PLAN = {
    "explanation": "Why",
    "plan": [{"step": "one", "status": "completed"}, {"step": "two", "status": "pending"}],
}
PATCH = "*** Begin Patch\n*** Add File: a.py\n+x = 1\n*** End Patch"


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
    model.says(Call("shell", {"command": ["bash", "-c", "printf '\\033[31mred\\033[0m'; exit 1"]}))
    model.says("done")
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
        await user.button("Approve").click()
        await user.sees("printf")
        await user.button("Approve").click()
        await user.sees_state("Done")
        await user.transcript.locator("details.reasoning summary").click()
        found["done"] = await violations(user)
        await user.page.get_by_role("tab", name="Changes").click()
        await expect(user.page.locator(".changes .file")).to_be_visible()
        found["changes"] = await violations(user)
        await user.page.locator(".changes").press("?")
        found["keys"] = await violations(user)

    assert {view: problems for view, problems in found.items() if problems} == {}

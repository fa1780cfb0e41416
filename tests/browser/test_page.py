"""A turn with an approved change on the page, at desktop and phone size."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, PHONE, open_page
from kit.servers.http_server import HttpServer
from parley.testing import Call, Reasoning, ScriptedModel

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATCH = """*** Begin Patch
*** Add File: slug.py
+def slug(title):
+    return title.lower()
*** End Patch"""


@pytest.mark.parametrize("size", [pytest.param(DESKTOP, id="desktop"), pytest.param(PHONE, id="phone")])
async def test_a_person_sends_a_message_and_approves_a_command_and_a_change(
    browser: Browser, server: HttpServer, model: ScriptedModel, size: dict[str, Any]
) -> None:
    model.says(
        Reasoning("Look first"), "I will look around.", Call("shell", {"command": ["echo", "hello from sh"]})
    )
    model.says(Call("shell", {"command": ["bash", "-lc", "echo one; touch made; exit 3"]}))
    model.says(Call("apply_patch", {"input": PATCH}))
    model.says("All **done**.")
    async with open_page(browser, server, **size) as user:
        await user.start_conversation()
        await user.send("Write a slug function")
        await user.sees_state("Waiting for you")
        await user.sees("echo one; touch made; exit 3")
        await user.button("Approve").click()
        await expect(user.transcript.locator(".call.patch")).to_contain_text("return title.lower()")
        assert not (server.work / "slug.py").exists()
        await user.button("Approve").click()
        await user.sees_state("Done")

        await expect(user.transcript.locator(".agent strong")).to_have_text("done")
        await expect(user.transcript.locator(".exit.failed")).to_have_text("exit 3")
        await expect(user.transcript.locator(".terminal").last).to_have_text("one\n")
        assert (server.work / "slug.py").read_text() == "def slug(title):\n    return title.lower()\n"
        assert (server.work / "made").exists()
        assert await user.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_the_page_loads_little_and_nothing_from_other_hosts(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    client = await server.client()
    conversation = await client.create()
    async with open_page(browser, server, **DESKTOP) as user:
        async with user.page.expect_request(lambda one: one.method == "POST") as request:
            await user.open(conversation)
        called = await request.value
        await user.message.wait_for()
        loaded: list[tuple[str, int]] = await user.page.evaluate(
            "performance.getEntries().map((one) => [one.name, one.encodedBodySize ?? 0])"
        )

    page = server.service.page_url
    assert page is not None
    sizes = {address: size for address, size in loaded if address.startswith("http")}
    files = {
        address: size for address, size in sizes.items() if "/static/" in address or address.startswith(f"{page}#")
    }
    assert [address for address in sizes if not address.startswith(page)] == []
    assert {re.split("[#/]", address.removeprefix(page))[0] for address in sizes} == {
        "",
        "static",
        "mcp",
        "sign-in",
    }
    assert called.headers["mcp-protocol-version"] == "2025-11-25"
    assert 50_000 < sum(files.values()) < 80_000, sorted(files.items(), key=lambda one: -one[1])

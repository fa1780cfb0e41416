"""Requests of a hostile model: they are seen completely before an approval, and a click answers one request."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, open_page
from kit.clients.shell_turns import sh
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

"""The documentation site in a browser: search, theme, and the width of a phone, from files without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from docs.site.build import build
from docs.site.output import write
from playwright.async_api import Browser, Page, expect

from kit.clients.page import DESKTOP, PHONE

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    write(build().files, directory)
    return directory


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page whose test fails if a script or a request fails."""
    problems: list[str] = []
    page = await browser.new_page(**DESKTOP, color_scheme="light")
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda request: problems.append(request.url))
    yield page
    await page.close()

    assert problems == []


@pytest.mark.long
async def test_the_search_finds_a_setting_and_opens_it_with_the_keyboard(page: Page, site: Path) -> None:
    await page.goto((site / "howto/vs-code.html").as_uri())
    await page.keyboard.press("/")
    await page.keyboard.type("approvals.timeout")

    await expect(page.locator("#results a").first).to_contain_text("approvals.timeout_seconds")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/config.html#approvalstimeout_seconds")
    await expect(page.locator("nav [aria-current]")).to_have_text("Settings")

    await page.fill("#search", "<b>no such text")
    await expect(page.locator("#results")).to_have_text("No page contains these words.")


async def test_the_theme_can_be_changed_and_stays(page: Page, site: Path) -> None:
    async def background() -> str:
        colour: str = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour

    await page.goto((site / "index.html").as_uri())
    light = await background()
    await page.click("#theme")
    dark = await background()
    await page.goto((site / "tutorial.html").as_uri())

    assert light == "rgb(255, 255, 255)"
    assert dark != light
    assert await background() == dark


async def test_the_header_is_as_wide_as_the_page(browser: Browser, site: Path) -> None:
    page = await browser.new_page(viewport={"width": 1300, "height": 900})
    await page.goto((site / "tutorial.html").as_uri())
    header = await page.locator("header").bounding_box()

    assert header is not None
    assert (header["x"], header["width"]) == (0, await page.evaluate("document.documentElement.clientWidth"))
    await page.close()


@pytest.mark.parametrize(
    "name",
    [
        *("index.html", "tutorial.html", "protocol.html"),
        pytest.param("reference/settings.html", marks=pytest.mark.long),
    ],
)
async def test_a_page_is_not_wider_than_a_phone(browser: Browser, site: Path, name: str) -> None:
    page = await browser.new_page(**PHONE)
    await page.goto((site / name).as_uri())

    assert await page.evaluate("document.documentElement.scrollWidth") == 390
    await expect(page.locator("nav")).to_be_hidden()
    await page.click("#menu")
    await expect(page.locator("nav a").first).to_be_visible()
    await page.close()

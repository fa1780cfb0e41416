"""The page in a real browser, used as a person would use it.

Every page collects what must never happen: errors of the script, and reports of the content security policy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from playwright.async_api import Browser, BrowserContext, Locator, Page, async_playwright, expect

from kit.clients.npm import IN_LONG_RUN
from kit.servers.http_server import HttpServer
from kit.system.commands import TIMEOUT_SECONDS

__all__ = ["DESKTOP", "PHONE", "PageUser", "chromium", "open_page"]

NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
DESKTOP: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 860}}
PHONE: Final[dict[str, Any]] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}

WATCH: Final = """
window.violations = []
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective))
"""


def _executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Chromium. Without it, the test is skipped in `make test` and fails in `make test-long`."""
    executable = _executable()
    if executable is None:
        reason = "the page was not tried: Chromium is not installed (reason: .venv/chromium.log)"
        raise pytest.fail.Exception(reason) if IN_LONG_RUN in os.environ else pytest.skip.Exception(reason)
    async with async_playwright() as playwright:
        # Debian's start script tests a variable that only sessions with a desktop have.
        browser = await playwright.chromium.launch(
            executable_path=executable, args=[*ARGUMENTS], chromium_sandbox=False
        )
        try:
            yield browser
        finally:
            await browser.close()


class PageUser:
    """A person in front of the page."""

    def __init__(self, page: Page, context: BrowserContext) -> None:
        self.page, self.context = page, context
        self.problems: list[str] = []
        """The errors of the script."""
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self._take(message.type, message.text))
        page.set_default_timeout(TIMEOUT_SECONDS * 1000)

    def _take(self, kind: str, text: str) -> None:
        if kind == "error" and not text.startswith("Failed to load resource"):
            self.problems.append(text)

    async def check(self) -> None:
        """Fail if the script had an error, or if the policy reported something."""
        violations = await self.page.evaluate("window.violations")
        assert (self.problems, violations) == ([], [])

    # --- what a person sees -----------------------------------------------------------

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    @property
    def transcript(self) -> Locator:
        return self.page.get_by_role("log", name="Conversation")

    @property
    def message(self) -> Locator:
        """The field in which messages are written."""
        return self.page.get_by_role("textbox", name="Message", exact=True)

    async def sees(self, text: str) -> None:
        """Wait until a text is in the transcript."""
        await expect(self.transcript).to_contain_text(text, timeout=TIMEOUT_SECONDS * 1000)

    async def sees_state(self, text: str) -> None:
        """Wait until the header shows a state."""
        await expect(self.page.locator(".badge")).to_have_text(text, timeout=TIMEOUT_SECONDS * 1000)

    async def is_connected(self) -> None:
        await expect(self.page.locator(".connection")).to_have_attribute(
            "data-state", "live", timeout=TIMEOUT_SECONDS * 1000
        )

    # --- what a person does -----------------------------------------------------------

    async def start_conversation(self) -> str:
        """Start a conversation with the default settings, and return its id."""
        await self.button("New conversation").click()
        await self.button("Start").click()
        await self.message.wait_for()
        return self.page.url.partition("#c=")[2]

    async def open(self, conversation_id: str, seq: int | None = None) -> None:
        position = "" if seq is None else f"&seq={seq}"
        await self.page.evaluate("address => { location.hash = address }", f"c={conversation_id}{position}")

    async def send(self, text: str) -> None:
        await self.message.fill(text)
        await self.page.locator(".button.send").click()


@asynccontextmanager
async def open_page(
    browser: Browser,
    server: HttpServer,
    *,
    address: Callable[[str], str] = lambda address: address,
    context: BrowserContext | None = None,
    **options: Any,
) -> AsyncIterator[PageUser]:
    """Open the page and sign in. At the end, fail if the script or the policy reported a problem.

    `address` changes the address of the page, for example to that of a proxy. `context` is the browser window of
    another page, in which this page is a further tab.
    """
    own = context or await browser.new_context(**options)
    try:
        if context is None:
            await own.add_init_script(WATCH)
        user = PageUser(await own.new_page(), own)
        sign_in = await server.service.sign_in_url()
        assert sign_in is not None
        await user.page.goto(address(sign_in if context is None else sign_in.partition("#")[0]))
        await user.is_connected()
        yield user
        await user.check()
    finally:
        if context is None:
            await own.close()

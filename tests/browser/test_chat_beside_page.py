"""The page in Chromium and two `parley chat` in tmux, on one conversation of one server."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, open_page
from kit.clients.shell_turns import shell
from kit.servers.command_line import environ_of
from kit.servers.http_server import HttpServer
from kit.system.tmux import TMUX, Terminal
from parley.testing import HOLD, ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.child_process, TMUX]

READY = "a allow once"


def chat(server: HttpServer, nothing: Path, *arguments: str) -> Terminal:
    command = (sys.executable, "-P", "-m", "parley", "chat", *arguments, "--url", server.url)
    return Terminal(command, env={**environ_of(nothing), "PARLEY_TOKEN": server.token}, cwd=nothing)


async def test_two_chats_and_the_page_stay_in_step(
    browser: Browser, server: HttpServer, model: ScriptedModel, tmp_path: Path
) -> None:
    (nothing := tmp_path / "nothing").mkdir()
    model.says("One.", shell("c1", "sh", "-c", "echo printed; touch made"))
    model.says("Two.", HOLD, " Three.")
    async with AsyncExitStack() as stack:
        user = await stack.enter_async_context(open_page(browser, server, **DESKTOP))
        conversation = await user.start_conversation()
        chats = [await stack.enter_async_context(chat(server, nothing, "--resume", conversation)) for _ in range(2)]
        first, second = chats
        await user.send("From the page")
        for terminal in chats:
            await terminal.until_shows("> From the page", "One.", "touch made'", READY)
        await user.sees_state("Waiting for you")

        first.press("a")
        await second.until_hides(READY)
        for terminal in chats:
            await terminal.until_shows("approved", "printed", "Two.")
        await expect(user.button("Approve")).to_have_count(0)
        await user.sees("Two.")

        second.type("From the chat")
        second.press("Tab")
        await first.until_shows("queue: 1 more waiting")
        await expect(user.page.locator(".queue")).to_contain_text("From the chat")
        model.says("Four.", shell("c2", "touch", "other"))
        model.says("Five.")
        model.release()
        for terminal in chats:
            await terminal.until_shows("> From the chat", "Four.", "$ touch other", READY)
        await user.button("Approve").click()
        for terminal in chats:
            await terminal.until_shows("Five.")
            await terminal.until_hides("Esc interrupts")
        await user.sees("Five.")
        await user.sees_state("Done")

        transcript = await user.transcript.inner_text()
        shown = [terminal.everything() for terminal in chats]
    texts = ("From the page", "One.", "Two. Three.", "From the chat", "Four.", "Five.")
    for whole in (transcript, *shown):
        text = whole.partition("\n")[2]  # the first line of a chat contains the title, which is the first message
        assert [text.count(one) for one in texts] == [1] * len(texts), text
        assert sorted(texts, key=text.index) == list(texts)
    assert [(server.work / name).exists() for name in ("made", "other")] == [True, True]

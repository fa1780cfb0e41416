"""The page stays current: after cut connections, a restart of the server and sleep, and in several tabs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, PHONE, PageUser, open_page
from kit.clients.shell_turns import sh
from kit.servers.cutting_port import CuttingPort
from kit.servers.http_server import HttpServer
from kit.system.ports import free_port
from parley.testing import HOLD, ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]


class Proxied:
    """A server whose page is reached through a port that can cut connections. The server can be restarted."""

    def __init__(self, model: ScriptedModel, home: Path, port: CuttingPort, config: str) -> None:
        self._model, self._home, self.port, self._config = model, home, port, config

    async def start(self) -> None:
        self.server = HttpServer(self._model, self._home, config=self._config)
        await self.server.__aenter__()

    async def stop(self) -> None:
        await self.server.__aexit__(None, None, None)


@pytest_asyncio.fixture(loop_scope="session")
async def proxied(model: ScriptedModel, tmp_path: Path) -> AsyncIterator[Proxied]:
    number = free_port()
    async with CuttingPort(f"http://127.0.0.1:{number}", keeps_host=True) as port:
        serve = f'[serve]\nport = {number}\npublic_url = "{port.url}"\n'
        config = f'approval_policy = "untrusted"\nsandbox_mode = "workspace-write"\n{serve}'
        proxied = Proxied(model, tmp_path / "home", port, config)
        await proxied.start()
        yield proxied
        await proxied.stop()


async def parts(user: PageUser) -> list[str]:
    """Return the messages, the texts and the outputs of the transcript in order."""
    shown = user.transcript.locator(".agent, .user .message-body, .call.command .terminal")
    return [text.strip() for text in await shown.all_inner_texts()]


async def is_lost(user: PageUser) -> None:
    await expect(user.page.locator(".connection")).to_have_attribute("data-state", "lost")


async def test_a_cut_connection_leaves_no_gap_and_no_duplicate(
    browser: Browser, proxied: Proxied, model: ScriptedModel
) -> None:
    async with open_page(browser, proxied.server, **DESKTOP) as user:
        await user.start_conversation()
        model.says("one ", HOLD, "two ", HOLD, "three")
        await user.send("count")
        await user.sees("one")

        proxied.port.refuses = True
        proxied.port.cut()
        await is_lost(user)
        await model.wait_until_held()
        model.release()
        await model.wait_until_held()
        proxied.port.refuses = False
        await user.is_connected()
        await user.sees("one two")
        proxied.port.cut()
        model.release()
        await user.sees("one two three")
        await user.sees_state("Done")

        assert await parts(user) == ["count", "one two three"]


async def test_a_message_sent_without_a_connection_arrives_once(
    browser: Browser, proxied: Proxied, model: ScriptedModel
) -> None:
    async with open_page(browser, proxied.server, **DESKTOP) as user:
        await user.start_conversation()
        proxied.port.refuses = True
        proxied.port.cut()
        await is_lost(user)
        state = user.page.locator(".connection")
        await expect(state).to_contain_text("Connection lost")
        await user.context.set_offline(True)
        await expect(state).to_contain_text("This device is offline")
        await user.context.set_offline(False)
        await expect(state).to_contain_text("Connection lost")

        model.says("heard")
        await user.send("are you there?")
        await expect(user.page.locator(".outgoing")).to_contain_text("Waiting for the connection")
        proxied.port.refuses = False
        await user.sees("heard")
        await user.sees_state("Done")

        assert await parts(user) == ["are you there?", "heard"]
        assert len(model.requests) == 1


async def test_a_restarted_server_leaves_no_gap_and_no_duplicate(
    browser: Browser, proxied: Proxied, model: ScriptedModel
) -> None:
    async with open_page(browser, proxied.server, **DESKTOP) as user:
        await user.start_conversation()
        model.says("before", sh("call", "echo printed; touch made"))
        await user.send("go")
        await user.sees_state("Waiting for you")

        await proxied.stop()
        await is_lost(user)
        await proxied.start()
        await user.is_connected()
        model.says("after")
        await user.button("Approve").click()
        await user.sees("after")
        await user.sees_state("Done")
        await user.transcript.locator(".call.command summary").click()
        await expect(user.transcript.locator(".terminal")).to_have_text("printed\n")

        assert await parts(user) == ["go", "before", "printed", "after"]


async def test_the_page_is_current_again_after_sleep(
    browser: Browser, proxied: Proxied, model: ScriptedModel
) -> None:
    async with open_page(browser, proxied.server, **PHONE) as user:
        await user.page.clock.install()
        await user.page.reload()
        await user.is_connected()
        await user.start_conversation()
        model.says("before ", HOLD, "after")
        await user.send("go")
        await user.sees("before")
        devtools = await user.context.new_cdp_session(user.page)

        await devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
        await model.wait_until_held()
        model.release()
        await devtools.send("Page.setWebLifecycleState", {"state": "active"})
        async with user.page.expect_request(lambda one: one.method == "GET" and one.url.endswith("/mcp")):
            await user.page.clock.fast_forward(600_000)  # no byte has arrived for ten minutes of the page's clock
        await user.is_connected()
        await user.sees("before after")
        await user.sees_state("Done")

        assert await parts(user) == ["go", "before after"]


async def test_two_tabs_stay_in_step_and_share_one_stream(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as first:
        conversation = await first.start_conversation()
        model.says("hello ", HOLD, "there", sh("call", "echo printed; touch made"))
        model.says("end")
        await first.send("go")
        await first.sees("hello")
        async with open_page(browser, server, context=first.context) as second:
            await second.open(conversation)
            await second.sees("hello")
            assert len(server.service.sessions) == 1

            model.release()
            await second.sees_state("Waiting for you")
            await first.sees_state("Waiting for you")
            await second.button("Approve").click()
            for user in (first, second):
                await user.sees_state("Done")
                await user.sees("end")
                await user.transcript.locator(".call.command summary").click()
                await expect(user.transcript.locator(".terminal")).to_have_text("printed\n")
                assert await parts(user) == ["go", "hello there", "printed", "end"]

            model.says("still here")
            await first.page.close()
            await second.send("and now?")
            await second.sees("still here")
            await second.sees_state("Done")
            assert (await parts(second))[-2:] == ["and now?", "still here"]
            first.problems.clear()
        first.page = await first.context.new_page()


async def test_a_frozen_tab_does_not_hold_up_the_other(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    async with open_page(browser, server, **DESKTOP) as first:
        conversation = await first.start_conversation()
        async with open_page(browser, server, context=first.context) as second:
            await second.open(conversation)
            await second.message.wait_for()
            frozen = await first.context.new_cdp_session(first.page)
            await frozen.send("Page.setWebLifecycleState", {"state": "frozen"})

            model.says("heard")
            await second.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            await second.send("are you there?")
            await second.sees("heard")
            await frozen.send("Page.setWebLifecycleState", {"state": "active"})
            await first.page.wait_for_load_state()

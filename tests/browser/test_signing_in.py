"""Signing in to the page: roles, revoked tokens, used codes, and a page below a path behind a proxy."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from playwright.async_api import Browser, expect

from kit.clients.page import DESKTOP, open_page
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.ports import free_port
from parley.testing import ScriptedModel

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]


async def test_a_driver_sees_an_approval_but_cannot_answer_it(
    browser: Browser, server: HttpServer, model: ScriptedModel
) -> None:
    token = await server.create_token("anna", "driver")
    model.says(sh("call", "touch made"))
    async with open_page(
        browser, server, address=lambda url: f"{url.partition('#')[0]}#token={token}", **DESKTOP
    ) as user:
        await user.start_conversation()
        await user.send("go")
        await user.sees_state("Waiting for you")
        await user.sees("Waiting for a person who may approve this.")
        assert await user.transcript.get_by_role("button", name="Approve").count() == 0


async def test_a_revoked_token_signs_the_page_out(browser: Browser, server: HttpServer) -> None:
    token = await server.create_token("anna", "approver")
    async with open_page(
        browser, server, address=lambda url: f"{url.partition('#')[0]}#token={token}", **DESKTOP
    ) as user:
        await server.revoke_token("anna")
        await expect(user.page.locator(".sign-in")).to_contain_text("signed out")


async def test_a_used_code_shows_the_form_and_a_new_code_signs_in(browser: Browser, server: HttpServer) -> None:
    context = await browser.new_context(**DESKTOP)
    page = await context.new_page()
    address = await server.service.sign_in_url()
    assert address is not None
    async with open_page(browser, server, address=lambda _: address, **DESKTOP):
        await page.goto(address)
        await expect(page.locator(".sign-in .problem")).to_be_visible()
        assert "#" not in page.url
        new = await server.service.sign_in_url()
        assert new is not None
        await page.get_by_label("Code or token").fill(new.partition("#code=")[2])
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator(".connection")).to_have_attribute("data-state", "live")
    await context.close()


@pytest.mark.parametrize("way", ["opened", "pasted"])
async def test_an_address_signs_in_a_tab_that_shows_the_form(
    browser: Browser, server: HttpServer, way: str
) -> None:
    address = await server.service.sign_in_url()
    assert address is not None
    context = await browser.new_context(**DESKTOP)
    page = await context.new_page()
    await page.goto(address.partition("#")[0])
    field = page.get_by_label("Code or token")
    await expect(field).to_be_visible()
    if way == "opened":
        await page.goto(address)
    else:
        await field.fill(f" {address}\n")
        await field.press("Enter")
    await expect(page.locator(".connection")).to_have_attribute("data-state", "live")
    assert "#" not in page.url
    await context.close()


@pytest.mark.parametrize("accepts", [True, False], ids=["sign in", "stay"])
async def test_a_link_replaces_another_sign_in_only_after_a_question(
    browser: Browser, server: HttpServer, accepts: bool
) -> None:
    token = await server.create_token("guest", "observer")
    async with open_page(browser, server, **DESKTOP) as user:
        link = await user.context.new_page()
        await link.goto(f"{user.page.url.partition('#')[0]}#token={token}")
        question = link.locator(".sign-in")
        await expect(question).to_contain_text("signed in as page (admin)")
        await expect(question).to_contain_text("signs in as guest (observer)")
        await expect(link.get_by_role("button", name="Stay signed in as page")).to_be_focused()
        assert len(await server.server.store.sign_ins()) == 2
        await link.get_by_role("button", name="Sign in as guest" if accepts else "Stay signed in as page").click()
        await expect(link.locator(".connection")).to_have_attribute("data-state", "live")

        (kept,) = await server.server.store.sign_ins()
        assert bool(kept.token) == accepts
        for page in (link, user.page):  # the other tab follows
            await expect(page.get_by_role("button", name="New conversation")).to_have_count(int(not accepts))
            await expect(page.locator(".connection")).to_have_attribute("data-state", "live")


async def test_a_person_signs_out_or_reads_that_it_failed(browser: Browser, server: HttpServer) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        await user.page.route("**/sign-in", lambda route: route.fulfill(status=503))
        await user.button("Sign out").click()
        await expect(user.page.locator(".toast")).to_contain_text("You are still signed in.")
        assert len(await server.server.store.sign_ins()) == 1
        await user.page.unroute("**/sign-in")
        await user.button("Sign out").click()
        await expect(user.page.get_by_label("Code or token")).to_be_visible()
        assert await server.server.store.sign_ins() == []


async def test_a_new_code_of_the_same_user_keeps_the_sign_in(browser: Browser, server: HttpServer) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        before = await server.server.store.sign_ins()
        address = await server.service.sign_in_url()
        assert address is not None
        async with user.page.expect_event("load"):  # the address differs only after the `#`
            await user.page.evaluate("address => { location.href = address }", address)
        await user.is_connected()

        assert "#" not in user.page.url
        assert [one.digest for one in await server.server.store.sign_ins()] == [one.digest for one in before]


@pytest.mark.parametrize("fragment", ["token=%", "code=%ff"])
async def test_an_address_without_a_valid_code_or_token_says_so(
    browser: Browser, server: HttpServer, fragment: str
) -> None:
    async with open_page(browser, server, **DESKTOP) as user:
        stranger = await browser.new_context()
        page = await stranger.new_page()
        base = user.page.url.partition("#")[0]
        await page.goto(f"{base}#{fragment}")
        text = f"The address contains no valid {fragment.partition('=')[0]}."
        await expect(page.locator(".sign-in .problem")).to_have_text(text)
        await user.page.goto(f"{base}#{fragment}")
        await expect(user.page.locator(".toast")).to_have_text(text)
        await user.is_connected()
        await stranger.close()


async def test_the_page_works_below_a_path_behind_a_proxy(
    browser: Browser, model: ScriptedModel, tmp_path: Path
) -> None:
    inner, outer = free_port(), free_port()
    serve = f'[serve]\nport = {inner}\npublic_url = "http://127.0.0.1:{outer}/tools/parley"\n'
    async with HttpServer(model, tmp_path / "home", config=serve) as server, aiohttp.ClientSession() as upstream:

        async def forward(request: web.Request) -> web.StreamResponse:
            address = f"http://127.0.0.1:{inner}/{request.match_info['path']}"
            headers = {name: value for name, value in request.headers.items() if name != "Transfer-Encoding"}
            async with upstream.request(
                request.method, address, headers=headers, data=await request.read() or None, auto_decompress=False
            ) as answer:
                kept = {name: value for name, value in answer.headers.items() if name != "Transfer-Encoding"}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for data in answer.content.iter_any():
                    await response.write(data)
                return response

        application = web.Application()
        application.router.add_route("*", "/tools/parley/{path:.*}", forward)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", outer).start()
        model.says("through the proxy")
        async with open_page(browser, server, **DESKTOP) as user:
            assert "/tools/parley/" in user.page.url
            await user.start_conversation()
            await user.send("hello")
            await user.sees("through the proxy")
            await user.sees_state("Done")
        await runner.cleanup()

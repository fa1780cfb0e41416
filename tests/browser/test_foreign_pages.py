"""A page of another server on the same computer tries to use the sign-in of a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from playwright.async_api import Browser

from kit.clients.page import PageUser, open_page
from kit.servers.http_server import HttpServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

ATTACK = """async (base) => {
  const outcome = (promise) => promise.then((answer) => answer.type ?? answer, (error) => error.name)
  const send = (path, options) => outcome(fetch(base + path, { credentials: "include", ...options }))
  const call = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call",
    params: { name: "conversationCreate", arguments: { cwd: "/tmp" } } })
  const load = (tag, address) => new Promise((resolve) => {
    const node = document.createElement(tag)
    node.onload = () => resolve("loaded")
    node.onerror = () => resolve("refused")
    node.src = base + address
    document.body.append(node)
  })
  const frame = document.createElement("iframe")
  const framed = new Promise((resolve) => { frame.onload = () => resolve(frame.contentDocument === null) })
  frame.src = base + "./"
  document.body.append(frame)
  return {
    read: await send("sign-in"),
    call: await send("mcp", { method: "POST", body: call, headers: { "Content-Type": "application/json" } }),
    secret: await send("mcp", { method: "POST", body: call, headers: { "Parley-Page-Secret": "guess" } }),
    blind: await send("mcp", { method: "POST", mode: "no-cors", body: call }),
    signOut: await send("sign-in", { method: "DELETE" }),
    script: await load("script", "static/app.js"),
    image: await load("img", "static/icons/icon-192.png"),
    frame: await framed,
  }
}"""


@asynccontextmanager
async def foreign_server() -> AsyncIterator[tuple[int, list[str]]]:
    """Serve an empty page. Yield the port, and the cookies that arrive."""
    cookies: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        cookies.append(request.headers.get("Cookie", ""))
        return web.Response(text="<!doctype html><title>foreign</title>", content_type="text/html")

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], cookies
    finally:
        await runner.cleanup()


@pytest.mark.promises("page.secrets", "page.link", "http.host")
@pytest.mark.parametrize(
    ("host", "gets_cookie"), [("127.0.0.1", True), pytest.param("localhost", False, marks=pytest.mark.long)]
)
async def test_a_foreign_page_reads_nothing_and_changes_nothing(
    browser: Browser, server: HttpServer, host: str, *, gets_cookie: bool
) -> None:
    base = server.url.removesuffix("mcp")
    async with foreign_server() as (port, cookies), open_page(browser, server) as user:
        foreign = await user.context.new_page()
        await foreign.goto(f"http://{host}:{port}/")
        outcomes = await foreign.evaluate(ATTACK, base)
        linked = await user.context.new_page()
        await linked.goto(f"http://{host}:{port}/")
        async with linked.expect_navigation(url=lambda url: url.startswith(base)) as navigation:
            await linked.evaluate("base => { location.href = base }", base)
        opened = await navigation.value
        await PageUser(linked, user.context).is_connected()
        admin = await server.client()
        conversations = (await admin.call("conversationsList"))["conversations"]

    assert any(cookies) is gets_cookie
    assert outcomes == {
        "read": "TypeError",
        "call": "TypeError",
        "secret": "TypeError",
        "blind": "TypeError",
        "signOut": "TypeError",
        "script": "refused",
        "image": "refused",
        "frame": True,
    }
    assert opened is not None
    assert opened.status == 200
    assert conversations == []

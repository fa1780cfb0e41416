"""The web page: its files, its sign-in, and the requests of its script (`parley.server.http.page_endpoint`)."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.http_client import HttpReply, raw_exchange
from kit.clients.page_client import PageClient
from kit.clients.reading import until_state
from kit.clients.requests import ping, pong, tool
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.waiting import until
from parley.app.tokens import create_token, end_code_sign_ins
from parley.ports.store import Query
from parley.server.context import LOCAL_USER
from parley.server.http.sign_ins import CODE_SECONDS, IDLE_SECONDS, MAX_CODES, MAX_PER_TOKEN
from parley.testing import HOLD, ScriptedModel
from parley.web.assets import PageAssets, read_files
from parley.wire.http import CONTENT_SECURITY_POLICY

INDEX = b'<!doctype html><script type="module" src="static/main.js"></script>'
FILES = {
    "index.html": INDEX,
    "sw.js": b"self.addEventListener('push', () => {})",
    "manifest.webmanifest": b'{"icons": [{"src": "static/icons/icon.png"}]}',
    "main.js": b"import './log.js'\n" * 100,
    "icons/icon.png": b"\x89PNG",
}
BUILD = PageAssets(FILES).build
DAY = 86_400.0


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home", page_files=FILES) as server:
        yield server


def code_of(reply: HttpReply) -> tuple[int, str]:
    """Return the status and the code of a refused request."""
    return reply.status, reply.json["error"]["data"]["code"] if reply.body else ""


# --- files ---------------------------------------------------------------------------------


@pytest.mark.promises("page.files", "page.headers")
async def test_the_files_have_their_types_and_the_headers_that_protect_the_page(server: HttpServer) -> None:
    browser = await server.browser(signs_in=False)
    replies = {path: await browser.fetch(path) for path in ("/", "/index.html", "/sw.js", "/manifest.webmanifest")}
    module = await browser.fetch(f"/static/{BUILD}/main.js", Accept_Encoding="br, gzip;q=0.5")

    assert {path: (one.status, one.headers["Content-Type"]) for path, one in replies.items()} == {
        "/": (200, "text/html; charset=utf-8"),
        "/index.html": (200, "text/html; charset=utf-8"),
        "/sw.js": (200, "text/javascript; charset=utf-8"),
        "/manifest.webmanifest": (200, "application/manifest+json"),
    }
    assert replies["/"].body == INDEX.replace(b"static/", b"static/%b/" % BUILD.encode())
    assert replies["/sw.js"].headers["Service-Worker-Allowed"] == "./"
    assert json.loads(replies["/manifest.webmanifest"].body)["icons"][0]["src"] == f"static/{BUILD}/icons/icon.png"
    assert (module.headers["Content-Encoding"], gzip.decompress(module.body)) == ("gzip", FILES["main.js"])
    for reply in (*replies.values(), module):
        assert reply.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert {
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items() <= reply.headers.items()
        assert "Set-Cookie" not in reply.headers


@pytest.mark.promises("page.files")
async def test_browsers_keep_the_files_of_one_version_and_check_all_other_addresses(server: HttpServer) -> None:
    browser = await server.browser(signs_in=False)
    paths = ("/", f"/static/{BUILD}/main.js", "/static/main.js", f"/static/{'0' * 16}/main.js")
    replies = [await browser.fetch(path) for path in paths]
    again = [
        await browser.fetch(path, If_None_Match=f'"other", {reply.headers["Etag"]}')
        for path, reply in zip(paths, replies, strict=True)
    ]
    changed = await browser.fetch("/static/main.js", If_None_Match='W/"other"')
    head = await browser.fetch("/static/main.js", method="HEAD")

    forever = "public, max-age=31536000, immutable"
    assert [one.headers["Cache-Control"] for one in replies] == ["no-cache", forever, "no-cache", "no-cache"]
    assert [one.body for one in replies[1:]] == [FILES["main.js"]] * 3
    assert [(one.status, one.body) for one in again] == [(304, b"")] * 4
    assert (changed.status, changed.body) == (200, FILES["main.js"])
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(FILES["main.js"]))


@pytest.mark.promises("page.files")
@pytest.mark.parametrize(
    "path",
    [
        "/static/../main.js",
        "/static/..%2f..%2findex.html",
        "/static/%2e%2e/%2e%2e/http_service.py",
        "/static//etc/passwd",
        "/static/C:/x.js",
        "/static/main.js%00.png",
        "/static/main.js/",
        "/static/",
        f"/static/{BUILD}/../../index.html",
        f"/static/{BUILD}/{BUILD}/main.js",
    ],
)
async def test_no_path_leads_to_another_file(server: HttpServer, path: str) -> None:
    host = server.url.split("/")[2]
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"

    answer = await raw_exchange(server.url, request.encode())

    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.promises("page.files")
async def test_files_are_only_read(server: HttpServer) -> None:
    browser = await server.browser(signs_in=False)

    assert [(await browser.fetch("/", method=method)).status for method in ("POST", "PUT", "DELETE")] == [405] * 3


def test_only_files_for_browsers_are_served(tmp_path: Path) -> None:
    for name in ("index.html", "README.md", "log.d.ts", "tsconfig.json", ".secret.js", "a/b.css", ".git/x.js"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    assert sorted(read_files(tmp_path)) == ["a/b.css", "index.html"]


@pytest.mark.promises("page.link")
async def test_a_link_on_another_page_opens_the_page_and_nothing_else(server: HttpServer) -> None:
    browser = await server.browser(signs_in=False)
    link: dict[str, Any] = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}

    opened = await browser.fetch("/", Sec_Fetch_Dest="document", **link)
    framed = await browser.fetch("/", Sec_Fetch_Dest="iframe", **link)
    embedded = await browser.fetch("/static/main.js", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")
    others = [
        await browser.fetch(path, Sec_Fetch_Dest="document", **link) for path in ("/mcp", "/sign-in", "/other")
    ]

    assert (opened.status, framed.status, embedded.status) == (200, 403, 403)
    assert [one.status for one in others] == [403] * 3


@pytest.mark.promises("page.rebinding")
async def test_a_foreign_host_name_gets_nothing(server: HttpServer) -> None:
    browser = await server.browser(signs_in=False)
    code = await server.new_code()
    evil: dict[str, Any] = {"Host": "evil.example", "Origin": "http://evil.example"}

    replies = [
        await browser.fetch("/", Host="evil.example"),
        await browser.fetch("/sign-in", method="POST", body=json.dumps({"code": code}).encode(), **evil),
    ]

    assert [(one.status, b"serve.public_url" in one.body) for one in replies] == [(403, True)] * 2
    assert (await browser.sign_in(code=code)).status == 200


async def test_one_connection_loads_several_files(server: HttpServer) -> None:
    host = server.url.split("/")[2]
    request = f"GET /static/main.js HTTP/1.1\r\nHost: {host}\r\n"

    answer = await raw_exchange(server.url, f"{request}\r\n{request}Connection: close\r\n\r\n".encode())

    assert answer.count(b"HTTP/1.1 200") == 2


# --- signing in ----------------------------------------------------------------------------


@pytest.mark.promises("page.sign-in")
async def test_a_code_signs_the_user_in_once(server: HttpServer) -> None:
    browser, other = await server.browser(signs_in=False), await server.browser(signs_in=False)
    code = await server.new_code()

    signed_in = await browser.sign_in(code=code)
    again = await other.sign_in(code=code)
    await browser.initialize()
    conversation = await browser.create()
    listed = await browser.call("conversationsList")

    assert signed_in.json == {
        "secret": browser.secret,
        "name": "page",
        "role": "admin",
        "conversation_id": None,
        "version": signed_in.json["version"],
        "build": BUILD,
        "push_key": signed_in.json["push_key"],
    }
    attributes = signed_in.headers["Set-Cookie"].split("; ")[1:]
    assert attributes == ["HttpOnly", "SameSite=Strict", "Max-Age=34560000"]
    assert signed_in.headers["Cache-Control"] == "no-store"
    assert code_of(again) == (401, "sign_in_failed")
    assert [one["conversation_id"] for one in listed["conversations"]] == [conversation]


@pytest.mark.promises("page.sign-in")
async def test_a_code_is_valid_for_a_minute(server: HttpServer) -> None:
    browser = await server.browser(signs_in=False)
    early, late = await server.new_code(), await server.new_code()
    await server.let_tokens_expire(CODE_SECONDS - 1)
    first = await browser.sign_in(code=early)
    await server.let_tokens_expire(1)

    assert first.status == 200
    assert code_of(await browser.sign_in(code=late)) == (401, "sign_in_failed")


@pytest.mark.promises("page.sign-in")
async def test_several_requests_with_one_code_sign_in_one_browser(server: HttpServer) -> None:
    browsers = [await server.browser(signs_in=False) for _ in range(5)]
    code = await server.new_code()

    replies = await asyncio.gather(*(browser.sign_in(code=code) for browser in browsers))

    assert sorted(reply.status for reply in replies) == [200, 401, 401, 401, 401]


@pytest.mark.promises("page.sign-in")
async def test_a_new_code_replaces_the_oldest_of_many(server: HttpServer) -> None:
    browser = await server.browser(signs_in=False)
    codes = [await server.new_code() for _ in range(MAX_CODES + 1)]

    assert [(await browser.sign_in(code=codes[0])).status, (await browser.sign_in(code=codes[1])).status] == [
        401,
        200,
    ]


@pytest.mark.promises("page.sign-in")
@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b"{}", {}, (400, "bad_body")),
        (b"[]", {}, (400, "bad_body")),
        (b'{"code": 5}', {}, (400, "bad_body")),
        (b'{"code": "a", "token": "b"}', {}, (400, "bad_body")),
        (b"\xff\xfe", {}, (400, "bad_body")),
        (b"{" * 4000, {}, (400, "bad_body")),
        (b'{"code": "wrong"}', {}, (401, "sign_in_failed")),
        (b'{"token": "wrong"}', {}, (401, "sign_in_failed")),
        (b'{"code": "%b"}' % (b"x" * 5000), {}, (413, "body_too_large")),
        (b'{"code": "a"}', {"Content_Type": "text/plain"}, (415, "unsupported_media_type")),
        (b'{"code": "a"}', {"Content_Encoding": "gzip"}, (415, "unsupported_media_type")),
        (b'{"code": "a"}', {"Origin": "http://evil.example"}, (403, "")),
        (b'{"code": "a"}', {"Origin": "null"}, (403, "")),
        (b'{"code": "a"}', {"Origin": None}, (403, "")),
        (b'{"code": "a"}', {"Sec_Fetch_Site": "same-site"}, (403, "")),
    ],
)
async def test_a_wrong_request_is_refused(
    server: HttpServer, body: bytes, headers: dict[str, str | None], expected: tuple[int, str]
) -> None:
    browser = await server.browser(signs_in=False)

    reply = await browser.fetch("/sign-in", method="POST", body=body, **headers)

    assert code_of(reply) == expected
    assert "Set-Cookie" not in reply.headers
    assert await server.server.store.sign_ins() == []


@pytest.mark.promises("page.sign-in")
async def test_a_huge_or_chunked_body_is_not_read(server: HttpServer) -> None:
    host = server.url.split("/")[2]
    head = f"POST /sign-in HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nContent-Type: application/json\r\n"

    huge = await raw_exchange(server.url, f"{head}Content-Length: 99999999\r\n\r\n".encode())
    chunked = await raw_exchange(server.url, f"{head}Transfer-Encoding: chunked\r\n\r\n1\r\n".encode())

    assert huge.startswith(b"HTTP/1.1 413")
    assert chunked.startswith(b"HTTP/1.1 400")


# --- the two secrets -----------------------------------------------------------------------


@pytest.mark.promises("page.secrets")
async def test_the_cookie_counts_only_with_the_secret_and_the_own_origin(server: HttpServer) -> None:
    browser, other = await server.browser(), await server.browser()
    await browser.initialize()
    assert (await browser.post(ping(1))).json == pong(1)

    async def posted(**headers: str | None) -> int:
        return (await browser.post(ping(2), **headers)).status

    foreign = ("http://evil.example", "http://127.0.0.1:1", "null", f"{browser.origin}.evil.example")
    refused = {
        "no secret": await posted(Parley_Page_Secret=None),
        "no cookie": await posted(Cookie=None),
        "wrong secret": await posted(Parley_Page_Secret=f"{browser.secret}x"),
        "secret of another sign-in": await posted(Parley_Page_Secret=other.secret),
        "cookie of another sign-in": await posted(Cookie=other.cookie),
        "a stream without secret": (await browser.send("GET", Parley_Page_Secret=None)).status,
        "two cookies": await posted(Cookie=f"{browser.cookie}; {browser.cookie}x"),
    }
    origins = [await browser.post(ping(2), Origin=origin) for origin in foreign]
    unnamed = await browser.post(ping(2), Origin=None)
    sites = [await browser.send("GET", Sec_Fetch_Site=site) for site in ("cross-site", "same-site", "none", None)]

    assert refused == dict.fromkeys(refused, 401)
    assert [one.status for one in origins] == [403] * 4
    assert (unnamed.status, [one.status for one in sites]) == (401, [403, 403, 401, 401])
    assert (await browser.post(ping(3))).json == pong(3)


@pytest.mark.promises("page.secrets")
async def test_the_secrets_are_stored_nowhere(
    server: HttpServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = await server.new_code()
    browser = await server.browser(code=code)
    await browser.initialize()
    await browser.post(ping(1), Parley_Page_Secret="wrong.secret")
    rows = b"".join(
        b"".join((one.digest, one.secret, one.token, one.push or b""))
        for one in await server.server.store.sign_ins()
    )
    files = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())

    assert browser.cookie is not None
    assert browser.secret is not None
    for secret in (code, browser.cookie.partition("=")[2], browser.secret, browser.secret.partition(".")[2]):
        assert secret.encode() not in rows + files
        assert secret not in caplog.text


@pytest.mark.promises("page.who")
async def test_the_page_learns_who_is_signed_in(server: HttpServer) -> None:
    browser = await server.browser(signs_in=False)
    before = await browser.fetch("/sign-in")
    await browser.sign_in(code=await server.new_code())
    after = await browser.fetch("/sign-in")
    wrong = await browser.fetch("/sign-in", method="PATCH")

    assert code_of(before) == (401, "unauthorized")
    assert (after.status, after.json["role"], "secret" in after.json) == (200, "admin", False)
    assert (wrong.status, wrong.headers["Allow"]) == (405, "GET, POST, DELETE")


@pytest.mark.promises("page.token", "approvals.from")
async def test_a_person_with_a_code_reads_for_local_clients_but_is_no_local_client(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    config = 'approval_policy = "untrusted"\n[approvals]\nfrom = "local"\n'
    async with HttpServer(parley_model, tmp_path / "home", config=config, page_files=FILES) as server:
        browser, other = await server.browser(), await server.browser()
        await browser.initialize()
        await other.initialize()
        parley_model.says("Done.")
        conversation = await browser.create()
        await browser.say(conversation, "go")
        seq = await until_state(browser, conversation, "idle")
        await browser.call("conversationMarkRead", conversation_id=conversation, seq=seq)
        (listed,) = (await other.call("conversationsList"))["conversations"]
        store = server.server.store
        (local,) = (await store.find(Query(viewer=LOCAL_USER.viewer))).items

        parley_model.says(sh("c1", "touch made"))
        await browser.say(conversation, "make it")
        await until_state(other, conversation, "asking")
        (approval,) = (await browser.call("approvalsList"))["approvals"]
        arguments = {"approval_id": approval["approval_id"], "decision": "approved"}
        answered = await browser.post(tool(9, "approvalAnswer", arguments))

    assert (listed["unread"], local.unread) == (False, False)
    assert answered.json["result"]["structuredContent"]["code"] == "may_not_answer"


@pytest.mark.promises("page.secrets")
async def test_no_answer_with_secrets_or_conversations_may_be_cached(server: HttpServer) -> None:
    browser, admin = await server.browser(), await server.client()
    replies = [
        await browser.initialize(),
        await browser.post(ping(1)),
        await browser.fetch("/sign-in"),
        await browser.fetch("/sign-in", Parley_Page_Secret=None),
        await browser.fetch("/push", method="PUT", body=b"{}"),
        await browser.sign_in(code=await server.new_code()),
        await browser.sign_in(code="wrong"),
        await browser.fetch("/sign-in", method="DELETE"),
        await admin.post(ping(1)),
    ]

    assert [one.headers["Cache-Control"] for one in replies] == ["no-store"] * len(replies)


# --- tokens --------------------------------------------------------------------------------


@pytest.mark.promises("page.token")
async def test_a_sign_in_with_a_token_has_the_role_and_the_conversation_of_the_token(server: HttpServer) -> None:
    admin = await server.client()
    seen, hidden = await admin.create(), await admin.create()
    token = await server.create_token("guest", "observer", conversation=seen)

    browser = await server.browser(token=token)
    await browser.initialize()
    who = (await browser.fetch("/sign-in")).json
    listed = await browser.call("conversationsList")
    refused = await browser.post(
        {"jsonrpc": "2.0", "id": 9, "method": "tools/call"}
        | {"params": {"name": "conversationRead", "arguments": {"conversation_id": hidden}}}
    )

    assert (who["name"], who["role"], who["conversation_id"]) == ("guest", "observer", seen)
    assert [one["conversation_id"] for one in listed["conversations"]] == [seen]
    assert "does not exist" in refused.json["result"]["content"][0]["text"]


@pytest.mark.promises("page.token")
@pytest.mark.parametrize("how", ["revoked", "expired"])
async def test_a_token_that_is_no_longer_valid_ends_its_sign_ins_and_their_streams(
    server: HttpServer, how: str
) -> None:
    token = await server.create_token("guest", "driver", valid_seconds=3600)
    browser, user = await server.browser(token=token), await server.browser()
    await browser.initialize()
    await user.initialize()
    async with browser.stream() as stream:
        await (server.revoke_token("guest") if how == "revoked" else server.let_tokens_expire(3600))
        await stream.rest()

    assert code_of(await browser.post(ping(1))) == (401, "unauthorized")
    assert code_of(await browser.fetch("/sign-in")) == (401, "unauthorized")
    assert code_of(await browser.sign_in(token=token)) == (401, "sign_in_failed")
    assert (await user.post(ping(1))).json == pong(1)


@pytest.mark.promises("page.limits")
async def test_the_sign_in_that_was_not_used_for_the_longest_time_is_replaced(server: HttpServer) -> None:
    token = await server.create_token("guest", "observer")
    user = await server.browser()
    browsers = []
    for _ in range(MAX_PER_TOKEN + 1):
        await server.let_tokens_expire(1)
        browsers.append(await server.browser(token=token))

    statuses = [(await browser.fetch("/sign-in")).status for browser in (*browsers, user)]

    assert statuses == [401] + [200] * (MAX_PER_TOKEN + 1)
    assert len(await server.server.store.sign_ins()) == MAX_PER_TOKEN + 1


@pytest.mark.promises("page.limits", "http.limits")
async def test_the_rate_and_the_connections_of_a_token_are_limited_in_the_page_too(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    config = "[serve]\nrequests_per_second = 1\nmax_connections = 8\n"
    async with HttpServer(parley_model, tmp_path / "home", config=config, page_files=FILES) as server:
        browser = await server.browser(token=await server.create_token("guest", "observer"))
        subscribed = [(await browser.fetch("/push", method="DELETE")).status for _ in range(30)]
        guests = [await server.browser(token=await server.create_token("other", "observer"))]
        async with AsyncExitStack() as stack:
            await guests[0].initialize()
            for _ in range(4):
                await stack.enter_async_context(guests[0].stream())
            late = await guests[0].fetch("/sign-in")

    assert subscribed[0] == 204
    assert 429 in subscribed
    assert late.status == 503


@pytest.mark.promises("page.limits")
async def test_a_token_signs_in_once_a_second_on_average(server: HttpServer) -> None:
    token, other = await server.create_token("guest", "observer"), await server.create_token("other", "observer")
    browser = await server.browser(signs_in=False)
    count = 0
    while (limited := await browser.sign_in(token=token)).status == 200:
        count += 1

    assert 10 <= count < 1000
    assert (code_of(limited), limited.headers["Retry-After"]) == ((429, "too_many_sign_ins"), "10")
    assert (await browser.sign_in(token=other)).status == 200
    await server.let_tokens_expire(10)
    assert (await browser.sign_in(token=token)).status == 200


# --- the end of a sign-in ------------------------------------------------------------------


@pytest.mark.promises("page.sign-out")
async def test_signing_out_ends_the_streams_of_this_browser_and_no_turn(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    browser, other = await server.browser(), await server.browser()
    await browser.initialize()
    await other.initialize()
    conversation = await browser.create()
    parley_model.says("Hello", HOLD, " there")
    await browser.say(conversation, "hi")
    await parley_model.wait_until_held()
    async with browser.stream() as stream:
        signed_out = await browser.fetch("/sign-in", method="DELETE")
        await stream.rest()
    parley_model.release()
    await until_state(other, conversation, "idle")

    assert signed_out.status == 204
    assert browser.cookie is not None
    name = browser.cookie.partition("=")[0]
    assert signed_out.headers["Set-Cookie"] == f"{name}=; HttpOnly; SameSite=Strict; Max-Age=0"
    assert code_of(await browser.post(ping(1))) == (401, "unauthorized")
    assert code_of(await browser.fetch("/sign-in", method="DELETE")) == (401, "unauthorized")
    await until(lambda: len(server.service.sessions) == 1)


@pytest.mark.promises("page.lasts")
async def test_a_sign_in_ends_when_it_is_not_used_for_thirty_days(server: HttpServer) -> None:
    used, unused = await server.browser(), await server.browser()
    await server.let_tokens_expire(IDLE_SECONDS - DAY)
    assert (await used.fetch("/sign-in")).status == 200
    await server.let_tokens_expire(DAY)

    assert [(await one.fetch("/sign-in")).status for one in (used, unused)] == [200, 401]


@pytest.mark.promises("page.lasts")
async def test_a_sign_in_survives_a_restart(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with HttpServer(parley_model, tmp_path / "home", page_files=FILES) as server:
        token, _ = await create_token(server.server.store, "guest", "driver")
        user = await server.browser()
        await server.revoke_token("none")
        guest, leaver = await server.browser(token=token), await server.browser()
        await leaver.fetch("/sign-in", method="DELETE")
        cookies = [(one.cookie, one.secret) for one in (user, guest, leaver)]
    async with HttpServer(parley_model, tmp_path / "home", page_files=FILES) as server:
        statuses = []
        for cookie, secret in cookies:
            browser = await server.browser(signs_in=False)
            browser.cookie, browser.secret = cookie, secret
            statuses.append((await browser.fetch("/sign-in")).status)

    assert statuses == [200, 200, 401]


@pytest.mark.promises("page.lasts", "page.sign-in")
async def test_servers_that_share_a_store_share_codes_and_sign_ins(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with (
        HttpServer(parley_model, home, page_files=FILES) as one,
        HttpServer(parley_model, home, page_files=FILES) as other,
    ):
        here, there = await one.browser(code=await other.new_code()), await other.browser(signs_in=False)
        there.cookie, there.secret = here.cookie, here.secret
        await there.initialize()
        answered = await there.post(ping(1))
        async with there.stream() as stream:
            await here.fetch("/sign-in", method="DELETE")
            assert other.service.sign_ins is not None
            await other.service.sign_ins.reload()
            await stream.rest()
        after = await there.post(ping(2))

    assert (answered.json, after.status) == (pong(1), 401)


@pytest.mark.promises("page.sign-out")
@pytest.mark.parametrize("ending", ["sign out", "revoke page"])
async def test_a_copy_of_the_secrets_cannot_undo_the_end_of_a_sign_in(
    parley_model: ScriptedModel, tmp_path: Path, ending: str
) -> None:
    home, config = tmp_path / "home", "[serve]\nrequests_per_second = 0\n"
    async with (
        HttpServer(parley_model, home, page_files=FILES, config=config) as one,
        HttpServer(parley_model, home, page_files=FILES, config=config) as other,
    ):
        user, store = await one.browser(), one.server.store
        thieves = [await server.browser(signs_in=False) for server in (one, one, other, other)]
        loops = []
        for thief in thieves:
            thief.cookie, thief.secret = user.cookie, user.secret
            assert (await thief.fetch("/push", method="DELETE")).status == 204
            loops.append(asyncio.create_task(until_unauthorized(thief)))
        if ending == "sign out":
            assert (await user.fetch("/sign-in", method="DELETE")).status == 204
        else:
            await end_code_sign_ins(store)
        await asyncio.gather(*loops)  # no server needs a reload to notice the end
        stored = await store.sign_ins()
        after = [(await thief.fetch("/sign-in")).status for thief in thieves]

    assert (stored, after) == ([], [401] * 4)


async def until_unauthorized(browser: PageClient) -> None:
    """Remove the push subscription of a browser until the server refuses it."""
    while (reply := await browser.fetch("/push", method="DELETE")).status == 204:
        pass
    assert code_of(reply) == (401, "unauthorized")


# --- a proxy -------------------------------------------------------------------------------


@pytest.mark.promises("page.proxy")
@pytest.mark.parametrize("prefix", ["", "/tools/parley"])
async def test_the_page_works_below_a_path_of_a_proxy(
    parley_model: ScriptedModel, tmp_path: Path, prefix: str
) -> None:
    """`prefix` is the part of the path that the proxy does not remove."""
    config = '[serve]\npublic_url = "https://example.org/tools/parley/"\n'
    async with HttpServer(parley_model, tmp_path / "home", config=config, page_files=FILES) as server:
        assert server.service.page_url == "https://example.org/tools/parley/"
        server.url = f"http://127.0.0.1:{server.service.port}{prefix}/mcp"
        browser = await server.browser(origin="https://example.org", signs_in=False)
        signed_in = await browser.sign_in(code=await server.new_code())
        initialized = await browser.initialize()
        index = await browser.fetch("/")
        bare = await browser.fetch("")

    assert (signed_in.status, initialized.status, index.status) == (200, 200, 200)
    assert "Secure" in signed_in.headers["Set-Cookie"].split("; ")
    assert "Path=" not in signed_in.headers["Set-Cookie"]
    if prefix:
        assert (bare.status, bare.headers["Location"]) == (308, "parley/")

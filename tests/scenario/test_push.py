"""Browsers are notified by Web Push (`parley.app.push`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kit.clients.http_client import HttpClient
from kit.clients.page_client import PageClient
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.servers.push_service import PushService, SubscribedBrowser, claims_of
from kit.servers.resident_process import ResidentProcess, parley
from kit.system.commands import TIMEOUT_SECONDS
from parley.stores.sqlite.store import SqliteStore
from parley.testing import ScriptedModel

GOOGLE = SubscribedBrowser("https://fcm.googleapis.com/fcm/send/abc:def").subscription()
ASKS = {"approval_policy": "untrusted", "sandbox": "workspace-write"}


async def put(browser: PageClient, subscription: object) -> tuple[int, str]:
    """Subscribe, and return the status and the code of an error."""
    reply = await browser.fetch("/push", method="PUT", body=json.dumps(subscription).encode())
    return reply.status, reply.json["error"]["data"]["code"] if reply.body else ""


# --- subscriptions -------------------------------------------------------------------------


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server


def changed(**keys: str) -> dict[str, Any]:
    return {**GOOGLE, "keys": {**GOOGLE["keys"], **keys}}


@pytest.mark.promises("push.subscription")
async def test_a_browser_subscribes_at_a_known_push_service_only(server: HttpServer) -> None:
    browser = await server.browser()
    accepted = [
        "https://fcm.googleapis.com/x",
        "https://updates.push.services.mozilla.com/wpush/v2/x",
        "https://web.push.apple.com/x",
        "https://db5p.notify.windows.com/w/?token=x",
    ]
    refused = [
        "http://fcm.googleapis.com/x",
        "https://fcm.googleapis.com:8443/x",
        "https://fcm.googleapis.com@evil.example/x",
        "https://user@fcm.googleapis.com/x",
        "https://evil.example/x?fcm.googleapis.com",
        "https://fcm.googleapis.com.evil.example/x",
        "https://evilnotify.windows.com/x",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://evil.example\\@fcm.googleapis.com/x",
        "https://fcm.googleapis.com\r\nx: y/",
        "https://fcm.googleapis.com/" + "x" * 2100,
        "https://fcm.googleapis.com:99999/x",
        "https://169.254.169.254%2f.push.apple.com/",
        "https://127.0.0.1%23.push.apple.com/",
        "https://127.0.0.1;.push.apple.com/",
        "https://127.0.0.1,.push.apple.com/",
        "https://.push.apple.com/",
        "https://x..push.apple.com/",
        "https://x_y.push.apple.com/",
        "",
    ]

    assert [await put(browser, {**GOOGLE, "endpoint": url}) for url in accepted] == [(204, "")] * 4
    for url in refused:
        assert await put(browser, {**GOOGLE, "endpoint": url}) == (400, "push_refused"), url
    (stored,) = await server.server.store.sign_ins()
    assert stored.push is not None
    assert json.loads(stored.push)["endpoint"] == accepted[-1]


@pytest.mark.promises("push.subscription")
async def test_an_invalid_subscription_is_refused(server: HttpServer) -> None:
    browser = await server.browser()
    refused = [
        {},
        [],
        {"endpoint": GOOGLE["endpoint"]},
        changed(p256dh="AAAA"),
        changed(p256dh="not base64 !"),
        changed(auth="AAAA"),
        {**GOOGLE, "events": ["other"]},
        {**GOOGLE, "endpoint": 5},
    ]

    assert [await put(browser, subscription) for subscription in refused] == [(400, "push_refused")] * len(refused)
    assert await put(browser, {**GOOGLE, "more": "x" * 5000}) == (413, "body_too_large")
    assert [one.push for one in await server.server.store.sign_ins()] == [None]


@pytest.mark.promises("push.subscription")
async def test_a_subscription_needs_a_sign_in_and_ends_with_it(server: HttpServer) -> None:
    stranger, browser = await server.browser(signs_in=False), await server.browser()
    body = json.dumps(GOOGLE).encode()
    foreign = await browser.fetch("/push", method="PUT", body=body, Origin="http://evil.example")

    assert await put(stranger, GOOGLE) == (401, "unauthorized")
    assert foreign.status == 403
    assert await put(browser, GOOGLE) == (204, "")
    assert (await browser.fetch("/push", method="DELETE")).status == 204
    assert [one.push for one in await server.server.store.sign_ins()] == [None]
    assert await put(browser, GOOGLE) == (204, "")
    assert (await browser.fetch("/sign-in", method="DELETE")).status == 204
    assert await server.server.store.sign_ins() == []


async def until_removed(home: Path, endpoint: bytes) -> None:
    """Wait until no stored subscription contains a text."""
    store = SqliteStore(str(home))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while any(one.push is not None and endpoint in one.push for one in await store.sign_ins()):
            pass
    await store.close()


# --- messages ------------------------------------------------------------------------------


@pytest.mark.child_process
@pytest.mark.fresh_process  # the HTTP library reads the certificates when it is loaded
@pytest.mark.promises("push.message", "push.audience")
async def test_subscribed_browsers_learn_which_conversation_needs_a_person_and_nothing_else(
    parley_model: ScriptedModel, home: Path, tmp_path: Path
) -> None:
    async with PushService(tmp_path) as service:
        config = f'[serve]\npush_hosts = ["{service.host}"]\n'
        env = {"SSL_CERT_FILE": str(service.certificate), "PARLEY_LOG": "debug"}
        async with (
            ResidentProcess(parley_model, home, config=config, env=env) as resident,
            HttpClient(resident.description["url"], token=resident.description["token"]) as admin,
            PageClient(resident.description["url"]) as owner,
            PageClient(resident.description["url"]) as guest,
        ):
            await admin.initialize()
            waiting = await admin.create(**ASKS)
            code, link, _ = await parley("share", waiting, env=resident.environ)
            assert code == 0
            await guest.sign_in(token=link.strip().partition("#token=")[2])
            signed_in = await owner.sign_in(token=resident.description["token"])
            browsers = [SubscribedBrowser(f"https://{service.host}/{name}") for name in ("owner", "guest")]
            await put(owner, browsers[0].subscription())
            await put(guest, browsers[1].subscription())

            parley_model.says(sh("c1", "touch private-name"))
            await admin.say(waiting, "private words")
            (asked,) = await service.wait_for(1)
            (approval,) = (await admin.call("approvalsList"))["approvals"]
            parley_model.says("Done.")
            await admin.call("approvalAnswer", approval_id=approval["approval_id"], decision="approved")
            ended = (await service.wait_for(3))[1:]

            service.statuses = [410]  # the subscription of the owner has ended
            parley_model.says("Done.")
            other = await admin.create()
            await admin.say(other, "again")
            last = (await service.wait_for(4))[3]
            await until_removed(home, b"/owner")
            parley_model.says("Done.")
            await admin.say(waiting, "at last")
            await service.wait_for(5)
            log = resident.stderr_text()

    claims, key = claims_of(asked.headers["authorization"])
    assert (claims["aud"], key) == (f"https://{service.host}", signed_in.json["push_key"])
    assert asked.path == "/owner"
    assert browsers[0].decrypted(asked.body) == waiting.encode()
    assert (asked.headers["urgency"], asked.headers["content-encoding"]) == ("high", "aes128gcm")
    assert {one.path for one in ended} == {"/owner", "/guest"}
    for one in ended:
        browser = browsers[one.path == "/guest"]
        assert (browser.decrypted(one.body), one.headers["topic"]) == (waiting.encode(), asked.headers["topic"])
    for push in service.received:
        assert b"private" not in push.body + str(push.headers).encode()
    assert (last.path, browsers[0].decrypted(last.body)) == ("/owner", other.encode())
    assert [push.path for push in service.received[4:]] == ["/guest"]
    assert f"{service.host}/owner" not in log

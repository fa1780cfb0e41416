"""The webhook receiver is notified when a conversation needs a person. Module: `parley.app.webhook`."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.clients.shared_home import ASKS
from kit.clients.shell_turns import sh
from kit.clients.wire_client import speaking
from kit.servers.webhook_receiver import WebhookReceiver
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.webhook import signature
from parley.testing import ScriptedModel
from parley.wire.mcp import FULL_VERSION

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "webhook_receiver.py"
SECRET = "a secret of at least twenty-four bytes"
ENV = {"PARLEY_WEBHOOK_SECRET": SECRET}
FREE = {"approval_policy": "never", "sandbox": "danger-full-access"}


def config(url: str, more: str = "") -> str:
    return f'[webhook]\nurl = "{url}"\nsecret_env = "PARLEY_WEBHOOK_SECRET"\n{more}'


@pytest.mark.promises("webhook.content", "webhook.signature")
async def test_the_receiver_of_the_documentation_accepts_the_notifications(parley_model: ScriptedModel) -> None:
    page, example = (ROOT / "docs" / "protocol.md").read_text(), EXAMPLE.read_text()
    shown = page.partition("is a receiver that checks signatures:\n\n```python\n")[2].partition("```")[0]
    assert shown in example
    receiver = await asyncio.create_subprocess_exec(
        sys.executable, "-u", str(EXAMPLE), "0", env=ENV, stdout=asyncio.subprocess.PIPE
    )
    assert receiver.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            url = (await receiver.stdout.readline()).decode().split()[-1]
            async with speaking(parley_model, version=FULL_VERSION, config=config(url), env=ENV) as client:
                finished = await client.create_with_turns("finish")
                assert (await receiver.stdout.readline()).decode() == f"finished {finished}\n"
                parley_model.fails(400)
                failed = await client.create_with_turns("fail")
                assert (await receiver.stdout.readline()).decode() == f"failed {failed}\n"
                parley_model.says(sh("c1", "touch made"))
                waiting = await client.create(**ASKS)
                await client.say(waiting, "wait")
                assert (await receiver.stdout.readline()).decode() == f"waiting {waiting}\n"
    finally:
        receiver.kill()
        await receiver.wait()


@pytest.mark.promises("webhook.content", "webhook.signature")
async def test_a_notification_has_no_content(parley_model: ScriptedModel) -> None:
    async with WebhookReceiver() as receiver:
        async with speaking(parley_model, version=FULL_VERSION, config=config(receiver.url), env=ENV) as client:
            conversation = await client.create_with_turns("private")
            (sent,) = await receiver.wait_for(1)

        identity, at = sent.headers["webhook-id"], sent.headers["webhook-timestamp"]
        assert sent.json == {
            "delivery_id": identity,
            "conversation_id": conversation,
            "state": "finished",
            "timestamp": sent.json["timestamp"],
        }
        assert sent.headers["webhook-signature"] == signature(SECRET.encode(), identity, at, sent.body)
        assert SECRET not in str(sent)


@pytest.mark.promises("webhook.retries", "webhook.address")
async def test_a_redirect_is_not_followed_and_the_notification_repeated(parley_model: ScriptedModel) -> None:
    async with WebhookReceiver() as receiver:
        receiver.statuses = [307]
        url = f"{receiver.url}/here"
        async with speaking(parley_model, version=FULL_VERSION, config=config(url), env=ENV) as client:
            await client.create_with_turns("go")
            first, second = await receiver.wait_for(2)

        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        assert first.body == second.body


@pytest.mark.promises("webhook.harmless")
async def test_neither_a_turn_nor_the_end_of_the_server_waits_for_a_receiver(parley_model: ScriptedModel) -> None:
    async with WebhookReceiver() as receiver:
        receiver.held = asyncio.Event()  # the receiver never answers
        async with speaking(parley_model, version=FULL_VERSION, config=config(receiver.url), env=ENV) as client:
            conversation = await client.create_with_turns("one")
            await receiver.wait_for(1)
            await client.say(conversation, "two")
            await client.over(conversation)
        assert len(receiver.received) == 1


@pytest.mark.promises("webhook.secret")
async def test_the_secret_reaches_no_command_and_no_export(
    parley_model: ScriptedModel, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    more = '[shell_environment_policy]\ninherit = "all"\nignore_default_excludes = true\n'
    async with WebhookReceiver() as receiver:
        settings = config(receiver.url, more)
        env = {**ENV, "OTHER_SECRET": "seen"}
        home = tmp_path / "home"
        async with speaking(parley_model, version=FULL_VERSION, config=settings, env=env, home=home) as client:
            parley_model.says(sh("c1", "env"))
            parley_model.says("Done.")
            conversation = await client.create_with_turns("go", **FREE)
            await receiver.wait_for(1)
            read = client.call("conversationRead", conversation_id=conversation)
            shown = str(await client.value_of(read)) + "".join(map(str, parley_model.requests))

    assert "OTHER_SECRET=seen" in shown
    assert SECRET not in shown
    assert SECRET not in caplog.text
    assert all(SECRET.encode() not in path.read_bytes() for path in home.rglob("*") if path.is_file())


@pytest.mark.promises("webhook.secret")
async def test_without_a_secret_nothing_is_sent(parley_model: ScriptedModel) -> None:
    logs: list[str] = []
    async with WebhookReceiver() as receiver:
        for env in ({}, {"PARLEY_WEBHOOK_SECRET": "short"}):
            async with speaking(parley_model, version=FULL_VERSION, config=config(receiver.url), env=env) as client:
                await client.create_with_turns("go")
            logs.append(client.raw.stderr_text())

        assert receiver.received == []
    assert "the environment variable `PARLEY_WEBHOOK_SECRET` is not set" in logs[0]
    assert "webhook" in logs[1]
    assert "short" not in "".join(logs)


@pytest.mark.promises("webhook.address")
@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "http://localhost:8000/",
        "http://127.0.0.1.example.com/",
        "http://10.0.0.1/",
        "http://0.0.0.0/",
        "https://user:password@example.com/",
        "https://example.com/#x",
        "ftp://127.0.0.1/",
        "https:///x",
        "https://exa mple.com/",
        "",
    ],
)
async def test_other_addresses_are_refused_and_not_shown(parley_model: ScriptedModel, url: str) -> None:
    async with speaking(parley_model, version=FULL_VERSION, config=config(url), env=ENV) as client:
        value = await client.value_of(client.call("conversationCreate", cwd=str(client.work)))

        assert value["code"] == "bad_setting"
        assert "`webhook.url`: expected an https URL" in value["message"]
        assert not url or url not in value["message"]


@pytest.mark.promises("webhook.address")
async def test_only_the_file_of_the_home_can_set_it(parley_model: ScriptedModel) -> None:
    async with WebhookReceiver() as receiver:
        async with speaking(parley_model, version=FULL_VERSION, env=ENV) as client:
            refused: list[dict[str, Any]] = [{"webhook.url": receiver.url}, {"webhook": {"events": []}}]
            for given in refused:
                value = await client.value_of(client.call("conversationCreate", cwd=str(client.work), config=given))
                assert value["code"] == "bad_setting"
                assert value["message"].endswith("can only be set in config.toml")
            await client.create_with_turns("go")
        assert receiver.received == []

"""`settingsList`: the settings that a client of each role can choose for a new conversation."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from kit.clients.reading import until_state
from kit.clients.requests import tool
from kit.servers.http_server import HttpServer
from parley.ports.store import RoleName
from parley.testing import ParleyProcess, ScriptedModel
from parley.testing.home import MODEL

CONFIG = """
approval_policy = "on-request"
sandbox_mode = "workspace-write"

[profiles.fast]
model = "small-model"
model_reasoning_effort = "low"
approval_policy = "never"
experimental_instructions_file = "/etc/secret-name"

[profiles.elsewhere]
model = "other-model"
model_provider = "elsewhere"

[model_providers.elsewhere]
base_url = "https://user:hunter2@example.com/v1?key=hunter2"
env_key = "ELSEWHERE_KEY"
http_headers = { "x-key" = "hunter2" }

[mcp_servers.tools]
command = "tools"
env = { KEY = "hunter2" }

[serve]
"""
POLICIES = ["untrusted", "on-request", "on-failure", "never"]
LOCAL = ["ollama", "vllm", "llamacpp", "lmstudio"]
"""The ready providers that need no key."""
MODES = ["read-only", "workspace-write", "danger-full-access"]


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    (tmp_path / "roots").mkdir()
    os.symlink(tmp_path / "roots", tmp_path / "link")
    config = f'{CONFIG}roots = ["{tmp_path / "link"}"]\n'
    async with HttpServer(parley_model, tmp_path / "home", config=config) as server:
        yield server


async def listed(server: HttpServer, role: RoleName, conversation: str | None = None) -> Any:
    token = await server.create_token(f"{role}-{conversation}", role, conversation=conversation)
    client = await server.client(token=token)
    return await client.call("settingsList")


@pytest.mark.promises("settings.list")
async def test_an_admin_sees_all_choices_and_no_secret(server: HttpServer, tmp_path: Path) -> None:
    found = await listed(server, "admin")
    provider = found["model_provider"]

    assert found == {
        "model": MODEL,
        "models": [MODEL, "small-model"],
        "model_provider": provider,
        "model_providers": [provider, "elsewhere", "responses", "anthropic", *LOCAL],
        "profile": None,
        "profiles": [
            {
                "name": "fast",
                "model": "small-model",
                "approval_policy": "never",
                "model_reasoning_effort": "low",
            },
            {"name": "elsewhere", "model": "other-model", "model_provider": "elsewhere"},
        ],
        "cwd": str(server.work),
        "roots": [str(tmp_path / "roots")],
        "approval_policy": "on-request",
        "approval_policies": POLICIES,
        "sandbox": "workspace-write",
        "sandbox_modes": MODES,
        "repositories": [],
    }
    for secret in ("hunter2", "example.com", "ELSEWHERE_KEY", "secret-name"):
        assert secret not in str(found)


@pytest.mark.promises("settings.allowed")
async def test_below_admin_only_allowed_choices_are_listed(server: HttpServer, tmp_path: Path) -> None:
    admin, driver, observer = [await listed(server, role) for role in ("admin", "driver", "observer")]
    nothing: dict[str, Any] = {"profiles": [], "model_providers": []}
    below = {**admin, **nothing, "cwd": str(tmp_path / "roots")}

    assert driver == {**below, "approval_policies": POLICIES[:2], "sandbox_modes": MODES[:2]}
    choices = ("models", "roots", "approval_policies", "sandbox_modes")
    assert observer == {**below, **{name: [] for name in choices}}


@pytest.mark.promises("settings.allowed", "roles.bound")
async def test_a_client_with_one_conversation_sees_the_settings_of_that_one(server: HttpServer) -> None:
    admin = await server.client()
    strict = {"sandbox": "read-only", "approval_policy": "untrusted", "model": "its-model"}
    conversation = await admin.create(**strict, cwd="/tmp")
    found = await listed(server, "driver", conversation)

    assert (found["model"], found["models"], found["cwd"]) == ("its-model", ["its-model", "small-model"], "/tmp")
    assert (found["sandbox_modes"], found["approval_policies"]) == (["read-only"], ["untrusted"])


@pytest.mark.promises("settings.allowed", "roles.bound")
async def test_an_observer_of_one_conversation_sees_no_default_of_the_server(server: HttpServer) -> None:
    admin = await server.client()
    strict = {"sandbox": "read-only", "approval_policy": "untrusted", "model": "its-model"}
    found = await listed(server, "observer", await admin.create(**strict, cwd="/tmp"))

    assert {name: value for name, value in found.items() if value} == {
        **strict,
        "cwd": "/tmp",
        "model_provider": found["model_provider"],
    }


@pytest.mark.promises("settings.allowed", "roles.settings")
async def test_every_listed_choice_is_accepted(server: HttpServer) -> None:
    driver = await server.client(token=await server.create_token("driver", "driver"))
    found = await driver.call("settingsList")

    assert (found["sandbox_modes"], found["approval_policies"]) == (MODES[:2], POLICIES[:2])
    for sandbox in found["sandbox_modes"]:
        for policy in found["approval_policies"]:
            await driver.create(
                model=found["models"][-1], cwd=found["cwd"], sandbox=sandbox, approval_policy=policy
            )


@pytest.mark.promises("settings.list")
async def test_the_python_client_lists_the_settings_of_its_server(
    parley_process: Callable[..., Awaitable[ParleyProcess]],
) -> None:
    server = await parley_process(config='[profiles.fast]\nmodel = "small-model"\n')
    found = await server.client.settings()

    assert (found.model, [one.name for one in found.profiles]) == (MODEL, ["fast"])
    assert (found.cwd, found.roots) == (str(server.work), ())
    assert found.sandbox_modes == tuple(MODES)


@pytest.mark.promises("settings.list")
async def test_invalid_settings_are_named(server: HttpServer, tmp_path: Path) -> None:
    client = await server.client()
    (tmp_path / "home" / "config.toml").write_text("model = 5\n")
    result = (await client.post(tool(1, "settingsList", {}))).json["result"]

    assert result["structuredContent"]["code"] == "bad_setting"


@pytest.mark.promises("settings.conversation")
async def test_the_settings_of_a_conversation_are_those_of_its_next_message(
    server: HttpServer, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    admin = await server.client()
    driver = await server.client(token=await server.create_token("driver", "driver"))
    cwd = str(tmp_path / "roots")
    conversation = await admin.create(
        cwd=cwd, model="first", approval_policy="untrusted", sandbox="workspace-write"
    )
    before = await driver.call("settingsList", conversation_id=conversation)
    parley_model.says("Done.")
    content = [{"type": "text", "text": "go"}]
    await admin.call(
        "conversationSendMessage",
        conversation_id=conversation,
        content=content,
        model="second",
        sandbox="read-only",
    )
    await until_state(admin, conversation, "idle")
    after, of_admin = [await one.call("settingsList", conversation_id=conversation) for one in (driver, admin)]

    shown = ("model", "cwd", "approval_policy", "approval_policies", "sandbox", "sandbox_modes", "profile")
    assert {name: before[name] for name in shown} == {
        "model": "first",
        "cwd": cwd,
        "approval_policy": "untrusted",
        "approval_policies": ["untrusted"],
        "sandbox": "workspace-write",
        "sandbox_modes": ["read-only", "workspace-write"],
        "profile": None,
    }
    assert (after["model"], after["sandbox"], after["sandbox_modes"]) == ("second", "read-only", ["read-only"])
    assert (of_admin["approval_policies"], of_admin["sandbox_modes"]) == (POLICIES, MODES)


@pytest.mark.promises("settings.conversation")
async def test_the_settings_of_a_hidden_or_missing_conversation_are_not_shown(server: HttpServer) -> None:
    admin = await server.client()
    seen, hidden = await admin.create(), await admin.create()
    bound = await server.client(token=await server.create_token("bound", "driver", conversation=seen))
    replies = [
        await client.post(tool(1, "settingsList", {"conversation_id": conversation}))
        for client, conversation in ((bound, hidden), (admin, str(UUID(int=1))))
    ]

    assert [reply.json["result"]["structuredContent"]["code"] for reply in replies] == ["unknown_conversation"] * 2

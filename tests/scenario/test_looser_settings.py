"""A principal below admin never begins a turn with settings that are looser than those of the conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kit.clients.http_client import HttpClient
from kit.clients.requests import tool
from kit.servers.http_server import HttpServer
from parley.ports.store import RoleName
from parley.testing import HOLD, ScriptedModel

CONFIG = 'approval_policy = "on-request"\nsandbox_mode = "workspace-write"\n'
NEVER = 'approval_policy = "never"\nsandbox_mode = "workspace-write"\n'
NETWORK = "sandbox_workspace_write.network_access"
REFUSED = "setting_not_allowed"


async def client_of(server: HttpServer, role: RoleName, conversation: str | None = None) -> HttpClient:
    token = await server.create_token(f"{role}-{uuid4().hex[:8]}", role, conversation=conversation)
    return await server.client(token=token)


async def code_of(client: HttpClient, name: str, **arguments: Any) -> str:
    """Call a tool and return the code of the error; empty if the call succeeds."""
    result = (await client.post(tool(900, name, arguments), Accept="application/json")).json["result"]
    return str(result["structuredContent"].get("code", ""))


def message_to(conversation: str, **more: Any) -> dict[str, Any]:
    return {"conversation_id": conversation, "content": [{"type": "text", "text": "hello"}], **more}


async def say(client: HttpClient, conversation: str, **more: Any) -> str:
    """Send a message and return its id."""
    sent = await client.call("conversationSendMessage", **message_to(conversation, **more))
    return str(sent["message_id"])


async def until_turns_end(client: HttpClient, conversation: str, turns: int) -> None:
    seq = ended = 0
    while ended < turns:
        page = await client.call("conversationRead", conversation_id=conversation, after=seq, wait_seconds=5)
        seq, events = page["seq"], page["events"]
        ended += sum(one["msg"]["type"] == "task_complete" for one in events)


async def settings_of(server: HttpServer, conversation: str) -> tuple[str, str]:
    """Return the sandbox and the approval policy of a conversation."""
    listed = await (await client_of(server, "observer", conversation)).call("settingsList")
    return listed["sandbox"], listed["approval_policy"]


@pytest.mark.promises("roles.branches")
@pytest.mark.parametrize(
    ("loose", "strict"),
    [
        ({"sandbox": "danger-full-access"}, {"sandbox": "read-only"}),
        ({"approval_policy": "never"}, {"approval_policy": "untrusted"}),
        ({"approval_policy": "untrusted"}, {"approval_policy": "never"}),
        ({"cwd": "/"}, {"cwd": "/tmp"}),
        ({"config": {NETWORK: True}}, {"config": {NETWORK: False}}),
    ],
)
async def test_a_branch_and_a_fork_do_not_return_to_looser_settings(
    parley_model: ScriptedModel, tmp_path: Path, loose: dict[str, Any], strict: dict[str, Any]
) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config=CONFIG) as server:
        admin = await client_of(server, "admin")
        conversation = await admin.create(**loose)
        for _ in range(6):
            parley_model.says("Done.")
        first = await say(admin, conversation)
        await until_turns_end(admin, conversation, 1)
        second = await say(admin, conversation, **strict)
        await until_turns_end(admin, conversation, 2)
        driver, bound = await client_of(server, "driver"), await client_of(server, "driver", conversation)
        sends = [
            await code_of(one, "conversationSendMessage", **message_to(conversation, parent_message_id=parent))
            for one in (driver, bound)
            for parent in (first, conversation)
        ]
        forks = [
            await code_of(one, "conversationFork", conversation_id=conversation, at_message_id=first)
            for one in (driver, admin)
        ]
        kept = await code_of(driver, "conversationFork", conversation_id=conversation, at_message_id=second)
        await say(driver, conversation, parent_message_id=second)
        await until_turns_end(admin, conversation, 3)
        await say(admin, conversation, parent_message_id=first)

    assert sends == [REFUSED] * 4
    assert (forks, kept) == ([REFUSED, ""], "")


@pytest.mark.promises("roles.queue")
async def test_a_queued_message_begins_with_the_stricter_settings(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config=CONFIG) as server:
        admin = await client_of(server, "admin")
        conversation = await admin.create()
        driver = await client_of(server, "driver", conversation)
        parley_model.says("One", HOLD)
        await say(admin, conversation)
        await parley_model.wait_until_held()
        await say(admin, conversation, delivery="queue", sandbox="read-only", approval_policy="untrusted")
        await say(driver, conversation, delivery="queue", sandbox="workspace-write", approval_policy="on-request")
        for _ in range(2):
            parley_model.says("Done.")
        parley_model.release()
        await until_turns_end(admin, conversation, 3)

        assert await settings_of(server, conversation) == ("read-only", "untrusted")


@pytest.mark.promises("roles.settings")
@pytest.mark.parametrize("role", ["driver", "approver"])
async def test_within_a_sandbox_no_policy_is_as_strict_as_never(
    parley_model: ScriptedModel, tmp_path: Path, role: RoleName
) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config=NEVER) as server:
        client, work = await client_of(server, role), str(server.work)
        created = [
            await code_of(client, "conversationCreate", cwd=work, approval_policy=policy)
            for policy in ("untrusted", "on-request", "on-failure", "never")
        ]
        listed = await client.call("settingsList")

    assert created == [REFUSED, REFUSED, REFUSED, ""]
    assert listed["approval_policies"] == ["never"]


@pytest.mark.promises("roles.settings")
async def test_outside_a_sandbox_every_policy_is_as_strict_as_never(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    config = 'approval_policy = "never"\nsandbox_mode = "danger-full-access"\n'
    async with HttpServer(parley_model, tmp_path / "home", config=config) as server:
        driver = await client_of(server, "driver")
        conversation = await driver.create(cwd=str(server.work), sandbox="read-only", approval_policy="never")
        listed = await driver.call("settingsList")
        code = await code_of(
            driver, "conversationSendMessage", **message_to(conversation, approval_policy="on-request")
        )

    assert listed["approval_policies"] == ["untrusted", "on-request", "on-failure", "never"]
    assert code == REFUSED


@pytest.mark.promises("roles.settings")
async def test_a_conversation_keeps_a_policy_that_the_server_does_not_allow(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config=NEVER) as server:
        admin = await client_of(server, "admin")
        conversation = await admin.create(approval_policy="untrusted")
        driver = await client_of(server, "driver", conversation)
        listed = await driver.call("settingsList")
        code = await code_of(driver, "conversationSendMessage", **message_to(conversation, approval_policy="never"))

    assert (listed["approval_policies"], code) == (["untrusted"], REFUSED)


@pytest.mark.promises("roles.settings", "roles.bound")
async def test_a_driver_does_not_loosen_a_conversation_outside_the_roots(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    roots = [tmp_path / "roots" / name for name in ("a", "b")]
    for root in roots:
        root.mkdir(parents=True)
    config = f'{CONFIG}[serve]\nroots = ["{tmp_path / "roots"}"]\n'
    async with HttpServer(parley_model, tmp_path / "home", config=config) as server:
        admin, driver = await client_of(server, "admin"), await client_of(server, "driver")
        outside = await admin.create(cwd=str(tmp_path), sandbox="read-only", approval_policy="untrusted")
        inside = await admin.create(cwd=str(roots[0]))
        bound = await client_of(server, "driver", inside)
        loosened = [
            await code_of(driver, "conversationSendMessage", **message_to(outside, **looser))
            for looser in ({"sandbox": "workspace-write"}, {"approval_policy": "on-request"})
        ]
        moved = [
            await code_of(bound, "conversationSendMessage", **message_to(inside, cwd=str(root)))
            for root in reversed(roots)
        ]
        listed = await bound.call("settingsList")

    assert loosened == [REFUSED, REFUSED]
    assert moved == [REFUSED, ""]
    assert (listed["cwd"], listed["roots"]) == (str(roots[0]), [])


@pytest.mark.promises("queue.edit")
async def test_only_its_principal_or_an_admin_edits_a_queued_message_with_settings(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config=CONFIG) as server:
        admin, ada = await client_of(server, "admin"), await client_of(server, "driver")
        bob = await client_of(server, "driver")
        conversation = await admin.create()
        parley_model.says("One", HOLD)
        await say(admin, conversation)
        await parley_model.wait_until_held()
        plain = await say(admin, conversation, delivery="queue")
        with_settings = await say(ada, conversation, delivery="queue", sandbox="read-only")
        codes = [
            await code_of(one, "queueEdit", **message_to(conversation, message_id=message))
            for message in (plain, with_settings)
            for one in (bob, ada, admin, bob)
        ]
        await admin.call("conversationInterrupt", conversation_id=conversation)

    assert codes == ["", "", "", "", REFUSED, "", "", REFUSED]


@pytest.mark.promises("send.output-schema")
async def test_a_schema_for_the_answer_is_not_a_looser_setting(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config=CONFIG) as server:
        admin = await client_of(server, "admin")
        conversation = await admin.create()
        driver = await client_of(server, "driver", conversation)
        await say(driver, conversation, output_schema={"type": "object"})
        await until_turns_end(admin, conversation, 1)
        await say(driver, conversation)
        await until_turns_end(admin, conversation, 2)

    assert ["response_format" in request.body for request in parley_model.requests] == [True, False]

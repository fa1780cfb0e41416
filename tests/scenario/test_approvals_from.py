"""`[approvals] from`: which principals are asked for approvals, and whose answers count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.clients.approving import ApprovingClient, approving_client
from kit.clients.http_client import HttpClient, SseReader
from kit.clients.modern_client import ASKABLE, ModernHttpClient
from kit.clients.reading import until_state
from kit.clients.requests import tool
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from parley.ports.store import RoleName
from parley.testing import HOLD, ScriptedModel
from parley.wire.mcp import FULL_VERSION
from parley.wire.modern import TASKS_EXTENSION

ASKS = {"approval_policy": "untrusted", "sandbox": "danger-full-access"}
ELICITS: dict[str, Any] = {"elicitation": {}}
TASKS: dict[str, Any] = {**ASKABLE, "extensions": {TASKS_EXTENSION: {}}}


def config_of(answers_from: str, more: str = "") -> str:
    return f'[mcp]\nmodern = true\n[approvals]\nmodel_may_answer = true\nfrom = "{answers_from}"\n{more}'


@asynccontextmanager
async def serving(model: ScriptedModel, home: Path, config: str) -> AsyncIterator[HttpServer]:
    async with HttpServer(model, home, config=config) as server:
        yield server


async def client_of(server: HttpServer, name: str, role: RoleName = "approver", **options: Any) -> HttpClient:
    return await server.client(token=await server.create_token(name, role), capabilities=ELICITS, **options)


@asynccontextmanager
async def modern_client(
    server: HttpServer, name: str, role: RoleName = "approver", capabilities: Any = ASKABLE
) -> AsyncIterator[ModernHttpClient]:
    token = await server.create_token(name, role)
    async with ModernHttpClient(server.url, token=token, capabilities=capabilities) as client:
        yield client


@asynccontextmanager
async def watching(client: HttpClient, conversation: str) -> AsyncIterator[SseReader]:
    """Stream a conversation to a client that can be asked."""
    async with client.stream() as stream:
        await client.call("conversationStream", conversation_id=conversation)
        await stream.wait_for_message("notifications/initial_state")
        yield stream


@asynccontextmanager
async def local_client(model: ScriptedModel, server: HttpServer, config: str) -> AsyncIterator[ApprovingClient]:
    """Start another server process of the home, with a client on stdio."""
    async with approving_client(model, version=FULL_VERSION, home=server.files.path, config=config) as client:
        yield client


async def until_asking(client: HttpClient, conversation: str) -> str:
    """Wait until the conversation asks, and return the id of the approval."""
    await until_state(client, conversation, "asking")
    (listed,) = (await client.call("approvalsList"))["approvals"]
    return str(listed["approval_id"])


async def refusal(client: HttpClient, approval: str) -> tuple[str, str]:
    """Try to approve, and return the code and the message of the failure."""
    arguments = {"approval_id": approval, "decision": "approved"}
    result = (await client.post(tool(1, "approvalAnswer", arguments))).json["result"]
    return result["structuredContent"].get("code", ""), result["structuredContent"].get("message", "")


def is_asked(events: SseReader) -> bool:
    return any(event.message.get("method") == "elicitation/create" for event in events.events)


@pytest.mark.promises("approvals.from")
async def test_a_designated_principal_is_the_one_that_began_the_turn(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    config = config_of("designated")
    async with serving(parley_model, tmp_path / "home", config) as server:
        ada, bob = await client_of(server, "ada"), await client_of(server, "bob", "admin")
        conversation = await bob.create(cwd=str(server.work), **ASKS)
        parley_model.says(sh("c1", "touch made"))
        parley_model.says("Done.")
        async with (
            local_client(parley_model, server, config) as local,
            watching(ada, conversation) as to_ada,
            watching(bob, conversation) as to_bob,
        ):
            await local.open_stream(conversation)
            await ada.say(conversation, "go")
            asked = await to_ada.wait_for_message("elicitation/create")
            approval = asked["params"]["parley_approval_id"]
            refused = await refusal(bob, approval)
            number = local.call("approvalAnswer", approval_id=approval, decision="approved")
            by_local = (await local.until_answer(number))[-1]["result"]["structuredContent"]
            await ada.post({"jsonrpc": "2.0", "id": asked["id"], "result": {"decision": "approved"}})
            settled = (await to_bob.wait_for_message("approval_settled"))["params"]["msg"]
            heard = await local.until_method("task_complete")

            message = 'Only ada, which began the turn, may answer this approval (approvals.from = "designated")'
            assert refused == ("may_not_answer", message)
            assert by_local == {"status": "error", "message": message, "code": "may_not_answer"}
            assert (settled["decision"], settled["principal"]) == ("approved", "ada")
            assert not is_asked(to_bob)
            assert "elicitation/create" not in [one.get("method") for one in heard]
        assert (server.work / "made").exists()


@pytest.mark.promises("approvals.from")
async def test_only_local_clients_answer_if_the_setting_says_so(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    config = config_of("local")
    async with serving(parley_model, tmp_path / "home", config) as server:
        ada = await client_of(server, "ada", "admin")
        conversation = await ada.create(**ASKS)
        parley_model.says(sh("c1", "touch made"))
        parley_model.says("Done.")
        async with local_client(parley_model, server, config) as local, watching(ada, conversation) as to_ada:
            await local.open_stream(conversation)
            await ada.say(conversation, "go")
            asked = (await local.until_asked())[-1]
            refused = await refusal(ada, asked["params"]["parley_approval_id"])
            local.answer(asked["id"], {"decision": "denied"})
            settled = (await to_ada.wait_for_message("approval_settled"))["params"]["msg"]
            await to_ada.wait_for_message("task_complete")

            assert refused == (
                "may_not_answer",
                'Only local clients may answer this approval (approvals.from = "local")',
            )
            assert (settled["decision"], settled["principal"], settled["by"]) == ("denied", "local", "client")
            assert not is_asked(to_ada)


@pytest.mark.promises("approvals.from", "approvals.no-client")
async def test_a_client_that_may_not_answer_does_not_stop_the_timeout(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    config = config_of("local", "timeout_seconds = 1\n")
    async with serving(parley_model, tmp_path / "home", config) as server:
        ada = await client_of(server, "ada", "admin")
        async with local_client(parley_model, server, config) as local:
            # The turn runs in the other process. Ada's process tells it that no client can be asked.
            conversation = await local.create(**ASKS)
            parley_model.says(sh("c1", "touch made"))
            parley_model.says("Done.")
            async with watching(ada, conversation) as to_ada:
                await local.say(conversation, "go")
                settled = (await to_ada.wait_for_message("approval_settled"))["params"]["msg"]

    assert (settled["decision"], settled["by"]) == ("timed_out", "timeout")
    assert not is_asked(to_ada)


@pytest.mark.promises("principals.identity", "approvals.from")
async def test_a_new_token_of_the_same_name_is_another_principal(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with serving(parley_model, tmp_path / "home", config_of("designated")) as server:
        ada = await client_of(server, "ada", "admin")
        conversation = await ada.create(**ASKS)
        parley_model.says(sh("c1", "touch made"))
        await ada.say(conversation, "go")
        approval = await until_asking(ada, conversation)
        await server.revoke_token("ada")
        again = await client_of(server, "ada", "admin")

        assert (await refusal(again, approval))[0] == "may_not_answer"
        assert await until_asking(again, conversation) == approval


@pytest.mark.promises("approvals.from", "modern.task-get")
async def test_a_task_asks_and_hears_only_the_principal_that_began_it(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with (
        serving(parley_model, tmp_path / "home", config_of("designated")) as server,
        modern_client(server, "ada", "admin", TASKS) as ada,
        modern_client(server, "bob", "admin", TASKS) as bob,
    ):
        parley_model.says(sh("c1", "touch made"))
        parley_model.says("Done.")
        settings = {"approval-policy": "untrusted", "sandbox": "danger-full-access"}
        async with ada.call_stream("codex", prompt="go", **settings) as stream:
            task = (await stream.rest())[-1]["result"]["taskId"]
        conversation = task.split(".")[0]
        approval = await until_asking(ada, conversation)
        requests = [
            (await client.ask("tasks/get", {"taskId": task})).json["result"]["inputRequests"]
            for client in (ada, bob)
        ]
        answers = {approval: {"action": "accept", "content": {"decision": "denied"}}}
        refused = (await bob.ask("tasks/update", {"taskId": task, "inputResponses": answers})).json["error"]
        accepted = (await ada.ask("tasks/update", {"taskId": task, "inputResponses": answers})).json["result"]

        assert [list(one) for one in requests] == [[approval], []]
        assert (refused["code"], refused["data"]["code"]) == (-32602, "may_not_answer")
        assert accepted["resultType"] == "complete"


@pytest.mark.promises("approvals.from", "roles.approvals")
@pytest.mark.parametrize(
    ("answers_from", "role", "is_asked"),
    [
        ("anyone", "admin", True),
        ("anyone", "driver", False),
        ("designated", "admin", True),
        ("designated", "driver", False),
        ("local", "admin", False),
    ],
)
async def test_a_call_at_2026_07_28_ends_with_an_approval_only_if_its_principal_may_answer(
    parley_model: ScriptedModel, tmp_path: Path, answers_from: str, role: RoleName, is_asked: bool
) -> None:
    config = config_of(answers_from, 'when_nobody = "return"\n')
    async with serving(parley_model, tmp_path / "home", config) as server:
        admin = await client_of(server, "admin", "admin")
        conversation = await admin.create(**ASKS)
        parley_model.says(sh("c1", "touch made"))
        async with (
            modern_client(server, "ada", role) as ada,
            ada.call_stream("codex-reply", prompt="go", threadId=conversation) as stream,
        ):
            result = (await stream.rest())[-1]["result"]

    asked = {"complete": False, "input_required": True}[result["resultType"]]
    assert asked is is_asked
    if not asked:
        assert "a person has to answer it from another client" in result["content"][0]["text"]


@pytest.mark.promises("approvals.session-principal")
@pytest.mark.parametrize(("answers_from", "is_asked"), [("anyone", False), ("designated", True)])
async def test_an_approval_for_the_session_holds_where_its_principal_may_answer(
    parley_model: ScriptedModel, tmp_path: Path, answers_from: str, is_asked: bool
) -> None:
    config = config_of(answers_from)
    async with serving(parley_model, tmp_path / "home", config) as server:
        ada = await client_of(server, "ada", "admin")
        conversation = await ada.create(cwd=str(server.work), **ASKS)
        for words in ("one", "two"):
            parley_model.says(sh(words, "echo again >> made"))
            parley_model.says("Done.")
        async with local_client(parley_model, server, config) as local:
            await ada.say(conversation, "go")
            approval = await until_asking(ada, conversation)
            await ada.call("approvalAnswer", approval_id=approval, decision="approved_for_session")
            await until_state(ada, conversation, "idle")
            await local.open_stream(conversation)
            await local.say(conversation, "again")
            heard = await local.until(
                lambda message: message.get("method") in ("elicitation/create", "task_complete")
            )
            exported = server.server.store
            records = [
                entry.encoded
                for entry in await exported.read(conversation, after=0, limit=1000)  # type: ignore[arg-type]  # any id
                if entry.type == "session_granted"
            ]

    assert (heard[-1]["method"] == "elicitation/create") is is_asked
    assert len(records) == 1
    assert b'"principal":"ada"' in records[0]


@pytest.mark.promises("approvals.session-principal", "principals.queue")
@pytest.mark.parametrize("way", ["own", "edit", "join"])
async def test_an_approval_for_the_session_does_not_hold_for_the_text_of_another_principal(
    parley_model: ScriptedModel, tmp_path: Path, way: str
) -> None:
    async with serving(parley_model, tmp_path / "home", config_of("designated")) as server:
        ada, bob = await client_of(server, "ada", "admin"), await client_of(server, "bob", "driver")
        conversation = await ada.create(cwd=str(server.work), **ASKS)
        message = {"conversation_id": conversation, "content": [{"type": "text", "text": "deploy"}]}
        parley_model.says(sh("one", "echo again >> made"))
        parley_model.says("Done.")
        await ada.say(conversation, "go")
        approval = await until_asking(ada, conversation)
        await ada.call("approvalAnswer", approval_id=approval, decision="approved_for_session")
        await until_state(ada, conversation, "idle")
        parley_model.says("Wait", HOLD)
        await ada.say(conversation, "next")
        await parley_model.wait_until_held()
        if way == "join":
            await bob.call("conversationSendMessage", **message)
        else:
            queued = (await ada.call("conversationSendMessage", delivery="queue", **message))["message_id"]
            if way == "edit":
                await bob.call("queueEdit", message_id=queued, **message)
        parley_model.says(sh("two", "echo again >> made"))
        parley_model.says("Done.")
        parley_model.release()
        if way == "own":
            while (server.work / "made").read_text() != "again\nagain\n":
                await ada.call("conversationRead", conversation_id=conversation, wait_seconds=1)
        else:
            await until_asking(ada, conversation)

            assert (server.work / "made").read_text() == "again\n"


async def open_approval(client: HttpClient, conversation: str) -> str:
    """Wait for an approval without counting as a reader, and return its id."""
    while not (found := (await client.call("conversationStatus", conversation_id=conversation))["questions"]):
        pass
    return str(found[0]["approval_id"])


async def held_limit(model: ScriptedModel, admin: HttpClient) -> tuple[str, str]:
    """Begin an unattended turn that reaches a limit. Return the conversation and the id of the approval."""
    conversation = await admin.create()
    model.says(sh("c1", "true"), sh("c2", "true"))
    model.says("Done.")
    await admin.say(conversation, "go")
    return conversation, await open_approval(admin, conversation)


@pytest.mark.promises("limits.held")
@pytest.mark.parametrize(
    ("role", "on_timeout", "is_denied"),
    [
        ("observer", "hold", False),
        ("observer", "deny", False),
        ("driver", "hold", False),
        ("driver", "deny", True),
        ("approver", "hold", True),
    ],
)
async def test_an_older_client_that_may_not_answer_does_not_end_a_held_turn(
    parley_model: ScriptedModel, tmp_path: Path, role: RoleName, on_timeout: str, is_denied: bool
) -> None:
    config = f'[limits]\nturn_calls = 1\n[approvals]\non_timeout = "{on_timeout}"\n'
    async with serving(parley_model, tmp_path / "home", config) as server:
        ada = await client_of(server, "ada", "admin")
        conversation, approval = await held_limit(parley_model, ada)
        reader = await client_of(server, "eve", role, version="2025-06-18")
        async with reader.stream() as events:
            await reader.post(tool(5, "conversationStream", {"conversation_id": conversation}))
            await events.wait_for_message("notifications/initial_state")
            if is_denied:
                await events.wait_for_message("task_complete")
            code = (await refusal(ada, approval))[0]

    assert code == ("approval_settled" if is_denied else "")


@pytest.mark.promises("approvals.no-client")
async def test_an_observer_does_not_start_the_timeout(parley_model: ScriptedModel, tmp_path: Path) -> None:
    config = config_of("anyone", "timeout_seconds = 1\n")
    async with serving(parley_model, tmp_path / "home", config) as server:
        ada, bob = await client_of(server, "ada", "admin"), await client_of(server, "bob", "driver")
        eve = await client_of(server, "eve", "observer")
        conversations = [await ada.create(cwd=str(server.work), **ASKS) for _ in range(2)]
        for conversation in conversations:
            parley_model.says(sh("c1", "touch made"))
            await ada.say(conversation, "go")
            await open_approval(ada, conversation)
        parley_model.says("Done.")
        observed, driven = conversations
        async with watching(eve, observed):
            await eve.call("conversationRead", conversation_id=observed)
            async with watching(bob, driven) as to_bob:  # the timeout of the other approval ends earlier
                settled = (await to_bob.wait_for_message("approval_settled"))["params"]["msg"]
            status = await ada.call("conversationStatus", conversation_id=observed)

    assert settled["decision"] == "timed_out"
    assert len(status["questions"]) == 1

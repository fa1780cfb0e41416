"""Ten HTTP clients answer the same approval at once: the approval is settled once, and all clients learn how."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from kit.clients.http_client import HttpClient, SseReader
from kit.clients.reading import until_state
from kit.clients.requests import tool
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.commands import TIMEOUT_SECONDS
from parley.testing import RecordedRequest, Reply, Says, ScriptedModel

CLIENTS = 10
ASKS = {"approval_policy": "untrusted", "sandbox": "workspace-write"}
DECISIONS = ("approved", "denied")


def reply(request: RecordedRequest) -> Reply:
    is_first = request.body["messages"][-1]["role"] == "user"
    return Says((sh("c1", "touch made"),)) if is_first else Says(("Done.",))


class Racer:
    """One of the clients, with its GET stream."""

    def __init__(self, number: int, client: HttpClient, stream: SseReader) -> None:
        self._client, self._stream = client, stream
        self._decision, self._uses_tool = DECISIONS[number % 2], number % 4 >= 2

    async def asked(self) -> Any:
        return await self._stream.wait_for_message("elicitation/create")

    async def answer(self, approval: Any) -> bool | None:
        """Answer through the elicitation or a tool.

        Return whether this answer settled the approval, according to the tool.
        """
        if not self._uses_tool:
            result = {"action": "accept", "content": {"decision": self._decision}}
            await self._client.post({"jsonrpc": "2.0", "id": approval["id"], "result": result})
            return None
        approval_id = approval["params"]["_meta"]["parley_approval_id"]
        arguments = {"approval_id": approval_id, "decision": self._decision}
        answered = (await self._client.post(tool("answer", "approvalAnswer", arguments))).json["result"]
        return not answered.get("isError")

    async def settlement(self) -> Any:
        return (await self._stream.wait_for_message("approval_settled"))["params"]["msg"]

    async def turn_ended(self) -> None:
        await self._stream.wait_for_message("task_complete")


async def race(model: ScriptedModel, home: Path, *, rounds: int) -> None:
    model.set_handler(reply)
    config = "[serve]\nrequests_per_second = 0\n"
    async with HttpServer(model, home, config=config) as server, AsyncExitStack() as stack:
        clients = [await server.client(capabilities={"elicitation": {}}) for _ in range(CLIENTS)]
        conversation = await clients[0].create(cwd=str(server.work), **ASKS)
        racers = []
        for number, client in enumerate(clients):
            await client.call("conversationStream", conversation_id=conversation)
            racers.append(Racer(number, client, await stack.enter_async_context(client.stream())))
        for number in range(rounds):
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await clients[0].say(conversation, f"round {number}")
                approvals = await asyncio.gather(*(racer.asked() for racer in racers))
                pairs = zip(racers, approvals, strict=True)
                by_tool = await asyncio.gather(*(racer.answer(approval) for racer, approval in pairs))
                settled = await asyncio.gather(*(racer.settlement() for racer in racers))
                await asyncio.gather(*(racer.turn_ended() for racer in racers))
                await until_state(clients[0], conversation, "idle")

            assert sum(one is True for one in by_tool) <= 1
            assert settled == [settled[0]] * CLIENTS
            assert (server.work / "made").exists() == (settled[0]["decision"] == "approved")
            (server.work / "made").unlink(missing_ok=True)
        settlements, after = [], 0
        while True:
            page = await clients[0].call("conversationRead", conversation_id=conversation, after=after, limit=1000)
            settlements += [one["msg"] for one in page["events"] if one["msg"]["type"] == "approval_settled"]
            if page["seq"] == after or not page["events"]:
                break
            after = page["events"][-1]["seq"]

    assert len({one["approval_id"] for one in settlements}) == len(settlements) == rounds


@pytest.mark.promises("approvals.once", "approvals.everybody")
async def test_ten_clients_race_for_one_answer(parley_model: ScriptedModel, tmp_path: Path) -> None:
    await race(parley_model, tmp_path / "home", rounds=10)


@pytest.mark.long
async def test_ten_clients_race_for_one_answer_1000_times(parley_model: ScriptedModel, tmp_path: Path) -> None:
    await race(parley_model, tmp_path / "home", rounds=1000)

"""A `WireClient` that can be asked for approvals, and answers when the test calls `answer`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final, Unpack

from kit.clients.messages import answered
from kit.clients.shell_turns import shell
from kit.clients.wire_client import WireClient
from parley.testing import RawParley, ScriptedModel
from parley.testing.home import ServerOptions
from parley.wire.mcp import PLAIN_VERSION

__all__ = [
    "ASKS_FIRST",
    "DENIED",
    "ApprovingClient",
    "approving_client",
    "asking",
    "events_of",
    "last_output",
    "open_approval",
    "settlements",
    "types_of",
]

ASKS_FIRST: Final = {"approval_policy": "untrusted", "sandbox": "danger-full-access"}
"""Settings with which every command that is not known to be safe needs an approval. No sandbox is used."""

DENIED: Final = "exec command rejected by user"
"""The output, for the model, of a command that was denied."""

FIRST_ID: Final = 100
"""The first id of the client's requests. The server's requests begin at 0, so no id is used by both."""


class ApprovingClient(WireClient):
    """A client that can be asked. Created by `approving_client`."""

    def __init__(self, raw: RawParley, capabilities: object) -> None:
        super().__init__(raw)
        self._capabilities = capabilities
        self._ids = count(FIRST_ID)

    async def initialize(self, version: str) -> None:
        info = {"name": "asked", "version": "1"}
        params = {"protocolVersion": version, "capabilities": self._capabilities, "clientInfo": info}
        self.initialize_result = await self.result_of(self.request("initialize", params))

    def codex(self, prompt: str = "go", **more: Any) -> int:
        """Call `codex`, by default with settings that require approvals; return the id of the request."""
        settings = {name.replace("_", "-"): value for name, value in ASKS_FIRST.items()}
        return self.call("codex", **{"prompt": prompt, "cwd": str(self.work), **settings, **more})

    def answer(self, request_id: object, result: object) -> None:
        """Answer an approval request."""
        self._send({"jsonrpc": "2.0", "id": request_id, "result": result})

    async def until_asked(self) -> list[Any]:
        """Return all messages up to and including the next approval request."""
        return await self.until_method("elicitation/create")

    async def value_after(self, request_id: int) -> Any:
        """Return the value of a typed result; skip the messages before it."""
        return (await self.until_answer(request_id))[-1]["result"]["structuredContent"]

    async def interrupt(self, conversation: str) -> list[Any]:
        """Interrupt the turn of a streamed conversation; return all messages up to its end."""
        request_id = self.call("conversationInterrupt", conversation_id=conversation)
        messages = await self.until_method("error")
        if answered(request_id, {"status": "ok"}) not in messages:
            messages += await self.until_answer(request_id)
        return messages


@asynccontextmanager
async def approving_client(
    model: ScriptedModel,
    *,
    version: str = PLAIN_VERSION,
    capabilities: object = None,
    **options: Unpack[ServerOptions],
) -> AsyncIterator[ApprovingClient]:
    """Start a server with a client that can be asked, unless its capabilities say otherwise."""
    async with RawParley(model, **options) as raw:
        speaker = ApprovingClient(raw, {"elicitation": {}} if capabilities is None else capabilities)
        await speaker.initialize(version)
        yield speaker


async def asking(client: ApprovingClient, model: ScriptedModel) -> tuple[str, int]:
    """Start a streamed conversation that waits for an approval; return the ids of the conversation and of the
    message.
    """
    model.says(shell("c1", "touch", "a"))
    conversation = await client.create(**ASKS_FIRST)
    await client.open_stream(conversation)
    message = await client.say(conversation, "go")
    await client.until_asked()
    return conversation, message


async def open_approval(client: ApprovingClient) -> str:
    """Return the id of the only open approval."""
    (listed,) = (await client.value_of(client.call("approvalsList")))["approvals"]
    return str(listed["approval_id"])


def last_output(model: ScriptedModel) -> Any:
    """Return the output of the last call that the model got."""
    return model.requests[-1].body["messages"][-1]["content"]


def events_of(messages: list[Any]) -> list[Any]:
    """Return the events of a stream or a call, without duplicates."""
    return [
        message["params"]["msg"]
        for message in messages
        if "msg" in message.get("params", {}) and message["method"] != "codex/event"
    ]


def types_of(messages: list[Any]) -> list[str]:
    """Return the types of events, the methods of other messages, and `answer` for answers, in order."""
    return [message.get("method", "answer") for message in messages if message.get("method") != "codex/event"]


def settlements(messages: list[Any]) -> list[Any]:
    """Return the `approval_settled` events, without their ids and principals."""
    left_out = ("type", "approval_id", "call_id", "principal")
    return [
        {key: value for key, value in event.items() if key not in left_out}
        for event in events_of(messages)
        if event["type"] == "approval_settled"
    ]

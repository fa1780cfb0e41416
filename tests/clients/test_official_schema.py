"""Every result and notification of the server fits the schema of its protocol version in the official library."""

from __future__ import annotations

from typing import Any

from mcp_types.methods import SERVER_NOTIFICATIONS, validate_server_result

from kit.clients.modern_client import ASKABLE, speaking_modern
from kit.clients.shell_turns import shell
from kit.clients.wire_client import WireClient, speaking
from parley.testing import ScriptedModel
from parley.wire.mcp import FULL_VERSION
from parley.wire.modern import MODERN_VERSION

ASKS = {"approval-policy": "untrusted", "sandbox": "workspace-write"}
LIST = "parley://conversations"
OWN = {"notifications/initial_state", "notifications/stream_disconnected"}
"""The notifications of Parley's own whose names begin like those of MCP."""


class Checked:
    """The requests of a client, and the messages that the server sent."""

    def __init__(self, client: WireClient, version: str) -> None:
        self._client, self._version = client, version
        self._methods: dict[int, str] = {}
        self.checked: set[str] = set()
        """The methods of all messages that fit their schema."""

    def send(self, method: str, **params: Any) -> int:
        number = self._client.request(method, params)
        self._methods[number] = method
        return number

    async def result(self, method: str, **params: Any) -> Any:
        messages = await self._client.until_answer(self.send(method, **params))
        for message in messages:
            self.check(message)
        return messages[-1]["result"]

    def check(self, message: Any) -> None:
        """Check a message, unless it is a notification of Parley's own."""
        if "result" in message:
            method = self._methods[message["id"]]
            validate_server_result(method, self._version, message["result"])
        else:
            method = message["method"]
            if (kind := SERVER_NOTIFICATIONS.get((method, self._version))) is None:
                assert not method.startswith("notifications/") or method in OWN, message
                return
            kind.model_validate(message, by_name=False)
        self.checked.add(method)


async def use(client: Checked, conversation: str) -> None:
    """Use the methods that both versions have."""
    address = f"{LIST}/{conversation}"
    ref = {"type": "ref/resource", "uri": f"{LIST}/{{id}}"}
    await client.result("tools/list")
    await client.result("resources/list")
    await client.result("resources/templates/list")
    for uri in (LIST, address, f"{address}/json", f"{address}/diff", "parley://attention"):
        await client.result("resources/read", uri=uri)
    await client.result("prompts/list")
    await client.result("prompts/get", name="review-changes", arguments={"conversation": conversation})
    await client.result("completion/complete", ref=ref, argument={"name": "id", "value": ""})
    for tool in ("conversationsList", "attentionList", "approvalsList", "settingsList"):
        await client.result("tools/call", name=tool, arguments={})
    await client.result("tools/call", name="conversationStatus", arguments={"conversation_id": "x"})


async def test_everything_at_2026_07_28_fits(parley_model: ScriptedModel) -> None:
    parley_model.says(shell("c1", "touch", "made"))
    parley_model.says("Done.")
    async with speaking_modern(parley_model, capabilities=ASKABLE) as wire:
        client = Checked(wire, MODERN_VERSION)
        await client.result("server/discover")
        filter_ = {"resourcesListChanged": True, "resourceSubscriptions": [LIST]}
        listener = client.send("subscriptions/listen", notifications=filter_)
        call = {"name": "codex", "arguments": {"prompt": "go", **ASKS}}
        asked = await client.result("tools/call", **call, _meta={"progressToken": "p"})
        [key] = asked["inputRequests"]
        answers = {key: {"action": "accept", "content": {"decision": "approved"}}}
        more = {"inputResponses": answers, "requestState": asked["requestState"]}
        done = await client.result("tools/call", **call, **more)
        conversation = done["structuredContent"]["threadId"]
        await use(client, conversation)
        stream = client.send("tools/call", name="conversationStream", arguments={"conversation_id": conversation})
        for message in await wire.until_method("notifications/initial_state"):
            client.check(message)
        while "notifications/resources/list_changed" not in client.checked:
            client.check(await wire.read())
        await wire.raw.process.close()
        left = {listener, stream}
        while left:
            message = await wire.read()
            client.check(message)
            left.discard(message.get("id"))

    assert asked["resultType"] == "input_required"
    assert client.checked >= {
        "completion/complete",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
        "notifications/subscriptions/acknowledged",
        "prompts/get",
        "resources/read",
        "server/discover",
        "subscriptions/listen",
        "tools/call",
    }


async def test_everything_at_2025_11_25_fits(parley_model: ScriptedModel) -> None:
    parley_model.says("Done.")
    async with speaking(parley_model, version=FULL_VERSION) as wire:
        client = Checked(wire, FULL_VERSION)
        call = {"name": "codex", "arguments": {"prompt": "go"}}
        done = await client.result("tools/call", **call, _meta={"progressToken": "p"})
        await client.result("logging/setLevel", level="info")
        await client.result("resources/subscribe", uri=LIST)
        await use(client, done["structuredContent"]["threadId"])
        await client.result("resources/unsubscribe", uri=LIST)
        await client.result("ping")

    assert client.checked >= {"completion/complete", "prompts/get", "resources/subscribe", "tools/call"}

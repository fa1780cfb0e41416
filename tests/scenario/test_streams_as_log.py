"""A stream as log messages: the same payloads in the same order, in the envelope of MCP log messages."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kit.clients.approving import ASKS_FIRST, approving_client
from kit.clients.messages import CAPABILITIES
from kit.clients.shell_turns import shell
from kit.clients.wire_client import WireClient, speaking
from parley.testing import HOLD, Pieces, ScriptedModel
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

both_versions = pytest.mark.parametrize("version", [FULL_VERSION, PLAIN_VERSION])


def unwrapped(message: Any) -> Any:
    """Return the notification in a log message."""
    assert message["method"] == "notifications/message"
    assert list(message["params"]) == ["level", "logger", "data"]
    assert (message["params"]["level"], message["params"]["logger"]) == ("info", "parley.conversation")
    return {"jsonrpc": "2.0", **message["params"]["data"]}


async def until_logged(client: WireClient, method: str) -> list[Any]:
    """Return all messages up to and including a log message for a notification with this method."""

    def is_it(message: Any) -> bool:
        return bool(message.get("params", {}).get("data", {}).get("method") == method)

    return await client.until(is_it)


async def set_level(client: WireClient, level: str) -> None:
    assert await client.result_of(client.request("logging/setLevel", {"level": level})) == {}


@pytest.mark.promises("stream.as-log")
@both_versions
async def test_a_log_stream_has_the_payloads_of_a_plain_one(parley_model: ScriptedModel, version: str) -> None:
    """Two clients of one server get the same payloads, one as log messages and one as notifications."""
    seen: list[list[Any]] = []
    for given in ({}, {"as": "log"}):
        parley_model.says(Pieces("Hello, world", 5), shell("c1", "echo", "said"))
        parley_model.says(HOLD, "Done")
        async with speaking(parley_model, version=version) as client:
            conversation = await client.create()
            message = "9d9a1b8e-6a53-49cb-bd0f-6a3a1a1f6a01"
            _, first = await client.open_stream(conversation, **given)
            await client.say(conversation, "go", message_id=message)
            await parley_model.wait_until_held()
            wait = until_logged if given else WireClient.until_method
            received = await wait(client, "exec_command_end")
            with client.at_once():
                again = client.stream(conversation, **given)
            answer, ended, snapshot = await client.take(3)
            assert answer["id"] == again
            parley_model.release()
            received += [ended, snapshot, *await wait(client, "task_complete")]
            client.raw.close_stdin()
            received.append(await client.read())
            messages = [first, *received]
            if given:
                messages = [unwrapped(one) for one in messages]
            seen.append([comparable(one, conversation) for one in messages])

    plain, logged = seen
    assert logged == plain
    assert [one["method"] for one in plain][-1] == "notifications/stream_disconnected"
    assert [one["method"] for one in plain].count("notifications/initial_state") == 2


def comparable(message: Any, conversation: str) -> Any:
    """Return a message without values that differ between runs: ids, durations and the directory."""
    match message:
        case dict():
            return {
                key: comparable(value, conversation)
                for key, value in message.items()
                if key not in ("duration", "cwd")
            }
        case list():
            return [comparable(value, conversation) for value in message]
        case str() if message == conversation:
            return "the conversation"
        case _:
            return message


@pytest.mark.promises("stream.as-log", "stream.conversation-id", "stream.take-over")
async def test_log_streams_and_plain_ones_stand_side_by_side(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        one, other = await client.create(), await client.create()
        await client.open_stream(one, **{"as": "log"})
        await client.open_stream(other)
        client.message(one, "go")
        logged = await until_logged(client, "task_complete")
        client.message(other, "go")
        plain = await client.until_method("task_complete")
        taken = client.stream(one)
        answer, ended, snapshot = await client.take(3)

        its = [unwrapped(message)["params"]["_meta"] for message in logged if "method" in message]
        assert its == [{"conversationId": one}] * len(its)
        assert plain[-1]["params"]["_meta"] == {"conversationId": other}
        assert "notifications/message" not in [message.get("method") for message in plain]
        assert answer["id"] == taken
        assert unwrapped(ended) == {
            "jsonrpc": "2.0",
            "method": "notifications/stream_disconnected",
            "params": {"_meta": {"conversationId": one}, "reason": "New stream() took over"},
        }
        assert snapshot["method"] == "notifications/initial_state"


@pytest.mark.promises("stream.as-log", "stream.pause")
async def test_a_log_stream_is_paused_like_any_other(parley_model: ScriptedModel) -> None:
    parley_model.says("par", HOLD, "tial")
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        stream, _ = await client.open_stream(conversation, **{"as": "log"})
        await client.say(conversation, "go")
        await until_logged(client, "agent_message_delta")
        client.cancel(stream)
        assert await client.meanwhile() == []
        parley_model.release()
        await client.over(conversation)

        _, snapshot = await client.open_stream(conversation, **{"as": "log"})
        events = unwrapped(snapshot)["params"]["initial_state"]["events"]
        assert [one["msg"]["type"] for one in events][-2:] == ["agent_message", "task_complete"]


@pytest.mark.promises("stream.as-log")
async def test_a_client_with_a_log_stream_is_asked(parley_model: ScriptedModel) -> None:
    parley_model.says(shell("c1", "touch", "a"))
    async with approving_client(parley_model, version=FULL_VERSION) as client:
        created = client.call("conversationCreate", cwd=str(client.work), **ASKS_FIRST)
        conversation = (await client.value_of(created))["conversation_id"]
        await client.open_stream(conversation, **{"as": "log"})
        await set_level(client, "error")
        await client.say(conversation, "go")
        asked = await client.read()  # the level hides all other messages
        client.answer(asked["id"], {"decision": "approved"})
        await client.over(conversation)

        assert asked["method"] == "elicitation/create"
        assert [path.name for path in client.work.iterdir()] == ["a"]


# --- levels -------------------------------------------------------------------------------


@pytest.mark.promises("logging.level", "stream.log-level")
async def test_a_level_above_info_silences_a_log_stream_and_nothing_else(parley_model: ScriptedModel) -> None:
    parley_model.says("One")
    parley_model.says("Two")
    async with speaking(parley_model, version=FULL_VERSION) as client:
        one, other = await client.create(), await client.create()
        await client.open_stream(one, **{"as": "log"})
        await client.open_stream(other)
        await set_level(client, "notice")
        await client.say(one, "go")
        await client.over(one)
        client.message(other, "go")
        received = await client.until_method("task_complete")
        await set_level(client, "debug")
        client.message(one, "again")
        again = await until_logged(client, "task_complete")

        assert "notifications/message" not in [message.get("method") for message in received]
        first = next(message for message in again if "method" in message)
        # suppressed messages are not sent later
        assert unwrapped(first)["params"]["msg"] == {"type": "task_started"}
        assert unwrapped(again[-1])["params"]["msg"]["last_agent_message"] == "Done"


@pytest.mark.promises("stream.log-level")
async def test_a_text_that_was_partly_silenced_is_whole_in_the_end(parley_model: ScriptedModel) -> None:
    parley_model.says("One, ", HOLD, "two, ", HOLD, "three")
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await client.open_stream(conversation, **{"as": "log"})
        await client.say(conversation, "go")
        await until_logged(client, "agent_message_delta")
        await set_level(client, "emergency")
        await parley_model.wait_until_held()
        parley_model.release()
        await parley_model.wait_until_held()
        opened: list[Any] = []
        while not opened or opened[0]["text"] != "One, two, ":
            opened = (await client.value_of(client.call("conversationRead", conversation_id=conversation)))["open"]
        await set_level(client, "info")
        parley_model.release()
        last, message, *_ = [unwrapped(one) for one in await until_logged(client, "task_complete")]

        assert (last["params"]["_meta"]["offset"], last["params"]["msg"]["delta"]) == (len("One, two, "), "three")
        assert message["params"]["msg"] == {"type": "agent_message", "message": "One, two, three"}


@pytest.mark.promises("logging.level")
async def test_every_level_of_mcp_is_taken_and_no_other(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        for level in LEVELS:
            await set_level(client, level)
        for params in ({"level": "loud"}, {"level": 3}, {"level": None}, {}, {"level": "INFO"}):
            refused = client.request("logging/setLevel", params)
            answer = await client.read()
            assert (answer["id"], answer["error"]["code"]) == (refused, -32602)


@pytest.mark.promises("logging.older")
@pytest.mark.parametrize("version", ["2025-06-18", "2025-03-26", "2024-11-05"])
async def test_older_clients_know_no_levels(parley_model: ScriptedModel, version: str) -> None:
    async with speaking(parley_model, version=version) as client:
        refused = client.request("logging/setLevel", {"level": "error"})

        error = {"code": -32601, "message": "method not found: logging/setLevel"}
        assert await client.read() == {"jsonrpc": "2.0", "id": refused, "error": error}


@pytest.mark.promises("lifecycle.capabilities")
async def test_logging_is_announced_and_a_list_of_tools_that_changes_is_not(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        assert client.initialize_result["capabilities"] == CAPABILITIES

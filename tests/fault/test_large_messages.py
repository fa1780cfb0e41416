"""The memory that a large message needs, from the request to the last answer that contains the message."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.clients.http_client import HttpClient, HttpReply
from kit.clients.modern_client import ModernHttpClient
from kit.clients.requests import tool
from kit.clients.wire_client import WireClient, speaking
from kit.servers.resident_process import ResidentProcess
from kit.system.memory import Peak
from parley.testing import Says, ScriptedModel
from parley.testing.home import MODEL, Home
from parley.testing.render import Api
from parley.wire.jsonrpc import encode
from parley.wire.mcp import FULL_VERSION

TIMES = 7
"""The memory that a message may use, as a multiple of its size."""


def of_shape(shape: str, size: int) -> list[dict[str, str]]:
    """Return the content of a message of about this many bytes."""
    match shape:
        case "ASCII":
            return [{"type": "text", "text": "eight by" * (size // 8)}]
        case "an emoji":
            return [{"type": "text", "text": "eight by" * (size // 8) + "\N{GRINNING FACE}"}]
        case "two bytes a character":
            return [{"type": "text", "text": "é" * (size // 2)}]
        case "several long texts":
            return [{"type": "text", "text": "eight bé" * (size // 80)}] * 10
        case "many items":
            return [{"type": "text", "text": "eight by"}] * (size // 34)
        case "many items and an image":
            return [*of_shape("many items", size), {"type": "image", "image_url": "https://example.com/a.png"}]
        case "an image":
            return [{"type": "image", "image_url": "data:image/png;base64," + noise(size)}]
        case "a PDF":
            return [{"type": "file", "filename": "a.pdf", "file_data": "JVBERi0x" + noise(size)}]
        case _:
            raise ValueError(shape)


ACCEPTED = ("an alias", "an unknown argument", "an unknown argument of many values")
REFUSED = {
    "a long array in config": "more than 10000 values (config)",
    "many texts in config": "more than 10000 values (config)",
    "bad items": "missing field `type` (content[0])",
    "a bad item at the end": "unknown variant 'audio' (content[",
}
"""Arguments that are refused, and the reason."""


def arguments_of_shape(shape: str, conversation: str, size: int) -> dict[str, Any]:
    """Return the arguments of a `conversationSendMessage` of about this many bytes."""
    small = {"conversation_id": conversation, "content": of_shape("ASCII", 8)}
    large = {"conversation_id": conversation, "content": of_shape("many items", size)}
    match shape:
        case "an alias":
            return {"conversationId": conversation, "content": large["content"]}
        case "an unknown argument":
            return {**large, "trace": "harmless"}
        case "an unknown argument of many values":
            return {**small, "trace": [{}] * (size // 3)}
        case "a long array in config":
            return {**small, "config": {"notify": [{}] * (size // 3)}}
        case "many texts in config":
            return {**small, "config": {"notify": [""] * (size // 3)}}
        case "bad items":
            return {**small, "content": [{}] * (size // 3)}
        case "a bad item at the end":
            return {**large, "content": [*of_shape("many items", size), {"type": "audio"}]}
        case _:
            raise ValueError(shape)


def noise(size: int) -> str:
    return base64.b64encode(random.Random(1).randbytes(size // 4 * 3)).decode()


@pytest.mark.promises("framing.large")
@pytest.mark.parametrize(
    ("shape", "api"), [("an emoji", "chat"), pytest.param("an image", "responses", marks=pytest.mark.long)]
)
async def test_a_large_message_costs_at_most_seven_times_its_size(
    parley_model: ScriptedModel, shape: str, api: Api
) -> None:
    await follow_through(parley_model, of_shape(shape, 8_000_000), api)


@pytest.mark.long
@pytest.mark.promises("framing.large")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    "shape",
    [
        "ASCII",
        "an emoji",
        "two bytes a character",
        "several long texts",
        "many items",
        "many items and an image",
        "an image",
        "a PDF",
    ],
)
async def test_the_largest_messages_cost_at_most_seven_times_their_size(
    parley_model: ScriptedModel, shape: str, api: Api
) -> None:
    await follow_through(parley_model, of_shape(shape, 45_000_000), api)


async def follow_through(model: ScriptedModel, content: list[dict[str, str]], api: Api) -> None:
    """Send a message that is streamed and sent to a model, then read it again in a snapshot and a page."""
    model.set_handler(lambda request: Says(("Read.",)))
    size = len(encode(content))
    async with speaking(model, version=FULL_VERSION, api=api) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "First, load what is loaded once.")
        await client.until_method("task_complete")

        costs: dict[str, float] = {}
        peak = Peak(client.raw.pid)
        sent = client.call("conversationSendMessage", conversation_id=conversation, content=content)
        shown = await client.until_method("task_complete")
        costs["sending"] = peak.bytes / size
        client.stream(conversation)
        await client.until_method("notifications/initial_state")
        costs["a snapshot"] = peak.bytes / size
        client.message(conversation, "And once more.")
        await client.until_method("task_complete")
        costs["the next request"] = peak.bytes / size
        page = client.call("conversationRead", conversation_id=conversation)
        (*_, read) = await client.until_answer(page)
        costs["a page"] = peak.bytes / len(client.raw.frames[-1])

        assert answer_to(sent, shown)["structuredContent"]["status"] == "ok"
        (said,) = [one["params"]["msg"]["content"] for one in shown if one.get("method") == "user_message"]
        assert said == content
        assert "agent_message" in [one.get("method") for one in shown]
        assert content in [one["msg"].get("content") for one in read["result"]["structuredContent"]["events"]]
        print(costs)
    assert {what: cost for what, cost in costs.items() if cost > TIMES} == {}


@pytest.mark.promises("framing.large")
@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, marks=() if shape == "an alias" else pytest.mark.long) for shape in (*ACCEPTED, *REFUSED)],
)
async def test_the_names_and_the_validity_of_arguments_do_not_change_the_cost(
    parley_model: ScriptedModel, shape: str
) -> None:
    parley_model.set_handler(lambda request: Says(("Read.",)))
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "First, load what is loaded once.")
        await client.until_method("task_complete")
        arguments = arguments_of_shape(shape, conversation, 8_000_000)

        peak = Peak(client.raw.pid)
        sent = client.call("conversationSendMessage", **arguments)
        await check_outcome(client, shape, sent)

        cost = peak.bytes / len(encode(arguments))
        print(f"{shape}: {cost:.1f} N")
    assert cost <= TIMES


async def check_outcome(client: WireClient, shape: str, sent: int) -> None:
    """If the call is accepted, wait for its turn. Otherwise check that the refusal names the reason."""
    shown = await client.until_answer(sent)
    value = answer_to(sent, shown)["structuredContent"]
    if shape in ACCEPTED:
        assert value["status"] == "ok", value
        if "task_complete" not in [one.get("method") for one in shown]:
            await client.until_method("task_complete")
    else:
        assert value["status"] == "error"
        assert REFUSED[shape] in value["message"]


@pytest.mark.long
@pytest.mark.promises("framing.large")
async def test_a_large_message_over_http_costs_no_more(parley_model: ScriptedModel, tmp_path: Path) -> None:
    await post_and_read(parley_model, tmp_path / "home", of_shape("an emoji", 8_000_000))


@pytest.mark.long
@pytest.mark.promises("framing.large")
@pytest.mark.parametrize("shape", ["ASCII", "an emoji", "several long texts", "an image"])
async def test_the_largest_messages_over_http_cost_no_more(
    parley_model: ScriptedModel, tmp_path: Path, shape: str
) -> None:
    await post_and_read(parley_model, tmp_path / "home", of_shape(shape, 45_000_000))


async def post_and_read(model: ScriptedModel, home: Path, content: list[dict[str, str]]) -> None:
    """Send a message in a session, read it as a page, and send it as the prompt of a `codex` call of 2026-07-28."""
    model.set_handler(lambda request: Says(("Read.",)))
    size = len(encode(content))
    costs: dict[str, float] = {}
    async with ResidentProcess(model, home) as resident:
        url, token = resident.description["url"], resident.description["token"]
        async with HttpClient(url, token=token) as session, ModernHttpClient(url, token=token) as modern:
            await session.initialize()
            conversation = await session.create()
            async with session.stream() as stream:
                await session.call("conversationStream", conversation_id=conversation)
                await session.say(conversation, "First, load what is loaded once.")
                await stream.wait_for_message("task_complete")
                peak = Peak(resident.process.pid)
                arguments = {"conversation_id": conversation, "content": content}
                sent = await session.send("POST", encode(tool(99, "conversationSendMessage", arguments)))
                said = await stream.wait_for_message("user_message")
                await stream.wait_for_message("task_complete")
                costs["sending"] = peak.bytes / size
            page = await session.post(tool(100, "conversationRead", {"conversation_id": conversation}))
            costs["a page"] = peak.bytes / len(page.body)

            async def prompt(text: str) -> HttpReply:
                arguments = {"prompt": text, "model": MODEL, "cwd": "/tmp"}
                call = modern.message("tools/call", {"name": "codex", "arguments": arguments})
                return await modern.send("POST", encode(call), **modern.headers_of(call))

            await prompt("First, load what is loaded once.")
            peak = Peak(resident.process.pid)
            answer = await prompt("".join(item.get("text", "") for item in content))
            costs["a prompt"] = peak.bytes / size

    assert sent.json["result"]["structuredContent"]["status"] == "ok"
    assert said["params"]["msg"]["content"] == content
    assert content in [one["msg"].get("content") for one in page.json["result"]["structuredContent"]["events"]]
    assert answer.json["result"]["content"][0]["text"] == "Read."
    assert {what: cost for what, cost in costs.items() if cost > TIMES} == {}


def answer_to(request_id: int, messages: list[Any]) -> Any:
    (answer,) = [one for one in messages if one.get("id") == request_id]
    return answer["result"]


@pytest.mark.long
async def test_the_prompt_of_a_codex_call_costs_no_more(parley_model: ScriptedModel) -> None:
    parley_model.set_handler(lambda request: Says(("Read.",)))
    ((item,)) = of_shape("an emoji", 8_000_000)
    async with speaking(parley_model, version=FULL_VERSION) as client:
        await client.until_answer(client.call("codex", prompt="Hello", model=MODEL, cwd=str(client.work)))
        peak = Peak(client.raw.pid)
        call = client.call("codex", prompt=item["text"], model=MODEL, cwd=str(client.work))
        await client.until_answer(call)

        assert peak.bytes / len(encode(item)) < TIMES


@pytest.mark.long
@pytest.mark.parametrize("shape", ["ASCII", "an emoji", "several long texts", "many items", "an image", "a PDF"])
async def test_a_large_message_holds_up_the_others_for_ten_milliseconds_a_megabyte(
    parley_model: ScriptedModel, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = of_shape(shape, 30_000_000)
    async with busy_server(parley_model, monkeypatch) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        client.call("conversationSendMessage", conversation_id=conversation, content=content)
        await client.until_method("task_complete")
        longest = busy_seconds(client)

    assert [one for one in longest if one > allowed_seconds(content)] == []


@pytest.mark.long
@pytest.mark.parametrize("shape", [*ACCEPTED, *REFUSED])
async def test_the_names_and_the_validity_of_arguments_do_not_change_the_delay(
    parley_model: ScriptedModel, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with busy_server(parley_model, monkeypatch) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        arguments = arguments_of_shape(shape, conversation, 30_000_000)
        sent = client.call("conversationSendMessage", **arguments)
        await check_outcome(client, shape, sent)
        await client.meanwhile()  # the event loop step that sent the answer has ended
        longest = busy_seconds(client)
        print(f"{shape}: {longest}")

    assert [one for one in longest if one > allowed_seconds(arguments)] == []


@asynccontextmanager
async def busy_server(model: ScriptedModel, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WireClient]:
    """Start a server that reports long steps of its event loop."""
    program = Path(__file__).parent.parent / "kit/servers/busy_program.py"
    monkeypatch.setattr(Home, "command", property(lambda home: (sys.executable, str(program), "mcp")))
    model.set_handler(lambda request: Says(("Read.",)))
    async with speaking(model, version=FULL_VERSION) as client:
        yield client


def busy_seconds(client: WireClient) -> list[float]:
    return [float(line.split()[1]) for line in client.raw.stderr_text().splitlines() if line[:5] == "BUSY "]


def allowed_seconds(sent: Any) -> float:
    return 0.05 + 0.01 * len(encode(sent)) / 1_000_000

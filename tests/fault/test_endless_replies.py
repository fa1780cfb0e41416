"""Models that never stop or never begin their reply: the turn fails with one sentence, and the server continues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from kit.clients.codex_calls import APIS, Wire, speaking
from parley.testing import Call, Data, Says, ScriptedModel
from parley.testing.render import Api
from parley.testing.requests import read_request

pytestmark = pytest.mark.usefixtures("servers_in_process")

LIMITS: Final = """
    max_reply_characters = 300_000
    max_argument_characters = 2_000
    max_calls = 3
    max_event_bytes = 100_000
"""


def provider(base_url: str, api: Api, settings: str) -> str:
    return f"""
        model_provider = "endless"
        [model_providers.endless]
        base_url = "{base_url}"
        wire_api = "{api}"
        request_max_retries = 0
        stream_max_retries = 2
        {settings}
    """


def exceeded(limit: int, what: str, setting: str) -> str:
    return f"the model's reply exceeded the limit of {limit} {what} (setting `model_providers.endless.{setting}`)"


def in_pieces(api: Api) -> list[Data]:
    """Return the arguments of one call in many pieces, without an end."""
    function = {"name": "look", "arguments": "x" * 100}
    piece: dict[str, Any] = {"type": "response.function_call_arguments.delta", "delta": "x" * 100}
    if api == "chat":
        piece = {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": function}]}}]}
    return [Data(json.dumps(piece))] * 30


TOO_LARGE: Final[dict[str, tuple[Callable[[Api], Says], str]]] = {
    "text": (
        lambda api: Says(("x" * 50_000,) * 10),
        exceeded(300_000, "characters of text", "max_reply_characters"),
    ),
    "arguments": (
        lambda api: Says((Call("look", {"at": "x" * 3_000}),)),
        exceeded(2_000, "characters in the arguments of its calls", "max_argument_characters"),
    ),
    "arguments in pieces": (
        lambda api: Says(tuple(in_pieces(api))),
        exceeded(2_000, "characters in the arguments of its calls", "max_argument_characters"),
    ),
    "calls": (lambda api: Says(tuple(Call("look", {}) for _ in range(4))), exceeded(3, "calls", "max_calls")),
    "one event": (
        lambda api: Says(("x" * 200_000,)),
        exceeded(100_000, "bytes in one event of the stream", "max_event_bytes"),
    ),
}


@pytest.mark.promises("model.reply-limits", "failures.at-once", "failures.usable")
@pytest.mark.parametrize("api", APIS)
async def test_a_reply_beyond_a_limit_fails_its_turn_and_names_the_setting(
    parley_model: ScriptedModel, api: Api
) -> None:
    config = provider(parley_model.base_url, api, LIMITS)
    async with speaking(parley_model, config=config) as wire:
        for number, (name, (reply, expected)) in enumerate(TOO_LARGE.items(), 1):
            print(name)  # pytest shows the last one if it fails
            parley_model.queue(reply(api))
            wire.codex(number, "go")
            messages = await wire.answer(number)
            assert messages[-1]["result"]["error"] == expected
        wire.codex(100, "go")
        assert await wire.text(100) == "Done"

    assert len(parley_model.requests) == len(TOO_LARGE) + 1


# --- content that is neither text nor arguments ----------------------------------------------


def item(**members: Any) -> Data:
    return Data(json.dumps({"type": "response.output_item.done", "item": members}))


def delta(**members: Any) -> Data:
    return Data(json.dumps({"choices": [{"delta": members}]}))


def detail(**members: Any) -> Data:
    return delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "a", **members}])


LONG: Final = "x" * 90_000
TEXT_EXCEEDED: Final = exceeded(300_000, "characters of text", "max_reply_characters")
ARGUMENTS_EXCEEDED: Final = exceeded(2_000, "characters in the arguments of its calls", "max_argument_characters")

LARGE_OTHERWISE: Final[dict[str, tuple[Api, list[Data], str]]] = {
    "ids of messages": ("responses", [item(type="message", id=LONG, content=[])] * 5, TEXT_EXCEEDED),
    "empty messages": ("responses", [item(type="message", content=[])] * 4_000, TEXT_EXCEEDED),
    "empty reasoning": ("responses", [item(type="reasoning")] * 4_000, TEXT_EXCEEDED),
    "the name of a call": (
        "responses",
        [item(type="function_call", call_id="c", name=LONG, arguments="{}")],
        ARGUMENTS_EXCEEDED,
    ),
    "unknown members of a call": (
        "responses",
        [item(type="function_call", call_id="c", name="look", arguments="{}", more=LONG)],
        ARGUMENTS_EXCEEDED,
    ),
    "members of a block of reasoning": (
        "chat",
        [detail(**{f"member{number}": LONG}) for number in range(5)],
        TEXT_EXCEEDED,
    ),
    "an id that comes later": (
        "chat",
        [
            delta(tool_calls=[{"index": 0, "function": {"name": "look"}}]),
            delta(tool_calls=[{"index": 0, "id": LONG}]),
        ],
        ARGUMENTS_EXCEEDED,
    ),
    "a name that comes later": (
        "chat",
        [delta(tool_calls=[{"index": 0, "id": "c"}]), delta(tool_calls=[{"index": 0, "function": {"name": LONG}}])],
        ARGUMENTS_EXCEEDED,
    ),
}


@pytest.mark.promises("model.reply-limits")
@pytest.mark.parametrize("api", APIS)
async def test_a_reply_that_is_large_by_anything_else_fails_its_turn_too(
    parley_model: ScriptedModel, api: Api
) -> None:
    cases = [(name, reply, expected) for name, (of, reply, expected) in LARGE_OTHERWISE.items() if of == api]
    async with speaking(parley_model, config=provider(parley_model.base_url, api, LIMITS)) as wire:
        for number, (name, reply, expected) in enumerate(cases, 1):
            parley_model.queue(Says(tuple(reply)))
            wire.codex(number, "go")
            messages = await wire.answer(number)

            assert messages[-1]["result"].get("error") == expected, name


@pytest.mark.promises("model.reply-limits", "framing.never-blocked")
@pytest.mark.parametrize("api", APIS)
async def test_a_model_that_never_stops_talking_is_left(parley_model: ScriptedModel, api: Api) -> None:
    parley_model.deltas(100_000, "x" * 100)
    config = provider(parley_model.base_url, api, "max_reply_characters = 1_000_000")
    async with speaking(parley_model, config=config) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    expected = exceeded(1_000_000, "characters of text", "max_reply_characters")
    assert messages[-1]["result"]["error"] == expected
    deltas = sum(
        len(one["params"]["msg"].get("delta", "")) for one in messages if one.get("method") == "codex/event"
    )
    assert deltas < 3_000_000  # the data of the last read may exceed the limit


# --- nothing meaningful --------------------------------------------------------------------------

NOISE: Final[dict[str, tuple[bytes, bytes]]] = {
    "comments": (b"", b": PROCESSING\n\n"),
    "single bytes of an event": (b"data: {", b" "),
    "single bytes of a comment": (b": ", b"x"),
    "events that are empty": (b"", b"data: {}\n\n"),
    "deltas that are empty": (b"", b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'),
    "calls that only have an index": (b"", b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n'),
    "arguments that are empty": (
        b"",
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":""}}]}}]}\n\n',
    ),
    "the same name again": (
        b"",
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"look"}}]}}]}\n\n',
    ),
    "the same signature again": (
        b"",
        b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","extra_content":{"a":"b"}}]}}]}\n\n',
    ),
    "bytes of a body that is not streamed": (b"{", b'"a": 1,\n'),
    "events of an unknown type": (b"", b'data: {"type":"response.unknown","delta":"x"}\n\n'),
    "parts that begin": (b"", b'data: {"type":"response.content_part.added","part":{"text":""}}\n\n'),
    "summaries that begin": (b"", b'data: {"type":"response.reasoning_summary_part.added"}\n\n'),
    "items that begin": (b"", b'data: {"type":"response.output_item.added","item":{"type":"message"}}\n\n'),
    "refusals that are empty": (b"", b'data: {"type":"response.refusal.delta","delta":""}\n\n'),
    "progress": (b"", b'data: {"type":"response.in_progress","response":{"id":"r"}}\n\n'),
}


@asynccontextmanager
async def noise(first: bytes, again: bytes) -> AsyncIterator[str]:
    """Run a provider that accepts each request and then sends the same bytes until the client disconnects."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await read_request(reader)
            writer.write(head + first)
            while True:
                writer.write(again)
                await writer.drain()
                await asyncio.sleep(0.02)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _error_of(wire: Wire, number: int, base_url: str, api: Api) -> str:
    settings = {"base_url": base_url, "wire_api": api, "stream_idle_timeout_ms": 300, "stream_max_retries": 0}
    config = {f"model_providers.noise.{name}": value for name, value in settings.items()}
    wire.codex(number, "go", config={"model_provider": "noise", **config})
    messages = await wire.answer(number)
    return str(messages[-1]["result"]["error"])


@pytest.mark.waits
@pytest.mark.promises("failures.idle")
@pytest.mark.parametrize("api", APIS)
async def test_noise_is_as_good_as_silence(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model) as wire:
        for number, (name, sent) in enumerate(NOISE.items(), 1):
            print(name)  # pytest shows the last one if it fails
            async with noise(*sent) as base_url:
                error = await _error_of(wire, number, base_url, api)

            assert error == "stream disconnected before completion: idle timeout waiting for SSE"

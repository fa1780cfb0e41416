"""Providers that violate the protocol: the turn fails, and no wait lasts forever."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kit.clients.codex_calls import Wire, answered, failed, is_event, speaking
from kit.models.raw_provider import (
    CHAT_END,
    CHAT_STOP,
    RESPONSES_END,
    Answer,
    Peer,
    chat_text,
    plain,
    responses_event,
    responses_text,
    streamed,
)
from parley.testing import Data, Delay, RawParley, ScriptedModel
from parley.testing.render import Api

pytestmark = pytest.mark.usefixtures("servers_in_process")

GOOD_CHAT = streamed(chat_text("Done"), CHAT_STOP, CHAT_END)
GOOD_RESPONSES = streamed(
    responses_event(
        "response.output_item.done",
        item={"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done"}]},
    ),
    RESPONSES_END,
)
BROKE_OFF = "stream disconnected before completion: the response broke off"
DEEP = b"[" * 3000 + b"]" * 3000


@asynccontextmanager
async def asking(
    parley_model: ScriptedModel, *answers: Answer, api: Api = "chat", settings: str = "", retries: int = 0
) -> AsyncIterator[Wire]:
    """Start a server whose model gives the configured answers."""
    async with (
        Peer(*answers) as peer,
        against(peer, parley_model, api=api, settings=settings, retries=retries) as wire,
    ):
        yield wire


@asynccontextmanager
async def against(
    peer: Peer, parley_model: ScriptedModel, *, api: Api, settings: str = "", retries: int = 0
) -> AsyncIterator[Wire]:
    config = f"""
        model_provider = "inconsistent"
        [model_providers.inconsistent]
        base_url = "http://127.0.0.1:{peer.port}/v1"
        wire_api = "{api}"
        request_max_retries = {retries}
        stream_max_retries = 0
        {settings}
    """
    async with speaking(parley_model, config=config) as wire:
        yield wire


def events(messages: list[object]) -> list[object]:
    """Return the events of a call, without its first event and the second message of each pair."""
    received = [
        one["params"]["msg"] for one in messages if isinstance(one, dict) and one.get("method") == "codex/event"
    ]
    return received[1:]


@pytest.mark.promises("failures.messages", "failures.usable")
@pytest.mark.parametrize(("api", "good"), [("chat", GOOD_CHAT), ("responses", GOOD_RESPONSES)])
async def test_a_chunk_of_nonsense_ends_the_turn_though_the_idle_timeout_is_far(
    parley_model: ScriptedModel, api: Api, good: Answer
) -> None:
    text = chat_text("par") if api == "chat" else responses_text("par")
    nonsense = Answer(streamed(text, whole=False).raw, "close", late=b"zz\r\nnothing\r\n")
    async with Peer(nonsense, good) as peer, against(peer, parley_model, api=api) as wire:
        wire.codex(1, "go")
        await wire.until(is_event("agent_message_delta"))
        peer.go_on.set()
        first = await wire.answer(1)
        wire.reply(2, "again")
        second = await wire.answer(2)

    assert first[-1] == failed(1, BROKE_OFF)
    assert second[-1] == answered(2, "Done")


@pytest.mark.promises("framing.one-answer", "failures.messages")
async def test_a_reason_that_is_not_text_is_shown_as_far_as_possible(parley_model: ScriptedModel) -> None:
    odd = Answer(b"HTTP/1.1 999 We\xffird\r\ncontent-length: 2\r\n\r\nno")
    async with asking(parley_model, odd, GOOD_CHAT) as wire:
        wire.codex(1, "go")
        first = await wire.answer(1)
        wire.reply(2, "again")
        second = await wire.answer(2)

    assert first[-1] == failed(1, "unexpected status 999 We?ird: no")
    assert second[-1] == answered(2, "Done")


@pytest.mark.promises("model.skipped")
@pytest.mark.parametrize(
    ("api", "answer"),
    [
        ("chat", streamed(b'data: {"choices":' + DEEP + b"}\n\n", chat_text("Done"), CHAT_STOP)),
        (
            "responses",
            streamed(b'data: {"type":"x","item":' + DEEP + b"}\n\n", responses_text("Done"), RESPONSES_END),
        ),
    ],
)
async def test_an_event_that_is_nested_too_deeply_is_skipped(
    parley_model: ScriptedModel, api: Api, answer: Answer
) -> None:
    async with asking(parley_model, answer, api=api) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages[-1] == answered(1, "Done")


@pytest.mark.promises("failures.requests")
async def test_a_retry_after_beyond_all_time_is_no_retry_after(parley_model: ScriptedModel) -> None:
    busy = plain(
        "429 Too Many Requests", headers=["retry-after: Mon, 01 Jan 2035 00:00:00 +999999999999999"], then="keep"
    )
    async with asking(parley_model, busy, GOOD_CHAT, retries=1) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages[-1] == answered(1, "Done")


@pytest.mark.promises("model.chat-ends")
@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_response_that_has_finished_needs_no_token_counts(parley_model: ScriptedModel, then: str) -> None:
    finished = streamed(chat_text("Done"), CHAT_STOP, whole=False, then="reset" if then == "reset" else "close")
    async with asking(parley_model, finished, settings="stream_usage = true") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages[-1] == answered(1, "Done")


@pytest.mark.promises("failures.messages")
async def test_a_provider_that_fails_in_mid_sentence_is_quoted(parley_model: ScriptedModel) -> None:
    overloaded = streamed(chat_text("par"), b'data: {"error":{"message":"overloaded"}}\n\n', CHAT_END)
    async with asking(parley_model, overloaded) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages[-1] == failed(1, "stream disconnected before completion: overloaded")


async def test_a_secret_in_the_address_is_not_shown(parley_model: ScriptedModel) -> None:
    echo = plain("400 Bad Request", b"bad key 0123456789abcdef")
    async with asking(parley_model, echo, settings='query_params = { "api-key" = "0123456789abcdef" }') as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages[-1] == failed(1, "unexpected status 400 Bad Request: bad key ***")


async def test_text_of_a_message_that_is_declared_whole_without_it_is_kept(parley_model: ScriptedModel) -> None:
    def done(*texts: str) -> bytes:
        content = [{"type": "output_text", "text": text} for text in texts]
        item = {"type": "message", "role": "assistant", "content": content}
        return responses_event("response.output_item.done", item=item)

    inconsistent = streamed(responses_text("A"), done(), responses_text("B"), done("B"), RESPONSES_END)
    async with asking(parley_model, inconsistent, api="responses") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert events(messages) == [
        {"type": "task_started"},
        {"type": "agent_message_delta", "delta": "A"},
        {"type": "agent_message", "message": "A"},
        {"type": "agent_message_delta", "delta": "B"},
        {"type": "agent_message", "message": "B"},
        {"type": "task_complete", "last_agent_message": "B"},
    ]


@pytest.mark.promises("framing.never-blocked")
async def test_a_script_that_calls_forever_can_be_interrupted(parley_model: ScriptedModel, tmp_path: Path) -> None:
    script = tmp_path / "calls.json"
    script.write_text(json.dumps({"replies": [[{"call": {"name": "shell"}}]]}))
    config = f"model_provider = 'scripted'\n[model_providers.scripted]\nscript = '{script}'\n"
    async with speaking(parley_model, config=config) as wire:
        wire.codex(1, "go")
        wire.raw.send({"jsonrpc": "2.0", "id": "p", "method": "ping"})
        await wire.answer("p")
        wire.cancel(1)
        messages = await wire.answer(1)

    assert messages[-1] == failed(1, " Turn interrupted")


@pytest.mark.promises("framing.never-blocked")
async def test_thousands_of_calls_in_one_response_do_not_block_other_clients(parley_model: ScriptedModel) -> None:
    calls = [
        responses_event(
            "response.output_item.done",
            item={"type": "function_call", "call_id": f"c{number}", "name": "shell", "arguments": "{}"},
        )
        for number in range(2000)
    ]
    async with asking(parley_model, streamed(*calls, RESPONSES_END), GOOD_RESPONSES, api="responses") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    assert messages[-1] == answered(1, "Done")


@pytest.mark.promises("lifecycle.end-of-stdin")
async def test_a_name_server_that_does_not_answer_does_not_hold_up_the_end(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    slow_lookup = "import socket, time\nsocket.getaddrinfo = lambda *a, **k: time.sleep(60)\n"
    (tmp_path / "sitecustomize.py").write_text(slow_lookup)
    config = """
        model_provider = "far"
        [model_providers.far]
        base_url = "http://far.example/v1"
    """
    env = {"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    async with RawParley(parley_model, config=config, env=env) as raw:
        raw.send({"id": 1, "method": "tools/call", "params": {"name": "codex", "arguments": {"prompt": "go"}}})
        await raw.expect(lambda message: message.get("method") == "task_started")
        raw.close_stdin()
        answer = await raw.expect(lambda message: message.get("id") == 1)
        code = await raw.exit_code()

    assert answer["result"]["error"] == "Turn interrupted: the server was stopped"
    assert code == 0


@pytest.mark.promises("model.chat-ends")
@pytest.mark.waits
async def test_a_provider_that_only_keeps_alive_does_not_keep_a_finished_response_open(
    parley_model: ScriptedModel,
) -> None:
    stop = Data('{"choices":[{"delta":{},"finish_reason":"stop"}]}')
    alive = (Delay(1.0), Data("{}")) * 9
    parley_model.says("Done", stop, *alive)
    config = f"""
        model_provider = "counting"
        [model_providers.counting]
        base_url = "{parley_model.base_url}"
        stream_usage = true
    """
    async with speaking(parley_model, config=config) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        await parley_model.wait_abandoned()  # the server did not read the reply to its end

    assert messages[-1] == answered(1, "Done")


@pytest.mark.promises("model.history")
async def test_a_message_that_does_not_say_whose_it_is_is_in_the_history_once(
    parley_model: ScriptedModel,
) -> None:
    item = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hello"}]}
    without_owner = streamed(
        responses_text("Hello"), responses_event("response.output_item.done", item=item), RESPONSES_END
    )
    async with (
        Peer(without_owner, GOOD_RESPONSES) as peer,
        against(peer, parley_model, api="responses") as wire,
    ):
        wire.codex(1, "go")
        await wire.answer(1)
        wire.reply(2, "again")
        await wire.answer(2)

    assert [said for said in peer.asked[1].body["input"] if said["role"] == "assistant"] == [
        {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}
    ]


@pytest.mark.promises("model.history", "turn.failed")
async def test_a_text_that_was_whole_when_its_turn_failed_stays_in_the_history(
    parley_model: ScriptedModel,
) -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}
    broken = streamed(responses_event("response.output_item.done", item=item), responses_text("and"))
    async with (
        Peer(broken, GOOD_RESPONSES) as peer,
        against(peer, parley_model, api="responses") as wire,
    ):
        wire.codex(1, "go")
        failure = await wire.answer(1)
        wire.reply(2, "again")
        await wire.answer(2)

    expected = "stream disconnected before completion: stream closed before response.completed"
    assert failure[-1] == failed(1, expected)
    assert [said["content"][0]["text"] for said in peer.asked[1].body["input"][1:]] == ["go", "Hello", "again"]


async def test_calls_without_an_index_are_distinguished_by_their_ids(parley_model: ScriptedModel) -> None:
    def piece(**call: object) -> bytes:
        return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode()

    calls = streamed(
        piece(id="c1", function={"name": "one", "arguments": "{"}),
        piece(function={"arguments": "}"}),
        piece(id="c2", function={"name": "two", "arguments": "{}"}),
        CHAT_STOP,
    )
    async with Peer(calls, GOOD_CHAT) as peer, against(peer, parley_model, api="chat") as wire:
        wire.codex(1, "go")
        await wire.answer(1)

    outputs = [said["content"] for said in peer.asked[1].body["messages"] if said["role"] == "tool"]
    assert outputs == ["unsupported call: one", "unsupported call: two"]

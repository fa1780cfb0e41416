"""Models that refuse, break off or are unreachable: clients get an error, and the session continues."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Final

import pytest

from kit.builders.events import background_event, error, task_complete, task_started
from kit.clients import wire_client
from kit.clients.codex_calls import (
    EVERY_API,
    User,
    answered,
    body,
    configured,
    failed,
    is_event,
    pairs,
    request_headers,
    shown,
    speaking,
    without_delays,
)
from kit.clients.messages import PATHS
from kit.clients.traces import REPEATING, RETRYING, said, traces_for
from kit.system.frozen_time import frozen_time
from parley.testing import HOLD, Data, ScriptedModel
from parley.testing.home import ServerOptions
from parley.testing.render import Api
from parley.wire.events import AgentMessageDelta, EventMsg
from parley.wire.mcp import FULL_VERSION

KEY: Final = "sk-0123456789-the-key"
STATIC: Final = "static-0123456789-token"
FROM_ENVIRONMENT: Final = "environment-0123456789-token"


@pytest.mark.promises(
    "failures.messages", "failures.at-once", "failures.usable", "codex.failed-turn", "turn.failed"
)
@pytest.mark.parametrize("api", EVERY_API)
async def test_failing_runs_read_word_for_word(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as wire:
        for name, trace in traces_for(api, failing=True).items():
            print(name)  # pytest shows the last one if it fails
            await trace.play(wire, api)


@pytest.mark.promises("failures.turns", "failures.requests", "failures.at-once")
@pytest.mark.parametrize("api", EVERY_API)
@pytest.mark.parametrize("options", [RETRYING, REPEATING], ids=["of the turn", "of a request"])
async def test_retries_read_word_for_word(parley_model: ScriptedModel, api: Api, options: ServerOptions) -> None:
    asked = options.copy()
    asked["api"] = api
    async with speaking(parley_model, **asked) as wire:
        for name, trace in traces_for(api, options, failing=True).items():
            print(name)  # pytest shows the last one if it fails
            await trace.play(wire, api)


def _failed_turn(message: str, *before: EventMsg) -> tuple[EventMsg, ...]:
    return (task_started(), *before, error(message), task_complete())


def _good_turn(api: Api) -> tuple[EventMsg, ...]:
    return (task_started(), *shown(api, *said("Done")), task_complete("Done"))


@pytest.mark.promises("failures.messages", "failures.usable")
@pytest.mark.parametrize("api", EVERY_API)
async def test_silence_in_mid_answer_ends_the_turn_and_not_the_session(
    parley_model: ScriptedModel, api: Api
) -> None:
    config = f"[model_providers.quick]\nname = 'Quick'\nbase_url = '{parley_model.base_url}'\nwire_api = '{api}'\n"
    config += "stream_idle_timeout_ms = 500\nrequest_max_retries = 0\nstream_max_retries = 0\n"
    parley_model.cuts("par", how="hang")
    async with speaking(parley_model, config=f"model_provider = 'quick'\n{config}") as wire:
        with frozen_time():  # only silence after the first text reaches the limit
            wire.codex(1, "go")
            first = await wire.until(lambda message: "agent_message_delta" in str(message))
        first += await wire.answer(1)
        with frozen_time():
            wire.reply(2, "again")
            second = await wire.answer(2)
        await parley_model.wait_abandoned()

    message = "stream disconnected before completion: idle timeout waiting for SSE"
    assert first == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", *_failed_turn(message, AgentMessageDelta(delta="par"))),
        failed(1, message),
    ]
    assert second == [*pairs(2, "2", *_good_turn(api)), answered(2, "Done")]


@pytest.mark.promises("failures.messages")
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_refused_connection_is_reported_with_the_address(parley_model: ScriptedModel, api: Api) -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with speaking(parley_model, api=api) as wire:
            wire.codex(1, "go", config={f"model_providers.{api}.base_url": base_url})
            messages = await wire.answer(1)

    path = PATHS[api].removeprefix("/v1/")
    message = f"error sending request for url ({base_url}/{path}): Connection refused"
    assert messages == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", *_failed_turn(message)),
        failed(1, message),
    ]


@pytest.mark.promises("failures.connect")
@pytest.mark.parametrize("api", EVERY_API)
async def test_each_try_to_connect_again_is_announced_and_the_turn_continues_where_one_succeeds(
    parley_model: ScriptedModel, api: Api
) -> None:
    path = PATHS[api].removeprefix("/v1/")
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        base_url = f"http://127.0.0.1:{port}/v1"
        async with speaking(parley_model, api=api, request_max_retries=3, stream_max_retries=5) as wire:
            wire.codex(1, "go", config={f"model_providers.{api}.base_url": base_url})
            in_vain = await wire.answer(1)
            wire.codex(2, "go", config={f"model_providers.{api}.base_url": base_url})
            first = await wire.until(is_event("background_event"))
            taken.close()
            async with ScriptedModel(port=port):
                rest = await wire.answer(2)

    message = f"error sending request for url ({base_url}/{path}): Connection refused"
    retries = [
        background_event(f"stream error: {message}; retrying {number}/3 in <delay>…") for number in (1, 2, 3)
    ]
    assert without_delays(in_vain) == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", *_failed_turn(message, *retries)),
        failed(1, message),
    ]
    assert first
    assert rest[-1] == answered(2, "Done")


@pytest.mark.promises("failures.messages", "failures.at-once")
async def test_a_usage_limit_is_reported_at_once(parley_model: ScriptedModel) -> None:
    parley_model.fails(429, body='{"error": {"type": "usage_limit_reached"}}')
    async with speaking(parley_model, api="responses", request_max_retries=3, stream_max_retries=3) as wire:
        wire.codex(1, "go")
        first = await wire.answer(1)
        wire.reply(2, "again")
        second = await wire.answer(2)

    message = "You've hit your usage limit. Try again later."
    assert first == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", *_failed_turn(message)),
        failed(1, message),
    ]
    assert second == [*pairs(2, "2", *_good_turn("responses")), answered(2, "Done")]
    assert len(parley_model.requests) == 2


@pytest.mark.promises("failures.messages")
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_connection_that_is_reset_is_a_stream_that_broke_off(parley_model: ScriptedModel, api: Api) -> None:
    parley_model.cuts("par", HOLD, how="reset")
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        await wire.until(is_event("agent_message_delta"))
        parley_model.release()
        rest = await wire.answer(1)
        wire.reply(2, "again")
        second = await wire.answer(2)

    message = "stream disconnected before completion: the response broke off"
    assert rest == [*pairs(1, "1", error(message), task_complete()), failed(1, message)]
    assert second == [*pairs(2, "2", *_good_turn(api)), answered(2, "Done")]


# --- delays before retries -----------------------------------------------------------------------


@pytest.mark.promises("failures.requests")
async def test_a_request_is_retried_when_the_provider_says(parley_model: ScriptedModel) -> None:
    parley_model.fails(429, headers={"retry-after": "1"})
    parley_model.fails(503, headers={"retry-after": "0"})
    async with speaking(parley_model, request_max_retries=2) as wire:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        wire.codex(1, "go")
        await parley_model.wait_for_requests(2)
        again_at = loop.time()
        messages = await wire.answer(1)

    assert messages == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", *_good_turn("chat")),
        answered(1, "Done"),
    ]
    assert again_at - began_at >= 0.95  # far more than the usual 0.2 s
    assert len({request.raw for request in parley_model.requests}) == 1


@pytest.mark.promises("failures.requests")
async def test_newer_clients_see_each_retry_of_a_request(parley_model: ScriptedModel) -> None:
    parley_model.fails(429, headers={"retry-after": "0"}, body="never told")
    parley_model.fails(503)
    async with wire_client.speaking(parley_model, version=FULL_VERSION, request_max_retries=2) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        await client.say(conversation, "go")
        seen = await client.until_method("task_complete")

    retries = [one["params"]["msg"] for one in seen if one.get("method") == "request_retry"]
    assert [(one["attempt"], one["max_attempts"]) for one in retries] == [(1, 2), (2, 2)]
    assert (retries[0]["delay_ms"], retries[0]["reason"]) == (0, "429 Too Many Requests")
    assert retries[1]["reason"] == "503 Service Unavailable"
    assert 360 <= retries[1]["delay_ms"] <= 440
    assert "background_event" not in [one.get("method") for one in seen]


# --- keys --------------------------------------------------------------------------------------

_SECRETIVE: Final = """
model_provider = "guarded"

[model_providers.guarded]
name = "Guarded"
base_url = "{base_url}"
wire_api = "{api}"
env_key = "GUARDED_KEY"
env_key_instructions = "Ask the owner."
query_params = {{ v = "1" }}
http_headers = {{ X-Static = "yes", X-Api-Key = "{static}" }}
env_http_headers = {{ X-From-Env = "GUARDED_HEADER", X-Unset = "GUARDED_UNSET" }}
request_max_retries = 0
stream_max_retries = {retries}
"""


def _secretive(model: ScriptedModel, api: Api, *, retries: int = 0) -> str:
    return _SECRETIVE.format(base_url=model.base_url, api=api, static=STATIC, retries=retries)


@pytest.mark.child_process
@pytest.mark.promises("model.keys")
@pytest.mark.parametrize("api", EVERY_API)
async def test_keys_and_headers_go_to_the_provider_and_nowhere_else(parley_model: ScriptedModel, api: Api) -> None:
    echo = json.dumps({"you": [KEY, STATIC, FROM_ENVIRONMENT, "Bearer " + KEY]})
    parley_model.says("Hello")
    parley_model.fails(401, body=echo)
    why = {"type": "response.failed", "response": {"id": "r", "error": {"message": f"bad key {KEY}"}}}
    parley_model.says(Data(json.dumps(why)))
    parley_model.cuts("par")
    parley_model.fails(503, body=echo)
    env = {"GUARDED_KEY": KEY, "GUARDED_HEADER": FROM_ENVIRONMENT, "PARLEY_LOG": "debug"}
    config = _secretive(parley_model, api, retries=1)
    async with speaking(parley_model, config=config, env=env) as wire:
        wire.codex(1, "go")
        await wire.answer(1)
        for request_id in (2, 3, 4):
            wire.reply(request_id, "again")
            await wire.answer(request_id)
        wire.call(5, "conversationStatus", {"conversation_id": wire.sessions[0]})
        wire.stream(6, wire.sessions[0])
        await wire.silence()
    log = wire.raw.stderr_text()

    for secret in (KEY, STATIC, FROM_ENVIRONMENT):
        assert not [frame for frame in wire.raw.frames if secret.encode() in frame]
        assert secret not in log
    assert log != ""  # the server did log at this level
    request = parley_model.requests[0]
    assert request.path == (f"{PATHS[api]}?v=1")
    assert request.headers == {
        **request_headers(api, request, model=parley_model, session=wire.sessions[0]),
        "authorization": f"Bearer {KEY}",
        "x-static": "yes",
        "x-api-key": STATIC,
        "x-from-env": FROM_ENVIRONMENT,
    }


@pytest.mark.promises("failures.messages", "failures.at-once")
@pytest.mark.parametrize("api", EVERY_API)
async def test_a_missing_api_key_is_reported_at_once_with_instructions(
    parley_model: ScriptedModel, api: Api
) -> None:
    async with speaking(parley_model, config=_secretive(parley_model, api, retries=3)) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    message = "Missing environment variable: `GUARDED_KEY`. Ask the owner."
    assert messages == [
        *configured(1, wire.sessions[0]),
        *pairs(1, "1", *_failed_turn(message)),
        failed(1, message),
    ]
    assert parley_model.requests == []


@pytest.mark.promises("model.keys")
@pytest.mark.parametrize("api", EVERY_API)
async def test_the_openai_key_is_not_sent_to_others(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api, env={"OPENAI_API_KEY": KEY}) as wire:
        wire.codex(1, "go")
        await wire.answer(1)

    (request,) = parley_model.requests
    assert request.headers == request_headers(api, request, model=parley_model, session=wire.sessions[0])
    assert request.body == body(api, User("go"), cwd=wire.work, session=wire.sessions[0])


@pytest.mark.child_process
async def test_the_openai_provider_gets_the_key_of_the_environment(parley_model: ScriptedModel) -> None:
    env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": parley_model.base_url}
    async with speaking(parley_model, config="model_provider = 'openai'", env=env) as wire:
        wire.codex(1, "go")
        await wire.answer(1)

    (request,) = parley_model.requests
    assert request.headers == {
        **request_headers("responses", request, model=parley_model, session=wire.sessions[0]),
        "authorization": f"Bearer {KEY}",
    }

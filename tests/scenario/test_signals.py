"""Signals:

SIGTERM and SIGHUP shut the server down. SIGINT does the same, but on a terminal it first interrupts turns.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest

from kit.clients.requests import EXIT_SECONDS, STOPPED, codex_pair, ping, pong, the_rest, tool
from kit.servers.hangups import hangups
from kit.servers.on_terminal import ON_TERMINAL
from parley.testing import HOLD, RawParley, ScriptedModel

pytestmark = pytest.mark.child_process

INTERRUPTED: Final = " Turn interrupted"


@pytest.fixture(autouse=True)
def _a_terminal() -> Iterator[None]:
    with hangups(ignored=False):
        yield


def failed(request_id: int, message: str) -> dict[str, Any]:
    result = {"error": message, "content": [{"type": "text", "text": message}], "isError": True}
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


async def held_codex(raw: RawParley, request_id: int) -> None:
    """Start a `codex` call whose model is held after its first text, and read all messages so far."""
    raw.model.says("one", HOLD, "two")
    raw.send(tool(request_id, "codex", {"prompt": "go"}))
    await raw.expect(lambda message: message.get("method") == "agent_message_delta")


async def exit_code_in_time(raw: RawParley) -> int:
    async with asyncio.timeout(EXIT_SECONDS):
        return await raw.process.wait()


@pytest.mark.promises("lifecycle.sigterm", "lifecycle.sigint-pipe")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["SIGTERM", "SIGINT", "SIGHUP"]
)
async def test_an_idle_server_ends_at_a_signal(parley_model: ScriptedModel, number: int) -> None:
    async with RawParley(parley_model) as raw:
        raw.send(ping(1))
        assert await raw.read_message() == pong(1)

        raw.process.send_signal(number)

        assert await exit_code_in_time(raw) == 0
        assert await the_rest(raw) == []
        assert raw.stderr_text() == ""


@pytest.mark.promises("lifecycle.sigterm", "lifecycle.sigint-pipe", "lifecycle.stopped-turn")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["SIGTERM", "SIGINT", "SIGHUP"]
)
async def test_a_signal_ends_the_running_turn_and_answers_its_call(
    parley_model: ScriptedModel, number: int
) -> None:
    async with RawParley(parley_model) as raw:
        await held_codex(raw, 1)

        raw.process.send_signal(number)

        assert await exit_code_in_time(raw) == 0
        error = {"type": "error", "message": STOPPED}
        assert await the_rest(raw) == [*codex_pair(1, error), failed(1, STOPPED)]
        await parley_model.wait_abandoned()


@pytest.mark.promises("lifecycle.sigterm")
async def test_a_server_that_is_to_outlive_its_terminal_does(parley_model: ScriptedModel) -> None:
    with hangups(ignored=True):
        async with RawParley(parley_model) as raw:
            raw.send(ping(1))
            assert await raw.read_message() == pong(1)

            raw.process.send_signal(signal.SIGHUP)
            raw.send(ping(2))

            assert await raw.read_message() == pong(2)


async def test_a_second_sigterm_does_not_disturb_the_end(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model) as raw:
        await held_codex(raw, 1)

        for _ in range(5):
            raw.terminate()

        assert await exit_code_in_time(raw) == 0
        error = {"type": "error", "message": STOPPED}
        assert await the_rest(raw) == [*codex_pair(1, error), failed(1, STOPPED)]


@pytest.mark.promises("lifecycle.sigint")
async def test_sigint_interrupts_every_running_turn_and_the_server_continues(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model, program=ON_TERMINAL) as raw:
        await held_codex(raw, 1)
        await held_codex(raw, 2)

        raw.process.send_signal(signal.SIGINT)
        said = [await raw.read_message() for _ in range(6)]

        error = {"type": "error", "message": INTERRUPTED}
        for number in (1, 2):
            of_this = [*codex_pair(number, error), failed(number, INTERRUPTED)]
            assert [message for message in said if message in of_this] == of_this
        await parley_model.wait_abandoned(2)
        raw.send(tool(3, "codex", {"prompt": "again"}))
        answer = await raw.expect(lambda message: message.get("id") == 3)
        assert answer["result"] == {"content": [{"type": "text", "text": "Done"}]}


async def test_sigint_interrupts_a_conversation_that_is_streamed_and_its_stream_stays_open(
    parley_model: ScriptedModel,
) -> None:
    parley_model.says("one", HOLD)
    async with RawParley(parley_model, program=ON_TERMINAL) as raw:
        raw.send(tool(1, "conversationCreate", {"prompt": "", "model": "m", "cwd": str(raw.work)}))
        conversation = (await raw.read_message())["result"]["structuredContent"]["conversation_id"]
        send = {"conversation_id": conversation, "content": [{"type": "text", "text": "go"}]}
        raw.send(tool(2, "conversationStream", {"conversation_id": conversation}))
        raw.send(tool(3, "conversationSendMessage", send))
        await raw.expect(lambda message: message.get("method") == "agent_message_delta")

        raw.process.send_signal(signal.SIGINT)
        error = {"type": "error", "message": INTERRUPTED}
        assert await raw.read_message() == {"jsonrpc": "2.0", "method": "error", "params": {"msg": error}}
        raw.send(tool(4, "conversationSendMessage", send))
        await raw.expect(lambda message: message.get("id") == 4)

        said = [(await raw.read_message())["params"] for _ in range(4)]
        assert said == [
            {"msg": {"type": "task_started"}},
            {"msg": {"type": "agent_message_delta", "delta": "Done"}},
            {"msg": {"type": "agent_message", "message": "Done"}},
            {"msg": {"type": "task_complete", "last_agent_message": "Done"}},
        ]


@pytest.mark.promises("lifecycle.sigint")
async def test_a_second_sigint_ends_the_server(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model, program=ON_TERMINAL) as raw:
        await held_codex(raw, 1)

        raw.process.send_signal(signal.SIGINT)
        error = {"type": "error", "message": INTERRUPTED}
        expected = [*codex_pair(1, error), failed(1, INTERRUPTED)]
        assert [await raw.read_message() for _ in expected] == expected
        raw.process.send_signal(signal.SIGINT)

        assert await exit_code_in_time(raw) == 0
        assert await the_rest(raw) == []


async def test_a_second_sigint_ends_the_server_also_when_another_turn_runs(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model, program=ON_TERMINAL) as raw:
        await held_codex(raw, 1)
        raw.process.send_signal(signal.SIGINT)
        assert await raw.expect(lambda message: message.get("id") == 1) == failed(1, INTERRUPTED)
        await held_codex(raw, 2)

        raw.process.send_signal(signal.SIGINT)

        assert await exit_code_in_time(raw) == 0
        error = {"type": "error", "message": STOPPED}
        assert await the_rest(raw) == [*codex_pair(2, error), failed(2, STOPPED)]


async def test_sigint_does_not_reach_what_is_over(parley_model: ScriptedModel) -> None:
    async with RawParley(parley_model, program=ON_TERMINAL) as raw:
        raw.send(tool(1, "codex", {"prompt": "go"}))
        await raw.expect(lambda message: message.get("id") == 1)

        raw.process.send_signal(signal.SIGINT)

        assert await exit_code_in_time(raw) == 0
        assert await the_rest(raw) == []

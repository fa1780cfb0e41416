"""A server without free memory: messages that are too large are refused with the limit, and the rest continues."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kit.clients.http_client import raw_exchange
from kit.clients.wire_client import WireClient, speaking
from kit.servers.resident_process import ResidentProcess
from parley.testing import Says, ScriptedModel
from parley.wire.mcp import FULL_VERSION

MEGABYTE = 1_000_000
ENDS = ("task_complete", "notifications/stream_disconnected")


def address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def leave_only(pid: int, server: int) -> None:
    """Limit the memory of a process to its current size plus `server` bytes."""
    most = address_space(pid) + server
    resource.prlimit(pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def give_all(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def is_taken(answer: Any) -> bool:
    return "result" in answer and not answer["result"].get("isError")


async def warmed_up(client: WireClient) -> str:
    """Create a conversation and run a turn in it, so that everything is loaded."""
    client.model.set_handler(lambda request: Says(("Read.",)))
    conversation = await client.create()
    await client.open_stream(conversation)
    await client.say(conversation, "Hello")
    await client.until_method("task_complete")
    return conversation


async def works(client: WireClient, conversation: str) -> None:
    """Check that a turn runs to its end, and that the log of the server is short."""
    sent = client.message(conversation, "Still there?")
    answer = (await client.until_answer(sent))[-1]  # events of an earlier turn may come before it
    assert answer["result"]["structuredContent"]["status"] == "ok"
    await client.until_method("task_complete")
    assert len(client.raw.stderr_text().splitlines()) < 100, client.raw.stderr_text()[:5000]


def failed(answer: Any) -> str:
    """Return the error of a call."""
    if "error" in answer:
        return str(answer["error"]["message"])
    assert answer["result"]["isError"]
    return str(answer["result"]["structuredContent"]["message"])


@pytest.mark.promises("framing.out-of-memory")
@pytest.mark.parametrize("text", ["eight by", "eight b\N{GRINNING FACE}"])
async def test_a_message_that_is_too_large_for_the_memory_is_refused_and_skipped(
    parley_model: ScriptedModel, text: str
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await warmed_up(client)
        leave_only(client.raw.pid, 120 * MEGABYTE)
        (*_, answer) = await client.until_answer(client.message(conversation, text * 4_000_000))

        assert answer["error"]["code"] == -32600
        assert "too large for the available memory" in answer["error"]["message"]
        assert "RLIMIT_AS" in answer["error"]["message"]
        await works(client, conversation)


@pytest.mark.waits
@pytest.mark.promises("framing.out-of-memory")
async def test_a_body_that_is_too_large_for_the_memory_is_refused_with_the_limit_that_was_hit(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with ResidentProcess(parley_model, tmp_path / "home") as resident:
        headers = f"Authorization: Bearer {resident.description['token']}\r\nContent-Type: application/json"
        url = urlsplit(resident.description["url"])
        head = f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n{headers}\r\n"
        leave_only(resident.process.pid, 120 * MEGABYTE)
        answer = await raw_exchange(url.geturl(), f"{head}Content-Length: {32 * MEGABYTE}\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"too large for the available memory" in answer
    assert b"RLIMIT_AS" in answer


@pytest.mark.long
async def test_messages_that_are_too_large_together_are_answered_one_by_one(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await warmed_up(client)
        leave_only(client.raw.pid, 100 * MEGABYTE)
        with client.at_once():
            sent = [client.message(conversation, "eight b\N{GRINNING FACE}" * 1_000_000) for _ in range(6)]
        answers: dict[int, Any] = {}
        turns = 0
        while len(answers) < len(sent):
            message = await client.read()
            turns += {"task_started": 1, ENDS[0]: -1, ENDS[1]: -1}.get(message.get("method"), 0)
            if message.get("id") in sent:
                answers[message["id"]] = message

        refused = [one for one in answers.values() if not is_taken(one)]
        assert refused, "all of them fitted"
        assert all("memory" in failed(one) for one in refused)
        if turns:
            await client.until(lambda message: message.get("method") in ENDS)
        give_all(client.raw.pid)
        client.stream(conversation)
        await client.until_method("notifications/initial_state")
        await works(client, conversation)


@pytest.mark.parametrize("megabytes", [1, 12])
async def test_no_memory_at_all_neither_ends_the_server_nor_fills_its_log(
    parley_model: ScriptedModel, megabytes: int
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await warmed_up(client)
        leave_only(client.raw.pid, megabytes * MEGABYTE)
        for size in (4_000_000, 900_000):
            sent = client.message(conversation, "eight by" * (size // 8))
            before = await client.until_answer(sent)
            answer = before.pop()
            if is_taken(answer):  # the smaller one may fit, its turn may fail, or the stream may end
                await client.until(lambda message: message.get("method") in ENDS)
            else:
                assert "memory" in failed(answer)
        give_all(client.raw.pid)
        client.stream(conversation)
        await client.until_method("notifications/initial_state")

        await works(client, conversation)


@pytest.mark.promises("framing.out-of-memory")
@pytest.mark.parametrize("megabytes", [5, 12])
async def test_calls_fail_while_there_is_no_memory_to_load_the_database_and_work_later(
    parley_model: ScriptedModel, megabytes: int
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        leave_only(client.raw.pid, megabytes * MEGABYTE)
        for _ in range(3):
            (*_, answer) = await client.until_answer(client.call("conversationCreate", cwd=str(client.work)))
            assert is_taken(answer) or "RLIMIT" in failed(answer)
        give_all(client.raw.pid)
        conversation = await client.create()
        client.stream(conversation)
        await client.until_method("notifications/initial_state")
        client.raw.close_stdin()

        assert await client.raw.exit_code() == 0

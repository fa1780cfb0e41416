"""A server with few descriptors: it continues to work, or names the limit that it has reached."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from kit.clients.shell_turns import sh
from kit.clients.wire_client import WireClient, speaking
from parley.testing import HOLD, RecordedRequest, Reply, Says, ScriptedModel
from parley.wire.mcp import FULL_VERSION

FEW = 64
CONVERSATIONS = 20


def limit(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (FEW, FEW))


def sockets(pid: int) -> int:
    """Return the number of TCP connections of a process."""
    inodes = {line.split()[9] for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]}
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        found += target.startswith("socket:[") and target[8:-1] in inodes
    return found


def last_message(request: RecordedRequest) -> Any:
    return request.body["messages"][-1]


async def ask_all(client: WireClient, conversations: list[str]) -> None:
    """Run a turn in each conversation concurrently."""
    client.model.set_handler(lambda request: Says((HOLD, "Done.")))
    with client.at_once():
        for one in conversations:
            client.message(one, "go")
    await client.model.wait_until_held(len(conversations))
    client.model.release()
    for _ in conversations:
        await client.until_method("task_complete")


@pytest.mark.promises("failures.idle-connections")
async def test_commands_run_under_a_limit_of_64_files_after_many_turns_at_once(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        limit(client.raw.pid)
        conversations = [await client.create() for _ in range(CONVERSATIONS)]
        with client.at_once():
            for one in conversations:
                client.stream(one)
        await client.take(2 * CONVERSATIONS)
        await ask_all(client, conversations)

        assert sockets(client.raw.pid) <= FEW // 8

        def run(request: RecordedRequest) -> Reply:
            return (
                Says(("Ran.",)) if last_message(request)["role"] == "tool" else Says((sh("call-1", "echo fine"),))
            )

        client.model.set_handler(run)
        client.message(conversations[0], "run")
        await client.until_method("task_complete")
        assert "fine" in last_message(client.model.requests[-1])["content"]


async def test_an_error_names_the_limit_of_open_files(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        await client.open_stream(conversation)
        client.model.set_handler(lambda request: Says(("Hello.",)))
        await client.say(conversation, "Hello")
        await client.until_method("task_complete")
        used = len(os.listdir(f"/proc/{client.raw.pid}/fd"))
        resource.prlimit(client.raw.pid, resource.RLIMIT_NOFILE, (used, FEW * 4))

        def run(request: RecordedRequest) -> Reply:
            return Says(("Oh.",)) if last_message(request)["role"] == "tool" else Says((sh("call-1", "echo fine"),))

        client.model.set_handler(run)
        client.message(conversation, "run")
        await client.until_method("task_complete")
        output = last_message(client.model.requests[-1])["content"]

        assert "Too many open files" in output
        assert f"{used} files and connections open (RLIMIT_NOFILE" in output

"""Bugs after the begin event of a call: the end event follows, and the model gets an output."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kit.builders.records import command_output
from kit.builders.tools import NoCommands
from kit.builders.transcript import OutputShown, RecordingTranscript
from kit.builders.trees import patch, plant, tree
from kit.models.raw_provider import settings
from kit.servers.tool_servers import ENVIRON, SLOW_TIMING, TIMEOUT_SECONDS, call_item, closing, context, program
from parley.config.types import ToolServer
from parley.conversation.log import LogPayload
from parley.ports.tools import Action, Granted, ToolContext, Verdict
from parley.tools.apply_patch import Patches
from parley.tools.servers import ServerPool, ServerTools
from parley.wire.events import (
    BackgroundEvent,
    Duration,
    Invocation,
    McpToolCallBegin,
    McpToolCallEnd,
    PatchApplyBegin,
    PatchApplyEnd,
    ToolCallOutcome,
)
from parley.wire.ids import CallId

CALL = CallId("c1")
AT_ONCE = Duration(secs=0, nanos=0)


async def grant(action: Action) -> Verdict:
    return Granted()


# --- patches -----------------------------------------------------------------------------


class Descriptors:
    """Sets the limit of descriptors of this process."""

    def __init__(self) -> None:
        self._usual = resource.getrlimit(resource.RLIMIT_NOFILE)

    def forbid(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, self._usual[1]))

    def allow(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._usual)


@pytest.fixture
def descriptors() -> Iterator[Descriptors]:
    descriptors = Descriptors()
    yield descriptors
    descriptors.allow()


async def test_a_patch_for_which_no_file_can_be_opened_any_more_is_seen_to_end(
    tmp_path: Path, descriptors: Descriptors
) -> None:
    plant(tmp_path, old__txt="alpha\n")
    before = tree(tmp_path)
    transcript = RecordingTranscript(appended=descriptors.forbid)
    context = ToolContext(settings=settings(cwd=str(tmp_path)), transcript=transcript, authorize=grant)
    patches = Patches(context, NoCommands())

    async with asyncio.timeout(TIMEOUT_SECONDS):
        output = await patches.apply(
            CALL, patch("*** Update File: old.txt", "-alpha", "+beta"), workdir=str(tmp_path)
        )
    descriptors.allow()

    begin, *rest = transcript.payloads
    said = rest[-1].stderr if isinstance(rest[-1], PatchApplyEnd) else ""
    assert said.startswith("Failed to write files: Too many open files (os error 24): the server can have ")
    assert isinstance(begin, PatchApplyBegin)
    assert rest == [
        command_output(CALL, said.encode(), stream="stderr"),
        PatchApplyEnd(call_id=CALL, stdout="", stderr=said, success=False),
    ]
    assert transcript.shown == [OutputShown(CALL, "stderr", said.encode())]
    assert json.loads(output) == {"output": said, "metadata": {"exit_code": 1, "duration_seconds": 0.0}}
    assert tree(tmp_path) == before


# --- tool servers ------------------------------------------------------------------------


class FailingTranscript(RecordingTranscript):
    """A transcript that fails when a call reports its progress."""

    async def append(self, *payloads: LogPayload) -> None:
        if any(isinstance(one, BackgroundEvent) for one in payloads):
            raise ZeroDivisionError
        await super().append(*payloads)


def seen(tool: str, arguments: dict[str, Any], why: str) -> list[LogPayload]:
    """Return all events of a call that failed."""
    invocation = Invocation(server="x", tool=tool, arguments=arguments)
    return [
        McpToolCallBegin(call_id=CALL, invocation=invocation),
        McpToolCallEnd(call_id=CALL, invocation=invocation, duration=AT_ONCE, result=ToolCallOutcome(err=why)),
    ]


def without_duration(event: LogPayload) -> LogPayload:
    return structs.replace(event, duration=AT_ONCE) if isinstance(event, McpToolCallEnd) else event


async def test_a_call_of_a_tool_server_that_breaks_down_by_our_own_mistake_is_seen_to_end() -> None:
    transcript = FailingTranscript()
    async with closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool, pool.lease([program("x")]) as lease:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output = await ServerTools(context(transcript), lease).run(call_item("x__steps", '{"count": 1}', CALL))

    assert output == "internal error: ZeroDivisionError"
    assert list(map(without_duration, transcript.payloads)) == seen("steps", {"count": 1}, output)


EMPTY_HANDED = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    result = {
        "initialize": {"capabilities": {"tools": {}}, "serverInfo": {"name": "empty", "version": "1"}},
        "tools/list": {"tools": [{"name": "give", "inputSchema": {"type": "object"}}]},
        "tools/call": {"isError": False},
    }.get(message["method"])
    if message["method"] == "initialize":
        result["protocolVersion"] = message["params"]["protocolVersion"]
    if result is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


async def test_a_result_that_has_no_content_cannot_be_read() -> None:
    transcript = RecordingTranscript()
    server = ToolServer(name="x", command=sys.executable, args=("-c", EMPTY_HANDED))
    async with closing(ServerPool(ENVIRON, timing=SLOW_TIMING)) as pool, pool.lease([server]) as lease:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output = await ServerTools(context(transcript), lease).run(call_item("x__give", "{}", CALL))

    assert output == "tool call error: tool call failed for `x/give`: its response cannot be read"
    assert list(map(without_duration, transcript.payloads)) == seen("give", {}, output)

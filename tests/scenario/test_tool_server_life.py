"""Tool servers from start to end: failures, sharing, crashes, interrupts, and remaining processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import pytest

from kit.builders.events import agent_message, error, task_complete, task_started
from kit.builders.json import as_json
from kit.builders.tools import offered
from kit.clients.codex_calls import Wire, answered, configured, failed, interrupted, is_event, pairs, speaking
from kit.clients.requests import STOPPED
from kit.servers.tool_servers import marker, nothing_running, program, running
from kit.system.commands import marked
from kit.system.waiting import until
from parley.config.types import ToolServer
from parley.testing import HOLD, Call, ScriptedModel
from parley.testing.home import MODEL
from parley.tools.servers.program import INHERITED
from parley.wire.events import AgentMessageDelta, EventMsg

NO_PROGRAM: Final = error(
    "MCP client for `broken` failed to start: cannot run /no/such/program: No such file or directory (os error 2)"
)
BAD_NAME: Final = error(
    "MCP client for `bad name` failed to start: invalid server name 'bad name': must match pattern ^[a-zA-Z0-9_-]+$"
)
GONE: Final = error("MCP client for `gone` failed to start: the program ended before it answered (exit code 3)")
MUTE: Final = error("MCP client for `mute` failed to start: request timed out")
LOST: Final = "the connection to the tool server was lost"


@pytest.fixture
async def mark() -> AsyncIterator[str]:
    """Return a marker that no process may have after the test."""
    mark = marker()
    yield mark
    await nothing_running(mark)


def table(server: ToolServer) -> str:
    """Return a tool server as a table of config.toml."""
    lines = [f'[mcp_servers."{server.name}"]', f"command = {json.dumps(server.command)}"]
    lines += [f"args = {json.dumps(list(server.args))}", f'[mcp_servers."{server.name}".env]']
    return "\n".join((*lines, *(f"{key} = {json.dumps(value)}" for key, value in server.env.items()), ""))


def turn(*texts: str) -> tuple[EventMsg, ...]:
    """Return the events of a turn with one response over chat, without its `task_started`."""
    whole = "".join(texts)
    return *(AgentMessageDelta(delta=text) for text in texts), agent_message(whole), task_complete(whole)


def tool_names(body: Any) -> set[str]:
    """Return the servers whose tools a request offers."""
    ours = {tool["function"]["name"] for tool in offered("chat")}
    names = {tool["function"]["name"] for tool in body["tools"]}
    assert names >= ours
    return {name.partition("__")[0] for name in names - ours}


def output_of(body: Any, call_id: str) -> str:
    """Return the output of a call that the model got."""
    (output,) = (one["content"] for one in body["messages"] if one.get("tool_call_id") == call_id)
    return str(output)


def text_output_of(body: Any, call_id: str) -> str:
    (block,) = json.loads(output_of(body, call_id))
    return str(block["text"])


def events_of(messages: Iterable[Any], request_id: int) -> list[Any]:
    """Return the types of the events of one call."""
    return [
        one["params"]["msg"]["type"]
        for one in messages
        if one.get("method") == "codex/event" and one["params"]["_meta"]["requestId"] == request_id
    ]


async def say(wire: Wire, request_id: int, *calls: Call, session: str | None = None) -> Any:
    """Run a turn in which the model makes these calls, one in each response.

    Return the body of the last request.
    """
    for call in calls:
        wire.model.says(call)
    if session is None:
        wire.codex(request_id, "go")
    else:
        wire.reply(request_id, "go", session=session)
    messages = await wire.answer(request_id)
    assert messages[-1] == answered(request_id, "Done")
    return wire.model.requests[-1].body


async def created(wire: Wire, request_id: int) -> str:
    """Create a conversation. The answer must be the next message."""
    wire.call(request_id, "conversationCreate", {"prompt": "", "model": MODEL, "cwd": str(wire.work)})
    (answer,) = await wire.answer(request_id)
    return str(answer["result"]["structuredContent"]["conversation_id"])


async def value_of(wire: Wire, request_id: int, tool: str, **arguments: Any) -> Any:
    wire.call(request_id, tool, arguments)
    return (await wire.answer(request_id))[-1]["result"]["structuredContent"]


async def read_until(wire: Wire, conversation: str, wanted: Callable[[list[Any]], bool]) -> list[Any]:
    """Wait until the events of a conversation are as expected, and return them."""
    seq, events = 0, list[Any]()
    async with asyncio.timeout(90):
        while not wanted(events):
            page = await value_of(
                wire, 1000, "conversationRead", conversation_id=conversation, after=seq, wait_seconds=5
            )
            events += [one["msg"] for one in page["events"]]
            seq = page["seq"]
    return events


def has_ended(events: list[Any]) -> bool:
    return bool(events) and events[-1]["type"] == "task_complete"


async def patiently(wait: Callable[[], Awaitable[Any]]) -> None:
    """Wait with a longer timeout than usual."""
    async with asyncio.timeout(60):
        while True:
            with suppress(TimeoutError):
                await wait()
                return


# --- servers that do not start -----------------------------------------------------------


async def test_failed_tool_servers_are_reported_once_directly_after_session_configured(
    parley_model: ScriptedModel,
) -> None:
    broken = ToolServer(name="broken", command="/no/such/program")
    servers = (broken, program("good"), program("bad name"), program("gone", "exit"))
    async with speaking(parley_model, config="".join(map(table, servers))) as wire:
        wire.codex(7, "go")
        messages = await wire.answer(7)
        wire.reply(8, "again")
        again = await wire.answer(8)

    assert messages == [
        *configured(7, wire.sessions[0]),
        *pairs(7, "0", NO_PROGRAM, BAD_NAME, GONE),
        *pairs(7, "7", task_started(), *turn("Done")),
        answered(7, "Done"),
    ]
    assert again == [*pairs(8, "1", task_started(), *turn("Done")), answered(8, "Done")]
    assert [tool_names(request.body) for request in parley_model.requests] == [{"good"}, {"good"}]


async def test_every_new_conversation_is_answered_at_once_and_has_each_failure_as_one_event(
    parley_model: ScriptedModel,
) -> None:
    broken = ToolServer(name="broken", command="/no/such/program")
    config = table(broken) + table(program("good")) + table(program("bad name"))
    errors = [as_json(NO_PROGRAM), as_json(BAD_NAME)]
    async with speaking(parley_model, config=config) as wire:
        first, second = await created(wire, 1), await created(wire, 2)
        before = [await read_until(wire, one, lambda events: len(events) == 2) for one in (first, second)]
        wire.send(3, first, "hello")
        wire.send(4, second, "hello")
        await wire.answer(3, 4)
        once = [await read_until(wire, one, has_ended) for one in (first, second)]
        wire.send(5, first, "again")
        await wire.answer(5)
        twice = await read_until(wire, first, lambda events: events.count(as_json(task_complete("Done"))) == 2)
        third = await created(wire, 6)
        wire.send(7, third, "hello, at once")
        await wire.answer(7)
        hasty = await read_until(wire, third, has_ended)

    spoken = [as_json(event) for event in (task_started(), agent_message("Done"), task_complete("Done"))]
    assert before == [errors, errors]
    assert once == [[*errors, *spoken], [*errors, *spoken]]
    assert twice == [*errors, *spoken, *spoken]
    assert [one for one in hasty if one["type"] == "error"] == errors
    assert [one for one in hasty if one["type"] != "error"] == spoken
    assert hasty[-2:] == spoken[-2:]
    assert all(tool_names(request.body) == {"good"} for request in parley_model.requests)


@pytest.mark.promises("servers.background")
async def test_only_its_users_wait_for_an_unresponsive_server_and_they_can_cancel(
    parley_model: ScriptedModel, mark: str
) -> None:
    async with speaking(parley_model, config=table(program("mute", "mute", mark=mark))) as wire:
        wire.codex(1, "go")
        await wire.until(is_event("session_configured"))
        conversation = await created(wire, 2)
        wire.send(3, conversation, "hello")
        (sent,) = await wire.answer(3)
        status = await value_of(wire, 4, "conversationStatus", conversation_id=conversation)
        wire.raw.config("")
        wire.codex(5, "without servers")
        others = await wire.answer(5)
        assert not parley_model.requests[1:]

        wire.cancel(1)
        left = await wire.answer(1)
        await value_of(wire, 6, "conversationInterrupt", conversation_id=conversation)
        events = await read_until(wire, conversation, lambda events: len(events) == 2)

    assert sent["result"]["structuredContent"] == {"status": "ok"}
    assert status["state"] == "running"
    assert others[-1] == answered(5, "Done")
    cut = error(" Turn interrupted")
    assert left == [*pairs(1, "1", task_started(), cut), interrupted(1)]
    assert events == [as_json(task_started()), as_json(cut)]
    assert [request.body["messages"][-1]["content"] for request in parley_model.requests] == ["without servers"]


@pytest.mark.parametrize("how", ["eof", pytest.param("SIGTERM", marks=pytest.mark.long)])
async def test_a_call_that_waits_for_a_server_is_answered_when_parley_ends(
    parley_model: ScriptedModel, mark: str, how: str
) -> None:
    async with speaking(parley_model, config=table(program("mute", "mute", mark=mark))) as wire:
        wire.codex(1, "go")
        await wire.until(is_event("session_configured"))
        await until(lambda: running(mark) == 1)

        end(wire, how)
        messages = await wire.answer(1)
        assert await wire.raw.exit_code() == 0
        assert wire.raw.stderr_text() == ""

    result = {"content": [{"type": "text", "text": "Server is shutting down"}], "isError": True}
    assert messages == [{"jsonrpc": "2.0", "id": 1, "result": result}]
    assert parley_model.requests == []


@pytest.mark.promises("servers.background")
@pytest.mark.long
async def test_an_unresponsive_server_is_reported_to_all_clients_after_ten_seconds(
    parley_model: ScriptedModel, mark: str
) -> None:
    config = table(program("mute", "mute", mark=mark)) + table(program("good"))
    clock = asyncio.get_running_loop().time
    async with speaking(parley_model, config=config) as wire:
        asked_at = clock()
        wire.codex(1, "go")
        await wire.until(is_event("session_configured"))
        conversation = await created(wire, 2)
        wire.send(3, conversation, "hello")
        await wire.answer(3)
        await patiently(lambda: parley_model.wait_for_requests(1))
        waited_seconds = clock() - asked_at
        await patiently(lambda: parley_model.wait_for_requests(2))
        messages = await wire.answer(1)
        events = await read_until(wire, conversation, has_ended)
        wire.codex(4, "go")
        later = await wire.answer(4)
        await until(lambda: running(mark) == 0)

    assert waited_seconds >= 10
    spoken = pairs(1, "1", task_started(), *turn("Done"))
    assert messages == [*pairs(1, "0", MUTE), *spoken, answered(1, "Done")]
    whole = (task_started(), MUTE, agent_message("Done"), task_complete("Done"))
    assert events == [as_json(event) for event in whole]
    assert later[:4] == [*configured(4, wire.sessions[1]), *pairs(4, "0", MUTE)]
    assert [tool_names(request.body) for request in parley_model.requests] == [{"good"}] * 3


SLOW_PROGRAM: Final = """\
import json, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        time.sleep(3)
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "slow", "version": "1"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
"""A program that answers `initialize` slowly and never lists its tools.

It is still starting when the server stops waiting for it.
"""


@pytest.mark.long
async def test_a_server_that_fails_late_discards_no_text_and_is_reported_when_the_next_turn_begins(
    parley_model: ScriptedModel, mark: str
) -> None:
    parley_model.says("Hello, ", HOLD, "world")
    slow = ToolServer(name="slow", command=sys.executable, args=("-c", SLOW_PROGRAM, mark))
    async with speaking(parley_model, config=table(slow), env={"PARLEY_LOG": "info"}) as wire:
        wire.codex(1, "go")
        await wire.until(is_event("session_configured"))
        await patiently(parley_model.wait_until_held)
        (pid,) = marked(mark)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: "the program ended before it answered" in wire.raw.stderr_text())
        parley_model.release()
        messages = await wire.answer(1)
        wire.reply(2, "again")
        again = await wire.answer(2)

    late = error("MCP client for `slow` failed to start: the program ended before it answered (signal 9)")
    assert messages == [
        *pairs(1, "1", task_started(), *turn("Hello, ", "world")),
        answered(1, "Hello, world"),
    ]
    assert again == [*pairs(2, "2", task_started(), late, *turn("Done")), answered(2, "Done")]


# --- servers that run --------------------------------------------------------------------


@pytest.mark.promises("servers.shared")
async def test_conversations_with_the_same_settings_share_one_process(
    parley_model: ScriptedModel, mark: str
) -> None:
    async with speaking(parley_model, config=table(program("x", mark=mark))) as wire:
        first = await say(wire, 1, Call("x__pid", {}, call_id="c1"))
        second = await say(wire, 2, Call("x__pid", {}, call_id="c2"))
        wire.raw.config(table(program("under-another-name", mark=mark)))
        third = await say(wire, 3, Call("under-another-name__pid", {}, call_id="c3"))
        assert running(mark) == 1
        wire.raw.config(table(program("x", mark=mark, env={"OTHER": "1"})))
        fourth = await say(wire, 4, Call("x__pid", {}, call_id="c4"))
        assert running(mark) == 2
        again = await say(wire, 5, Call("x__pid", {}, call_id="c5"), session=wire.sessions[0])

    bodies = (first, second, third, fourth, again)
    pids = [text_output_of(one, f"c{number}") for number, one in enumerate(bodies, start=1)]
    assert pids[:3] == [pids[0]] * 3
    assert pids[4] == pids[0] != pids[3]


@pytest.mark.promises("servers.secrets")
async def test_a_server_is_given_the_listed_variables_and_its_own_and_nothing_else(
    parley_model: ScriptedModel,
) -> None:
    env = {name: os.environ.get(name, "C.UTF-8") for name in INHERITED}
    env |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TMPDIR": tempfile.gettempdir(), "TZ": "UTC"}
    env |= {"OPENAI_API_KEY": "no", "GIT_SSH_COMMAND": "no", "VIRTUAL_ENV": "/no"}
    async with speaking(parley_model, config=table(program("x", env={"EXTRA": "yes"})), env=env) as wire:
        body = await say(wire, 1, Call("x__env", {}, call_id="c1"))

    assert text_output_of(body, "c1").split(",") == sorted([*INHERITED, "EXTRA"])


@pytest.mark.promises("servers.shared")
async def test_a_crash_answers_the_call_and_the_next_call_finds_the_server_again(
    parley_model: ScriptedModel, mark: str
) -> None:
    async with speaking(parley_model, config=table(program("x", mark=mark))) as wire:
        before = await say(wire, 1, Call("x__pid", {}, call_id="c1"))
        parley_model.says(Call("x__crash", {}, call_id="c2"), Call("x__pid", {}, call_id="c3"))
        wire.reply(2, "crash")
        messages = await wire.answer(2)
        crashed = parley_model.requests[-1].body

        parley_model.says(Call("x__wait", {}, call_id="c4"))
        wire.reply(3, "wait")
        waiting = await wire.until(is_event("background_event"))
        os.kill(int(text_output_of(crashed, "c3")), signal.SIGKILL)
        waiting += await wire.answer(3)
        killed = parley_model.requests[-1].body
        after = await say(wire, 4, Call("x__add", {"a": 1, "b": 2}, call_id="c5"), session=wire.sessions[0])
        await until(lambda: running(mark) == 1)

    call = ["mcp_tool_call_begin", "mcp_tool_call_end"]
    end_of_turn = ["agent_message_delta", "agent_message", "task_complete"]
    assert events_of(messages, 2) == ["task_started", *call, *call, *end_of_turn]
    lost = f"tool call error: tool call failed for `x/crash`: {LOST}"
    assert output_of(crashed, "c2") == lost
    (outcome, _) = [one["params"]["msg"]["result"] for one in messages if one.get("method") == "mcp_tool_call_end"]
    assert outcome == {"Err": lost}
    assert text_output_of(crashed, "c3") != text_output_of(before, "c1")
    assert events_of(waiting, 3) == ["task_started", call[0], "background_event", call[1], *end_of_turn]
    assert output_of(killed, "c4") == f"tool call error: tool call failed for `x/wait`: {LOST}"
    assert text_output_of(after, "c5") == "3"


async def test_an_interrupt_stops_the_call_at_the_server_which_continues(
    parley_model: ScriptedModel, mark: str
) -> None:
    async with speaking(parley_model, config=table(program("x", mark=mark))) as wire:
        before = await say(wire, 1, Call("x__pid", {}, call_id="c1"))
        parley_model.says(Call("x__wait", {}, call_id="c2"), Call("x__echo", {}, call_id="c3"))
        wire.reply(2, "wait")
        messages = await wire.until(is_event("background_event"))
        wire.cancel(2)
        rest = await wire.answer(2)
        after = await say(wire, 3, Call("x__pid", {}, call_id="c4"), session=wire.sessions[0])
        heard, number = "0", 4
        async with asyncio.timeout(90):
            while heard == "0":
                body = await say(wire, number, Call("x__cancelled", {}, call_id=f"c{number + 1}"))
                heard = text_output_of(body, f"c{number + 1}")
                number += 1
        assert running(mark) == 1

    assert events_of(messages, 2) == ["task_started", "mcp_tool_call_begin", "background_event"]
    assert rest == [*pairs(2, "2", error(" Turn interrupted")), interrupted(2)]
    assert heard == "1"
    assert text_output_of(after, "c4") == text_output_of(before, "c1")
    assert (output_of(after, "c2"), output_of(after, "c3")) == ("aborted", "aborted")
    calls = [call["id"] for one in after["messages"] for call in one.get("tool_calls") or ()]
    outputs = [one["tool_call_id"] for one in after["messages"] if one["role"] == "tool"]
    assert calls == outputs == ["c1", "c2", "c3", "c4"]


# --- the end -----------------------------------------------------------------------------


def end(wire: Wire, how: str) -> None:
    if how == "eof":
        wire.raw.close_stdin()
    else:
        wire.raw.terminate()


@pytest.mark.promises("servers.shared")
@pytest.mark.parametrize(
    ("mode", "how"),
    [
        ("leaving", "eof"),
        ("stubborn", "SIGTERM"),
        pytest.param("leaving", "SIGTERM", marks=pytest.mark.long),
        pytest.param("stubborn", "eof", marks=pytest.mark.long),
    ],
)
async def test_the_end_of_parley_in_mid_call_answers_and_leaves_no_server_running(
    parley_model: ScriptedModel, mark: str, mode: str, how: str
) -> None:
    parley_model.says(Call("x__child", {}, call_id="c1"))
    parley_model.says(Call("x__wait", {}, call_id="c2"))
    async with speaking(parley_model, config=table(program("x", mode, mark=mark))) as wire:
        wire.codex(1, "go")
        await wire.until(is_event("background_event"))
        assert running(mark) == (3 if mode == "leaving" else 2)

        end(wire, how)
        messages = await wire.answer(1)
        assert await wire.raw.exit_code() == 0
        await nothing_running(mark)
        assert wire.raw.stderr_text() == ""

    assert messages == [*pairs(1, "1", error(STOPPED)), failed(1, STOPPED)]


@pytest.mark.child_process
async def test_servers_of_a_parley_that_was_killed_find_their_input_closed_and_leave(
    parley_model: ScriptedModel, mark: str
) -> None:
    async with speaking(parley_model, config=table(program("x", mark=mark))) as wire:
        shell = Call("shell", {"command": ["true"]}, call_id="c1")
        await say(wire, 1, shell, Call("x__add", {"a": 1, "b": 2}, call_id="c2"))
        parley_model.says(Call("shell", {"command": ["sh", "-c", "sleep 1000; true", mark]}, call_id="c3"))
        wire.reply(2, "sleep")
        await wire.until(is_event("exec_command_begin"))
        await until(lambda: running(mark) > 1)

        wire.raw.kill()
        assert await wire.raw.exit_code() == -signal.SIGKILL
        await until(lambda: running(mark) == 0)

"""Turns that run commands: their events, the model's input, and the remaining processes.

Durations and the sizes of output deltas are normalized. Everything else is compared completely.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kit.clients.codex_calls import CallSent, Output, User, Wire, events_in, history
from kit.clients.messages import TASK_STARTED, TOKEN_COUNT, agent_message, delta, task_complete
from kit.system.commands import TIMEOUT_SECONDS, marked
from kit.system.waiting import until
from parley.testing import Call, RecordedRequest
from parley.testing.render import Api
from parley.testing.steps import Step
from parley.wire.jsonrpc import encode

__all__ = [
    "CHUNK_BYTES",
    "TIMEOUT_SECONDS",
    "Gate",
    "Turned",
    "asked",
    "begun",
    "ended",
    "gathered",
    "nothing_left_of",
    "numbered",
    "output",
    "ran",
    "sent",
    "sh",
    "shell",
    "turn",
    "unended",
    "until_running",
    "whole_turn",
    "without_duration",
]

CHUNK_BYTES: Final = 8192
"""The maximum number of bytes of output in one event."""


_COVERED: Final = "<covered>"
_SECONDS: Final = re.compile(r'"duration_seconds":\d+\.\d\}\}$')

# --- calls -------------------------------------------------------------------------------


def shell(call_id: str, *command: str, **more: Any) -> Call:
    """Build a call of the shell tool."""
    return Call("shell", {"command": command, **more}, call_id)


def sh(call_id: str, script: str, **more: Any) -> Call:
    """Build a call of the shell tool that runs a script."""
    return shell(call_id, "sh", "-c", script, **more)


def sent(call: Call, *, item: int = 1) -> CallSent:
    """Return the call as the next request repeats it; `item` is its number in the response."""
    assert call.call_id is not None
    text = call.arguments if isinstance(call.arguments, str) else encode(call.arguments).decode()
    return CallSent(call.call_id, call.name, text, f"fc_{item}", same_response=item > 1)


def numbered(letter: str, lines: int) -> bytes:
    """Return different lines of eight bytes each, as `seq -f LETTER%06.0f LINES` prints them."""
    return b"".join(b"%b%06d\n" % (letter.encode(), number) for number in range(1, lines + 1))


# --- events ------------------------------------------------------------------------------


def begun(call_id: str, *command: str, cwd: Path | str, parsed: Sequence[Any] | None = None) -> Any:
    """Build the begin event of a command. Without `parsed`, the summary consists of the words of the command."""
    return {
        "type": "exec_command_begin",
        "call_id": call_id,
        "command": list(command),
        "cwd": str(cwd),
        "parsed_cmd": [{"Unknown": {"cmd": list(command)}}] if parsed is None else list(parsed),
    }


def output(call_id: str, data: bytes | str, *, stream: str = "stdout") -> Any:
    chunk = list(data.encode() if isinstance(data, str) else data)
    return {"type": "exec_command_output_delta", "call_id": call_id, "stream": stream, "chunk": chunk}


def ended(call_id: str, stdout: str = "", stderr: str = "", *, exit_code: int = 0) -> Any:
    """Build the end event of a command that ran to its end."""
    end = {"type": "exec_command_end", "call_id": call_id, "stdout": stdout, "stderr": stderr}
    return {**end, "exit_code": exit_code, "duration": _COVERED}


def unended(call_id: str, why: str) -> Any:
    """Build the end event of a command that did not run to its end."""
    return {**ended(call_id, "", why, exit_code=-1), "duration": {"secs": 0, "nanos": 0}}


def gathered(events: Iterable[Any]) -> list[Any]:
    """Return the events without durations, and with the output of each stream joined, stdout first."""
    seen: list[Any] = []
    said: dict[str, Any] = {}
    for event in events:
        if event["type"] == "exec_command_output_delta":
            assert 0 < len(event["chunk"]) <= CHUNK_BYTES
            before = said.setdefault(event["stream"], {**event, "chunk": []})
            assert before["call_id"] == event["call_id"]
            before["chunk"] += event["chunk"]
            continue
        seen += [said[stream] for stream in ("stdout", "stderr") if stream in said]
        said.clear()
        seen.append(without_duration(event))
    return [*seen, *said.values()]


def without_duration(event: Any) -> Any:
    """Return the event without the duration of the command."""
    if event["type"] != "exec_command_end" or event["exit_code"] == -1:
        return event
    assert sorted(event["duration"]) == ["nanos", "secs"]
    assert event["duration"]["secs"] >= 0
    assert 0 <= event["duration"]["nanos"] < 1_000_000_000
    return {**event, "duration": _COVERED}


def whole_turn(api: Api, *events: Any) -> list[Any]:
    """Build the events of a turn: a response with calls, their events, and a final response."""
    tokens = [TOKEN_COUNT] if api != "chat" else []
    done = [delta("Done"), agent_message("Done"), *tokens, task_complete("Done")]
    return [TASK_STARTED, *events, *tokens, *done]


# --- texts for the model --------------------------------------------------------------


def ran(said: str, *, exit_code: int = 0) -> str:
    """Build the output, for the model, of a command that ran to its end."""
    metadata = {"exit_code": exit_code, "duration_seconds": _COVERED}
    return json.dumps({"output": said, "metadata": metadata}, separators=(",", ":"), ensure_ascii=False)


def asked(request: RecordedRequest) -> list[Any]:
    """Return the input of the last model request, without durations of commands."""
    said = request.body["messages"][2:] if request.api == "chat" else request.body["input"][1:]
    return [_without_seconds(item) for item in said]


def _without_seconds(item: Mapping[str, Any]) -> dict[str, Any]:
    member = "content" if item.get("role") == "tool" else "output"
    text = item.get(member)
    if not isinstance(text, str):
        return dict(item)
    return {**item, member: _SECONDS.sub(f'"duration_seconds":"{_COVERED}"}}}}', text)}


# --- whole turns -------------------------------------------------------------------------


class Turned(NamedTuple):
    """The events of a turn as its client saw them, and the input of its last model request."""

    events: list[Any]
    asked: list[Any]
    """The input of the last model request."""

    @property
    def outputs(self) -> list[Any]:
        """The outputs of all calls that the model got over the chat API."""
        return [item for item in self.asked if item.get("role") == "tool"]

    @classmethod
    def of_one(cls, api: Api, call: Call, output: str, *events: Any) -> Turned:
        """Return the events and the output of a turn with one call."""
        assert call.call_id is not None
        said = history(api, User("go"), sent(call), Output(call.call_id, output))
        return cls(whole_turn(api, *events), said)


async def turn(wire: Wire, *steps: Step, api: Api = "chat", **arguments: Any) -> Turned:
    """Run a turn in a new conversation, in which the model sends these steps and then a final text."""
    request_id = wire.calls_made + 1
    wire.model.says(*steps)
    wire.codex(request_id, "go", config={"model_provider": api}, **arguments)
    events = events_in(await wire.answer(request_id))[1:]
    return Turned(gathered(events), asked(wire.model.requests[-1]))


# --- processes ---------------------------------------------------------------------------


class Gate:
    """A FIFO at which a script waits until the test continues it: `read _ < NAME`."""

    def __init__(self, place: Path) -> None:
        os.mkfifo(place)
        self._place = place

    async def __aenter__(self) -> Gate:
        # Opened for reading too, so that neither opening nor writing blocks.
        self._descriptor = os.open(self._place, os.O_RDWR | os.O_CLOEXEC)
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def open(self) -> None:
        os.write(self._descriptor, b"go\n")


async def until_running(marker: str, number: int) -> None:
    """Wait until this many processes have the marker."""
    await until(lambda: len(marked(marker)) >= number, lambda: f"{len(marked(marker))} run, and not {number}")


async def nothing_left_of(marker: str) -> None:
    """Wait until no process has the marker."""
    await until(lambda: not marked(marker), lambda: f"{marked(marker)} are left")

"""Commands of the model, seen from outside: their events, what the model is told of them, what is left of them.

What cannot be known beforehand is covered: how long something took, and into how many pieces output was
cut. Everything else is compared whole.
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
from kit.system.commands import PATIENCE_SECONDS, marked
from kit.system.waiting import until
from parley.testing import Call, RecordedRequest
from parley.testing.render import Api
from parley.testing.steps import Step
from parley.wire.jsonrpc import encode

__all__ = [
    "CHUNK_BYTES",
    "PATIENCE_SECONDS",
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
"""No event has more of a command's output."""


_COVERED: Final = "<covered>"
_SECONDS: Final = re.compile(r'"duration_seconds":\d+\.\d\}\}$')

# --- calls -------------------------------------------------------------------------------


def shell(call_id: str, *command: str, **more: Any) -> Call:
    """A call of the shell tool."""
    return Call("shell", {"command": command, **more}, call_id)


def sh(call_id: str, script: str, **more: Any) -> Call:
    """One that has a script run."""
    return shell(call_id, "sh", "-c", script, **more)


def sent(call: Call, *, item: int = 1) -> CallSent:
    """The call as it goes back to the model, as the so-manieth item of its response."""
    assert call.call_id is not None
    text = call.arguments if isinstance(call.arguments, str) else encode(call.arguments).decode()
    return CallSent(call.call_id, call.name, text, f"fc_{item}", same_response=item > 1)


def numbered(letter: str, lines: int) -> bytes:
    """Lines of eight bytes, no two of them alike: what `seq -f LETTER%06.0f LINES` prints."""
    return b"".join(b"%b%06d\n" % (letter.encode(), number) for number in range(1, lines + 1))


# --- events ------------------------------------------------------------------------------


def begun(call_id: str, *command: str, cwd: Path | str, parsed: Sequence[Any] | None = None) -> Any:
    """A command starts; without `parsed` it is one of which nothing is known but its words."""
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
    """A command ran to its end."""
    end = {"type": "exec_command_end", "call_id": call_id, "stdout": stdout, "stderr": stderr}
    return {**end, "exit_code": exit_code, "duration": _COVERED}


def unended(call_id: str, why: str) -> Any:
    """A command did not run to its end."""
    return {**ended(call_id, "", why, exit_code=-1), "duration": {"secs": 0, "nanos": 0}}


def gathered(events: Iterable[Any]) -> list[Any]:
    """The events with what a command said in one piece for each stream, stdout first, and without times."""
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
    """The event; of a command that ran to its end without the time that it took."""
    if event["type"] != "exec_command_end" or event["exit_code"] == -1:
        return event
    assert sorted(event["duration"]) == ["nanos", "secs"]
    assert event["duration"]["secs"] >= 0
    assert 0 <= event["duration"]["nanos"] < 1_000_000_000
    return {**event, "duration": _COVERED}


def whole_turn(api: Api, *events: Any) -> list[Any]:
    """A turn whose first response has calls, with their events, and whose second says that it is done."""
    tokens = [TOKEN_COUNT] if api == "responses" else []
    done = [delta("Done"), agent_message("Done"), *tokens, task_complete("Done")]
    return [TASK_STARTED, *events, *tokens, *done]


# --- what the model is told --------------------------------------------------------------


def ran(said: str, *, exit_code: int = 0) -> str:
    """What it is told of a command that ran to its end."""
    metadata = {"exit_code": exit_code, "duration_seconds": _COVERED}
    return json.dumps({"output": said, "metadata": metadata}, separators=(",", ":"), ensure_ascii=False)


def asked(request: RecordedRequest) -> list[Any]:
    """What was said and done so far, as the model was sent it, without the times that commands took."""
    said = request.body["messages"][2:] if request.api == "chat" else request.body["input"][1:]
    return [_without_seconds(item) for item in said]


def _without_seconds(item: Mapping[str, Any]) -> dict[str, Any]:
    told = "content" if item.get("role") == "tool" else "output"
    text = item.get(told)
    if not isinstance(text, str):
        return dict(item)
    return {**item, told: _SECONDS.sub(f'"duration_seconds":"{_COVERED}"}}}}', text)}


# --- whole turns -------------------------------------------------------------------------


class Turned(NamedTuple):
    """A turn, as its client saw it and as the model was sent it in the end."""

    events: list[Any]
    asked: list[Any]
    """What the last request to the model had."""

    @property
    def outputs(self) -> list[Any]:
        """What the model was told of its calls, over the chat API."""
        return [item for item in self.asked if item.get("role") == "tool"]

    @classmethod
    def of_one(cls, api: Api, call: Call, told: str, *events: Any) -> Turned:
        """A turn with one call: its events, and what the model is told."""
        assert call.call_id is not None
        said = history(api, User("go"), sent(call), Output(call.call_id, told))
        return cls(whole_turn(api, *events), said)


async def turn(wire: Wire, *steps: Step, api: Api = "chat", **arguments: Any) -> Turned:
    """Have the model say this and then that it is done, in a new conversation."""
    request_id = wire.calls_made + 1
    wire.model.says(*steps)
    wire.codex(request_id, "go", config={"model_provider": api}, **arguments)
    events = events_in(await wire.answer(request_id))[1:]
    return Turned(gathered(events), asked(wire.model.requests[-1]))


# --- processes ---------------------------------------------------------------------------


class Gate:
    """Where a script waits until the test lets it go on: `read _ < NAME`."""

    def __init__(self, place: Path) -> None:
        os.mkfifo(place)
        self._place = place

    async def __aenter__(self) -> Gate:
        # For reading as well, so that neither opening it nor writing waits for the script.
        self._descriptor = os.open(self._place, os.O_RDWR | os.O_CLOEXEC)
        return self

    async def __aexit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def open(self) -> None:
        os.write(self._descriptor, b"go\n")


async def until_running(marker: str, number: int) -> None:
    """Until so many processes have the marker."""
    await until(lambda: len(marked(marker)) >= number, lambda: f"{len(marked(marker))} run, and not {number}")


async def nothing_left_of(marker: str) -> None:
    """Until no process has the marker."""
    await until(lambda: not marked(marker), lambda: f"{marked(marker)} are left")

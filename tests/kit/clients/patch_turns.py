"""Turns that apply patches: the calls of the model, and the complete events and requests that must follow.

Events and requests are compared completely, except for durations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kit.builders.events import task_complete, task_started
from kit.clients.codex_calls import CallSent, events_in, shown
from kit.clients.traces import SPENT, said
from parley.testing import Call, ScriptedModel
from parley.testing.render import Api
from parley.wire.events import (
    AddedFile,
    EventMsg,
    ExecCommandOutputDelta,
    FileChange,
    OtherChange,
    OutputStream,
    PatchApplyBegin,
    PatchApplyEnd,
    TurnDiff,
    UpdatedFile,
)
from parley.wire.ids import CallId

__all__ = [
    "BETA_BLOB",
    "BETA_HUNK",
    "BOTH_BLOB",
    "BOTH_HUNK",
    "CALL_ID",
    "NO_BLOB",
    "OLD",
    "OLD_BLOB",
    "OUTSIDE_TOO",
    "added",
    "applied",
    "at",
    "calls_for",
    "diff_of",
    "diff_of_new_a",
    "not_written",
    "outputs",
    "patch_output",
    "sent",
    "shell_call",
    "spellings",
    "success",
    "turn",
    "turn_diffs",
    "untimed_requests",
    "updated",
]

CALL_ID: Final = "c1"
NO_BLOB: Final = "0" * 40

OLD: Final = "alpha\nbeta\ngamma\n"
"""The content of a file. The diffs below change one and two of its lines to capitals."""
OLD_BLOB: Final = "85c30401ce288f253613cb07ee32e62128089caa"
BETA_BLOB: Final = "e50310a98706747e5f83d131572570985b069064"
BETA_HUNK: Final = "@@ -1,3 +1,3 @@\n alpha\n-beta\n+BETA\n gamma\n"
BOTH_BLOB: Final = "6d603e28ad29b2415fd065a92df6c2f14a100d3f"
BOTH_HUNK: Final = "@@ -1,3 +1,3 @@\n alpha\n-beta\n-gamma\n+BETA\n+GAMMA\n"

OUTSIDE_TOO: Final = {"approval-policy": "on-failure"}
"""Settings without a sandbox, with which patches may also change files outside the project."""

_SECONDS: Final = re.compile(r'"duration_seconds":\d+\.\d\}\}$')


# --- calls of the model ---------------------------------------------------------------------


def shell_call(*command: str, call_id: str = CALL_ID, **more: Any) -> Call:
    """Build a call of the shell with its arguments as text, which is sent back unchanged."""
    return Call("shell", json.dumps({"command": command, **more}), call_id)


def spellings(text: str) -> dict[str, Call]:
    """Return every form of a call that passes a patch, by name."""
    heredoc = f"<<'EOF'\n{text}\nEOF"
    commands = {
        "argv": ("apply_patch", text),
        "argv-wrapped": ("apply_patch", heredoc),
        "other-name": ("applypatch", text),
        "other-name-wrapped": ("applypatch", heredoc),
        "script": ("bash", "-lc", f"apply_patch {heredoc}"),
        "script-other-name": ("bash", "-lc", f"applypatch {heredoc}\n"),
    }
    return {
        **{name: shell_call(*command) for name, command in commands.items()},
        "function": Call("apply_patch", json.dumps({"input": text}), CALL_ID),
        "function-wrapped": Call("apply_patch", json.dumps({"input": heredoc}), CALL_ID),
    }


def calls_for(*patches: str) -> list[Call]:
    """Build one call of the function for each patch, with the ids c1, c2 and so on."""
    return [
        Call("apply_patch", json.dumps({"input": text}), f"c{number}")
        for number, text in enumerate(patches, start=1)
    ]


def sent(*calls: Call) -> list[CallSent]:
    """Return the calls of one response as the next request repeats them."""
    repeated: list[CallSent] = []
    for number, call in enumerate(calls, start=1):
        assert isinstance(call.arguments, str)
        assert call.call_id is not None
        repeated.append(CallSent(call.call_id, call.name, call.arguments, f"fc_{number}", same_response=number > 1))
    return repeated


# --- events for clients ----------------------------------------------------------------------


def added(content: str) -> OtherChange:
    return OtherChange(add=AddedFile(content=content))


def updated(unified_diff: str, *, move_path: str | None = None) -> OtherChange:
    return OtherChange(update=UpdatedFile(unified_diff=unified_diff, move_path=move_path))


def success(*lines: str) -> str:
    """Return the text for the model after a patch was applied."""
    return "".join(f"{line}\n" for line in ("Success. Updated the following files:", *lines))


def applied(
    changes: Mapping[str, FileChange], output: str, diff: str | None, *, call_id: str = CALL_ID
) -> tuple[EventMsg, ...]:
    """Build all events of an applied patch. If `diff` is None, the turn has changed nothing so far."""
    events = _events(changes, "stdout", output, call_id)
    return events if diff is None else (*events, TurnDiff(unified_diff=diff))


def not_written(changes: Mapping[str, FileChange], output: str, *, call_id: str = CALL_ID) -> tuple[EventMsg, ...]:
    """Build all events of a patch that could not be written."""
    return _events(changes, "stderr", output, call_id)


def _events(
    changes: Mapping[str, FileChange], stream: OutputStream, output: str, call_id: str
) -> tuple[EventMsg, ...]:
    named, whole = CallId(call_id), {"stdout": "", "stderr": "", stream: output}
    return (
        PatchApplyBegin(call_id=named, auto_approved=True, changes=dict(changes)),
        ExecCommandOutputDelta(call_id=named, stream=stream, chunk=tuple(output.encode())),
        PatchApplyEnd(call_id=named, stdout=whole["stdout"], stderr=whole["stderr"], success=stream == "stdout"),
    )


def turn(api: Api, *payloads: EventMsg) -> tuple[EventMsg, ...]:
    """Build the events of a turn with two responses: calls with their events, then `Done`."""
    return (task_started(), *shown(api, *payloads, SPENT, *said("Done")), task_complete("Done"))


def turn_diffs(messages: Sequence[Any]) -> list[str]:
    """Return all diffs in the events of a call."""
    return [one["unified_diff"] for one in events_in(messages) if one["type"] == "turn_diff"]


def diff_of(path: str, blob: str, hunks: str, *, before: str = OLD_BLOB, new_path: str | None = None) -> str:
    """Build the diff of a changed file, as git shows it."""
    names = path, new_path or path
    return (
        f"diff --git a/{names[0]} b/{names[1]}\nindex {before}..{blob}\n--- a/{names[0]}\n+++ b/{names[1]}\n{hunks}"
    )


def diff_of_new_a(work: Path) -> str:
    """Build the diff of a new file `a.txt` with the line `a`."""
    return (
        f"diff --git a/{work}/a.txt b/{work}/a.txt\nnew file mode 100644\n"
        f"index {NO_BLOB}..78981922613b2afb6025042ff6bd878ac1994e85\n"
        f"--- /dev/null\n+++ b/{work}/a.txt\n@@ -0,0 +1 @@\n+a\n"
    )


def at(work: Path, value: Any) -> Any:
    """Return the value with the directory in place of `WORK`."""
    return json.loads(json.dumps(value).replace("WORK", str(work)))


# --- texts for the model ----------------------------------------------------------------


def patch_output(output: str, *, exit_code: int = 0) -> str:
    """Build the output of a call that ran to its end, with a duration of zero."""
    metadata = {"exit_code": exit_code, "duration_seconds": 0.0}
    return json.dumps({"output": output, "metadata": metadata}, separators=(",", ":"), ensure_ascii=False)


def untimed_requests(model: ScriptedModel) -> list[Any]:
    """Return the bodies of all requests so far, with all durations replaced by zero."""
    return [_untimed(request.body) for request in model.requests]


def outputs(model: ScriptedModel) -> list[tuple[str, str]]:
    """Return the id and output of every call in the latest request."""
    asked = _untimed(model.requests[-1].body)
    if "messages" in asked:
        return [(one["tool_call_id"], one["content"]) for one in asked["messages"] if one["role"] == "tool"]
    return [(one["call_id"], one["output"]) for one in asked["input"] if one["type"] == "function_call_output"]


def _untimed(value: Any) -> Any:
    match value:
        case dict():
            return {key: _untimed(one) for key, one in value.items()}
        case list():
            return [_untimed(one) for one in value]
        case str():
            return _SECONDS.sub('"duration_seconds":0.0}}', value)
        case _:
            return value

"""Failures in the sandbox with `on-failure`: a person is asked whether to repeat the action without the sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from kit.builders.trees import patch, tree
from kit.clients.codex_calls import Wire, events_in, is_event
from kit.clients.messages import TASK_STARTED, agent_message, delta, task_complete
from kit.clients.patch_turns import calls_for, outputs
from kit.clients.requests import request, result
from kit.clients.shell_turns import begun, ended, gathered, output, shell, unended
from kit.system.needs import LANDLOCK, MECHANISMS
from parley.testing import Call, RawParley, ScriptedModel

REASON: Final = "command failed; retry without sandbox?"
DONE: Final = [delta("Done"), agent_message("Done"), task_complete("Done")]


@asynccontextmanager
async def asking(model: ScriptedModel, config: str) -> AsyncIterator[Wire]:
    """Start a server with a client that can be asked."""
    async with RawParley(model, config=config) as raw:
        info = {"name": "test", "version": "0"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {"elicitation": {}}, "clientInfo": info}
        raw.send(request("hello", "initialize", params))
        await raw.read_message()
        raw.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield Wire(raw)


async def asked_again(wire: Wire, number: int, call: Call, cwd: Path, sandbox: str, answer: Any) -> list[Any]:
    """Return the events of a turn with this call. The approval request for the retry gets this answer."""
    wire.model.says(call)
    arguments = {"sandbox": sandbox, "approval-policy": "on-failure", "cwd": str(cwd)}
    wire.codex(number, "go", **arguments)
    before = await wire.until(is_event("elicitation/create"))
    wire.raw.send(result(before[-1]["id"], answer))
    after = await wire.answer(number)
    return gathered(events_in([*before, *after]))[1:]


def background(message: str) -> Any:
    return {"type": "background_event", "message": message}


def asked(call_id: str, *command: str, cwd: Path) -> Any:
    approval = {"type": "exec_approval_request", "call_id": call_id, "command": list(command), "cwd": str(cwd)}
    return {**approval, "reason": REASON}


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_command_that_failed_in_the_sandbox_is_repeated_without_it_if_approved(
    parley_model: ScriptedModel, mechanism: str
) -> None:
    call = shell("c1", "touch", "proof")
    async with asking(parley_model, f'[sandbox]\nmechanism = "{mechanism}"\n') as wire:
        cwds = [wire.work / name for name in ("yes", "no", "with a reason")]
        answers = {"decision": "approved"}, {"decision": "denied"}, {"decision": "denied", "reason": "not here"}
        seen: list[list[Any]] = []
        texts: list[str] = []
        for number, (cwd, answer) in enumerate(zip(cwds, answers, strict=True), start=1):
            cwd.mkdir()
            seen.append(await asked_again(wire, number, call, cwd, "read-only", answer))
            texts += [text for _, text in outputs(parley_model)]

        for events, cwd in zip(seen, cwds, strict=True):
            said = events[2]["chunk"]
            stderr = bytes(said).decode()
            again = [
                background("retrying command without sandbox"),
                begun("c1", "touch", "proof", cwd=cwd),
                ended("c1"),
            ]
            assert events == [
                TASK_STARTED,
                begun("c1", "touch", "proof", cwd=cwd),
                output("c1", stderr, stream="stderr"),
                unended("c1", stderr),
                background(
                    f"Execution failed: sandbox denied exec error, exit code: 1, stdout: , stderr: {stderr}"
                ),
                asked("c1", "touch", "proof", cwd=cwd),
                *(again if cwd == cwds[0] else []),
                *DONE,
            ]
        assert texts == [
            '{"output":"","metadata":{"exit_code":0,"duration_seconds":0.0}}',
            "exec command rejected by user",
            "exec command rejected by user: not here",
        ]
        assert [(cwd / "proof").exists() for cwd in cwds] == [True, False, False]


@LANDLOCK
async def test_a_patch_that_failed_in_the_sandbox_is_written_without_it_if_approved(
    parley_model: ScriptedModel,
) -> None:
    # No file can be created there, which is found only when the patch is written.
    [call] = calls_for(patch("*** Add File: a.txt", "+a", "*** Add File: /proc/a.txt", "+a"))
    config = '[sandbox]\nmechanism = "landlock"\n[sandbox_workspace_write]\nwritable_roots = ["/proc"]\n'
    async with asking(parley_model, config) as wire:
        work = wire.work
        yes = await asked_again(wire, 1, call, work, "workspace-write", {"decision": "approved"})
        pairs = outputs(parley_model)
        no = await asked_again(wire, 2, call, work, "workspace-write", {"decision": "denied"})
        pairs += outputs(parley_model)

        changes = {f"{work}/a.txt": {"add": {"content": "a\n"}}, "/proc/a.txt": {"add": {"content": "a\n"}}}
        said = yes[3]["stderr"]
        begin = {"type": "patch_apply_begin", "call_id": "c1", "auto_approved": True, "changes": changes}
        end = {"type": "patch_apply_end", "call_id": "c1", "stdout": "", "stderr": said, "success": False}
        attempt = [begin, output("c1", said, stream="stderr"), end]
        failed = f"Execution failed: sandbox denied exec error, exit code: 1, stdout: , stderr: {said}"
        approval = {"type": "apply_patch_approval_request", "call_id": "c1", "changes": changes, "reason": REASON}
        first = [TASK_STARTED, *attempt, background(failed), approval]
        assert yes == [*first, background("retrying command without sandbox"), *attempt, *DONE]
        assert no == [*first, *DONE]
        assert said.startswith("Failed to write file /proc/a.txt: ")
        assert [text.startswith('{"output":"Failed to write file /proc/a.txt') for _, text in pairs] == [
            True,
            False,
        ]
        assert pairs[1] == ("c1", "patch rejected by user")
        assert tree(work) == {}

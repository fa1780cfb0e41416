"""Files that control Git, with Landlock: they are restored after a command, or a person must accept the change."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.codex_calls import Wire, events_in, is_event
from kit.clients.patch_turns import outputs
from kit.clients.requests import request, result
from kit.clients.shell_turns import sh, shell
from kit.system.needs import LANDLOCK
from parley.testing import RawParley, ScriptedModel

pytestmark = [LANDLOCK]

LANDLOCKED: Final = '[sandbox]\nmechanism = "landlock"\n'
FAILED: Final = "failed in sandbox LinuxSeccomp with execution error: sandbox denied exec error, exit code: 1"
BOLD: Final = "touch two; touch /usr/two"
"""A command that fails in the sandbox."""
RAN: Final = '{"output":"","metadata":{"exit_code":0,"duration_seconds":0.0}}'


@asynccontextmanager
async def asking(model: ScriptedModel) -> AsyncIterator[Wire]:
    """Start a server in a repository, with a client that can be asked."""
    async with RawParley(model, config=LANDLOCKED) as raw:
        (raw.work / ".git/hooks").mkdir(parents=True)
        (raw.work / ".git/HEAD").write_text("ref: refs/heads/main\n")
        (raw.work / ".git/config").write_text("[core]\n")
        params = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "test", "version": "0"},
        }
        raw.send(request("hello", "initialize", params))
        await raw.read_message()
        raw.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield Wire(raw)


class Conversations:
    """Runs each command in a new conversation, all in the same directory."""

    def __init__(self, wire: Wire, policy: str) -> None:
        self._wire, self._policy, self._number = wire, policy, 0

    async def run(self, script: str) -> str:
        """Run a command; return its output for the model."""
        await self._wire.answer(self._start(script))
        return self._output()

    async def run_asked(self, script: str, answer: Any) -> tuple[Any, str]:
        """Run a command that needs an approval. Return the approval request, and the output for the model."""
        number = self._start(script)
        before = await self._wire.until(is_event("elicitation/create"))
        self._wire.raw.send(result(before[-1]["id"], answer))
        await self._wire.answer(number)
        return events_in(before)[-1], self._output()

    def _start(self, script: str) -> int:
        self._number += 1
        self._wire.model.says(sh("c1", script))
        settings = {"sandbox": "workspace-write", "approval-policy": self._policy, "cwd": str(self._wire.work)}
        self._wire.codex(self._number, "go", **settings)
        return self._number

    def _output(self) -> str:
        [(_, output)] = outputs(self._wire.model)
        return re.sub(r"\.refused-[0-9a-f]{8}-", ".refused-X-", output)


def snapshot(git: Path) -> dict[str, str]:
    return {str(path.relative_to(git)): path.read_text() for path in git.rglob("*") if path.is_file()}


@pytest.mark.promises("sandbox.git")
async def test_changed_files_are_restored_and_added_ones_moved_aside(parley_model: ScriptedModel) -> None:
    async with asking(parley_model) as wire:
        git = wire.work / ".git"
        before = snapshot(git)

        output = await Conversations(wire, "never").run(
            "echo evil > .git/config; echo evil > .git/hooks/pre-commit"
        )

        after = snapshot(git)
        [moved] = after.keys() - before.keys()
        assert {name: text for name, text in after.items() if name != moved} == before
        assert output == (
            f"{FAILED}, stdout: , stderr: "
            f"protected files were changed while the command ran, and were restored: {git}/config\n"
            f"protected files were added while the command ran, and were moved aside: {git}/hooks/pre-commit "
            f"(now {git}/.refused-X-pre-commit)\n"
        )


@pytest.mark.promises("sandbox.git")
async def test_a_change_of_the_user_while_no_command_runs_stays(parley_model: ScriptedModel) -> None:
    async with asking(parley_model) as wire:
        git, conversations = wire.work / ".git", Conversations(wire, "never")

        outputs_seen = [await conversations.run("echo x > first")]
        (git / "config").write_text("[user]\n\tname = Me\n")
        (git / "hooks/pre-commit").write_text("#!/bin/sh\n")
        outputs_seen += [
            await conversations.run("echo x > second"),
            await conversations.run("echo evil > .git/config"),
        ]

        assert outputs_seen[:2] == [RAN, RAN]
        assert f"and were restored: {git}/config\n" in outputs_seen[2]
        assert snapshot(git) == {
            "HEAD": "ref: refs/heads/main\n",
            "config": "[user]\n\tname = Me\n",
            "hooks/pre-commit": "#!/bin/sh\n",
        }


@pytest.mark.promises("sandbox.git-unrestored")
async def test_after_files_could_not_be_restored_commands_need_an_approval(parley_model: ScriptedModel) -> None:
    async with asking(parley_model) as wire:
        git, conversations = wire.work / ".git", Conversations(wire, "on-request")
        reason = f"an earlier command changed protected files that could not be restored: {git}"

        first = await conversations.run("mv .git own")
        read = await conversations.run("cat own/config")
        asked, denied = await conversations.run_asked("touch one", {"decision": "denied"})
        again, approved = await conversations.run_asked(BOLD, {"decision": "approved_for_session"})
        once_more, third = await conversations.run(BOLD), await conversations.run("touch three")

        why = "and could not be restored"
        assert first == (
            f"{FAILED}, stdout: , stderr: protected files were changed while the command ran, {why}: "
            f"{git} (it was moved away or deleted)\n"
        )
        assert (read, denied, third) == (
            '{"output":"[core]\\n","metadata":{"exit_code":0,"duration_seconds":0.0}}',
            "exec command rejected by user",
            RAN,
        )
        approval = {"type": "exec_approval_request", "call_id": "c1", "cwd": str(wire.work), "reason": reason}
        assert [asked, again] == [
            {**approval, "command": ["sh", "-c", "touch one"]},
            {**approval, "command": ["sh", "-c", BOLD]},
        ]
        # The approval covers these files. It does not let the command leave the sandbox.
        assert (approved.startswith(FAILED), once_more.startswith(FAILED)) == (True, True)
        assert sorted(os.listdir(wire.work)) == ["own", "three", "two"]


@pytest.mark.promises("sandbox.git-unrestored", "approvals.model-words")
async def test_the_reasons_of_the_server_and_of_the_model_are_on_separate_lines(
    parley_model: ScriptedModel,
) -> None:
    async with asking(parley_model) as wire:
        git, conversations = wire.work / ".git", Conversations(wire, "on-request")
        reason = f"an earlier command changed protected files that could not be restored: {git}"

        await conversations.run("mv .git own")
        escalated = shell("c1", "touch", "a", with_escalated_permissions=True, justification="It is safe.")
        parley_model.says(escalated)
        wire.codex(
            "go", "go", **{"sandbox": "workspace-write", "approval-policy": "on-request"}, cwd=str(wire.work)
        )
        asked = (await wire.until(is_event("elicitation/create")))[-1]
        wire.call("list", "approvalsList", {})
        listed = json.loads(await wire.text("list"))["approvals"]
        wire.raw.send(result(asked["id"], {"decision": "denied"}))
        await wire.answer("go")

    question = f"Allow Codex to run `touch a` in `{wire.work}`, outside the sandbox?"
    assert [one["message"].split("\n") for one in listed] == [
        [reason, 'The model says: "It is safe."', question],
    ]


@pytest.mark.promises("sandbox.git-unrestored")
async def test_after_files_could_not_be_restored_commands_are_refused_under_never(
    parley_model: ScriptedModel,
) -> None:
    async with asking(parley_model) as wire:
        conversations = Conversations(wire, "never")

        await conversations.run("mv .git own")
        refused = await conversations.run("touch one")
        (wire.work / "own").rename(wire.work / ".git")
        repaired = await conversations.run("touch two")

        reason = "an earlier command changed protected files that could not be restored"
        assert (refused, repaired) == (f"exec command rejected: {reason}: {wire.work}/.git", RAN)
        assert sorted(os.listdir(wire.work)) == [".git", "two"]

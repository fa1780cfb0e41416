"""Names of arguments: every usual spelling is accepted, and a similar name is refused."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.approving import ApprovingClient, approving_client
from kit.clients.shell_turns import shell
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.needs import SANDBOX
from parley.testing import ScriptedModel
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

VERSIONS: Final = (PLAIN_VERSION, FULL_VERSION)
TOOLS: Final = ("codex", "conversationCreate", "conversationSendMessage")

POLICIES: Final = ("approval-policy", "approval_policy", "approvalPolicy")
MODES: Final = ("sandbox", "sandbox-mode", "sandbox_mode", "sandboxMode")

MISSPELT: Final = {
    "aproval_policy": "did you mean `{policy}`?",
    "approval-polcy": "did you mean `{policy}`?",
    "APPROVAL_POLICY": "did you mean `{policy}`?",
    "ApprovalPolicy": "did you mean `{policy}`?",
    "approvalpolicy": "did you mean `{policy}`?",
    "approval": "use `{policy}` and `sandbox`",
    "policy": "use `{policy}` and `sandbox`",
    "ask_for_approval": "use `{policy}` and `sandbox`",
    "Sandbox": "did you mean `sandbox`?",
    "sandox": "did you mean `sandbox`?",
    "sandbox_mod": "did you mean `sandbox`?",
    "sandbox_permissions": "use `{policy}` and `sandbox`",
    "cofig": "did you mean `config`?",
    "profil": "did you mean `profile`?",
    "Model": "did you mean `model`?",
}
"""Names that are refused, each with a part of the error."""

MISSPELT_SETTINGS: Final = {
    "approval-policy": "did you mean `approval_policy`?",
    "aproval_policy": "did you mean `approval_policy`?",
    "sandboxMode": "did you mean `sandbox_mode`?",
    "sandbox_mod": "did you mean `sandbox_mode`?",
    "sandbox_permissions": "expected one of `approval_policy`, `sandbox_mode`",
    "sandbox.mode": "expected one of `mechanism`",
    "sandbox_workspace_write.network": "expected one of `writable_roots`, `network_access`",
    "approvals.policy": "expected one of `timeout_seconds`, `on_timeout`",
    "limits.turn_token": "did you mean `limits.turn_tokens`?",
    "shell_environment_policy.ignore_default_exclude": "did you mean `shell_environment_policy.",
    "profiles.p.approvalPolicy": "did you mean `profiles.p.approval_policy`?",
    "profiles.p.sandbox_mode": "expected one of `approval_policy`",
    "profiles.p.network_access": "did you mean `sandbox_workspace_write.network_access`?",
    "network_access": "did you mean `sandbox_workspace_write.network_access`?",
    "writableRoots": "did you mean `sandbox_workspace_write.writable_roots`?",
    "hidden_paths": "did you mean `sandbox.hidden_paths`?",
    "turn_calls": "did you mean `limits.turn_calls`?",
    "include_only": "did you mean `shell_environment_policy.include_only`?",
}
"""Keys of the `config` argument and of `-c` that are refused, each with a part of the error."""


class Caller:
    """Starts turns by each tool, with given arguments."""

    def __init__(self, client: ApprovingClient) -> None:
        self.client = client
        self._conversation: str | None = None

    async def begin(self, tool: str, **arguments: Any) -> int:
        """Start a turn with these arguments. Return the id of the request that contains them."""
        client, work = self.client, str(self.client.work)
        if tool == "codex":
            return client.call(tool, prompt="go", cwd=work, **arguments)
        if tool == "conversationCreate":
            return client.call(tool, prompt="", model="m", cwd=work, **arguments)
        conversation = await self.streamed()
        return client.message(conversation, "go", **arguments)

    async def streamed(self) -> str:
        if self._conversation is None:
            self._conversation = await self.client.create()
            await self.client.open_stream(self._conversation)
        return self._conversation

    async def is_asked(self, tool: str, **arguments: Any) -> bool:
        """Return whether a command needs an approval in a turn with these arguments. The approval is denied."""
        client = self.client
        client.model.says(shell("c1", "touch", "file"))
        request = await self.begin(tool, **arguments)
        if tool == "conversationCreate":
            created = (await client.until_answer(request))[-1]["result"]
            conversation = created["structuredContent"]["conversation_id"]
            await client.open_stream(conversation)
            await client.say(conversation, "go")
        asked = False
        while True:
            match await client.read():
                case {"method": "elicitation/create", "id": approval}:
                    client.answer(approval, {"decision": "denied"})
                    asked = True
                case {"id": answered, "result": _} if tool == "codex" and answered == request:
                    return asked
                case {"method": "task_complete"} if tool != "codex":
                    return asked
                case _:
                    pass


def text_of(answer: Any) -> str:
    return str(answer["result"]["content"][0]["text"])


@pytest.mark.promises("tools.spelling")
@pytest.mark.parametrize("version", VERSIONS)
async def test_every_usual_spelling_of_the_policy_counts(parley_model: ScriptedModel, version: str) -> None:
    async with approving_client(parley_model, version=version) as client:
        caller = Caller(client)
        for tool in TOOLS:
            for name in POLICIES:
                assert await caller.is_asked(tool, **{name: "untrusted"}), (tool, name)


@SANDBOX
@pytest.mark.promises("tools.spelling")
async def test_every_usual_spelling_of_the_sandbox_counts(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model) as client:
        caller = Caller(client)
        for tool in TOOLS:
            for name in MODES:
                await caller.is_asked(tool, **{name: "read-only"})

                assert not (client.work / "file").exists(), (tool, name)


@pytest.mark.promises("tools.spelling")
@pytest.mark.parametrize("version", ["2024-11-05", *VERSIONS])
async def test_a_misspelt_argument_is_refused_before_anything_begins(
    parley_model: ScriptedModel, version: str
) -> None:
    async with approving_client(parley_model, version=version) as client:
        caller = Caller(client)
        for tool in TOOLS:
            policy = "approval-policy" if tool == "codex" else "approval_policy"
            await caller.streamed()
            before = await client.value_of(client.call("conversationsList"))
            for name, hint in MISSPELT.items():
                messages = await client.until_answer(await caller.begin(tool, **{name: "untrusted"}))

                assert len(messages) == 1, (tool, name)
                assert f"unknown argument `{name}`" in text_of(messages[0]), (tool, name)
                assert hint.format(policy=policy) in text_of(messages[0]), (tool, name)
            assert await client.value_of(client.call("conversationsList")) == before
        assert parley_model.requests == []


@pytest.mark.promises("tools.spelling")
async def test_a_tool_without_settings_refuses_them_too(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model) as client:
        conversation = await client.create()
        for tool, arguments in {
            "codex-reply": {"sessionId": conversation, "prompt": "go", "approval-policy": "untrusted"},
            "conversationStream": {"conversation_id": conversation, "sandbox": "read-only"},
            "conversationStatus": {"conversation_id": conversation, "sandbox": "read-only"},
        }.items():
            answer = await client.until_answer(client.call(tool, **arguments))

            assert text_of(answer[-1]).count("this tool has no such argument") == 1, tool
        assert parley_model.requests == []


@pytest.mark.promises("tools.spelling")
async def test_other_spellings_count_for_every_argument(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model) as client:
        conversation = await client.create()
        for name in ("conversation_id", "conversation-id", "conversationId"):
            status = await client.value_of(client.call("conversationStatus", **{name: conversation}))

            assert status["state"] == "idle"


@pytest.mark.promises("tools.spelling")
async def test_two_spellings_with_different_values_are_refused(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model) as client:
        caller = Caller(client)
        for tool in TOOLS:
            both = {"approval_policy": "untrusted", "approvalPolicy": "never"}
            messages = await client.until_answer(await caller.begin(tool, **both))
            same = {"approval_policy": "untrusted", "approvalPolicy": "untrusted", "approval-policy": None}

            refusal = "`approval_policy` and `approvalPolicy` are one argument with different values"
            assert refusal in text_of(messages[-1])
            assert await caller.is_asked(tool, **same)


@pytest.mark.promises("tools.spelling")
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_misspelt_setting_of_a_call_is_refused_before_anything_begins(
    parley_model: ScriptedModel, version: str
) -> None:
    async with approving_client(parley_model, version=version) as client:
        caller = Caller(client)
        for tool in TOOLS:
            for name, hint in MISSPELT_SETTINGS.items():
                request = await caller.begin(tool, config={name: "untrusted"})
                answer = (await client.until_answer(request))[-1]

                assert f"config argument: `{name}`: unknown setting" in text_of(answer), (tool, name)
                assert hint in text_of(answer), (tool, name)
        assert parley_model.requests == []


@pytest.mark.promises("tools.spelling")
async def test_a_profile_that_seems_to_restrict_the_agent_and_does_not_cannot_be_chosen(
    parley_model: ScriptedModel,
) -> None:
    config = 'sandbox_mode = "danger-full-access"\n[profiles.p]\nsandbox_mode = "read-only"\n[profiles.q]\n'
    async with approving_client(parley_model, config=config) as client:
        caller = Caller(client)
        for tool in TOOLS:
            for arguments in ({"profile": "p"}, {"config": {"profile": "p"}}):
                answer = (await client.until_answer(await caller.begin(tool, **arguments)))[-1]

                assert "`profiles.p.sandbox_mode`: unknown setting" in text_of(answer), (tool, arguments)
        assert parley_model.requests == []
        request = client.call("codex", prompt="go", profile="q")
        assert text_of((await client.until_answer(request))[-1]) == "Done"


async def test_settings_of_other_programs_are_ignored(parley_model: ScriptedModel) -> None:
    others = {
        "tui": {"theme": "x"},
        "features.sandboxes": True,
        "tools": {},
        "mcp_servers.x.approval": 1,
        "a": None,
    }
    async with approving_client(parley_model) as client:
        request = client.call("codex", prompt="go", config={**others, "mcp_servers.x.command": "true"})

        assert text_of((await client.until_answer(request))[-1]) == "Done"


@pytest.mark.promises("tools.spelling")
@pytest.mark.parametrize("name", ["aproval_policy", "sandboxMode", "sandbox.mode"])
async def test_a_misspelt_setting_of_the_command_line_stops_the_server(tmp_path: Path, name: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "parley", "mcp", "-c", f"{name}=untrusted"),
        env={"HOME": str(tmp_path)},
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        _, stderr = await process.communicate()

    assert process.returncode == 2
    assert f"parley mcp: -c: `{name}`: unknown setting" in stderr.decode()
    assert MISSPELT_SETTINGS[name] in stderr.decode()


@pytest.mark.promises("config.unknown")
async def test_unknown_keys_of_the_file_are_logged_once_with_the_nearest_known_one(
    parley_model: ScriptedModel,
) -> None:
    config = 'aproval_policy = "untrusted"\n[profiles.p]\nsandbox_mode = "read-only"\n[tui]\ntheme = "x"\n'
    async with approving_client(parley_model, config=config) as client:
        for _ in range(2):
            await client.create()
        file, log = client.raw.home / "config.toml", client.raw.stderr_text()
        text = file.read_text().splitlines()

    lines = [line[line.index(str(file)) :] for line in log.splitlines() if "unknown setting" in line]
    assert lines == [
        f"{file}, line {text.index(line) + 1}: `{key}`: unknown setting, ignored{hint}"
        for line, key, hint in (
            ('aproval_policy = "untrusted"', "aproval_policy", "; did you mean `approval_policy`?"),
            ('sandbox_mode = "read-only"', "profiles.p.sandbox_mode", ""),
            ("[tui]", "tui", ""),
        )
    ]

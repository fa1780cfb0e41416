"""Shell scripts of the model: safe scripts need no approval, and no script blocks the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.approving import ApprovingClient, approving_client, events_of, types_of
from kit.clients.shell_turns import shell
from kit.system.cpu import cpu_seconds
from kit.system.needs import SANDBOX
from parley.testing import ScriptedModel
from parley.testing.steps import Step

PROC: Final = Path("/proc/self/stat")

PLAIN: Final = ("ls", "find . -name '*.py'", 'ls 2>/dev/null | grep "a\\|b" && git log HEAD~1', "cat 'a b' || pwd")
NOT_PLAIN: Final = ("ls ./*", "ls 'a", "ls $x", "ls > a", "ls &")

HOSTILE: Final = {
    "pipes": "ls | " * 20_000 + "cat",
    "commands": "ls\n" * 30_000,
    "quotes": "ls " + "''\"\"" * 25_000,
    "words": "ls" + " a" * 50_000,
    "operators": "ls &&||;|" * 12_000,
    "heredocs": "cat <<E\n" * 12_000,
}
"""Scripts of about 100 kB. The unit test of the check has more kinds."""

CPU_SECONDS: Final = 1.5
"""The maximum CPU time in seconds of a complete turn with one script, on a slow machine."""


async def play(client: ApprovingClient, *steps: Step) -> list[Any]:
    """Run one turn in a new conversation and deny all approvals; return its messages."""
    client.model.says(*steps)
    request = client.codex()
    messages: list[Any] = []
    while True:
        messages.append(await client.read())
        match messages[-1]:
            case {"method": "elicitation/create", "id": approval}:
                client.answer(approval, {"decision": "denied"})
            case {"id": answer, "result": _} if answer == request:
                return messages
            case _:
                pass


@SANDBOX
@pytest.mark.promises("decide.safe")
async def test_plain_scripts_of_harmless_commands_run_without_approval(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model) as client:
        for script in PLAIN:
            messages = await play(client, shell("c1", "bash", "-lc", script))

            assert "elicitation/create" not in types_of(messages), script
            assert "exec_command_end" in [event["type"] for event in events_of(messages)], script


async def test_scripts_that_are_not_plain_need_an_approval(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model) as client:
        for script in NOT_PLAIN:
            messages = await play(client, shell("c1", "bash", "-lc", script))

            assert "elicitation/create" in types_of(messages), script


@pytest.mark.child_process
@pytest.mark.skipif(not PROC.exists(), reason="the CPU time of the server is read in /proc")
@pytest.mark.promises("decide.bounded")
async def test_a_hostile_script_needs_an_approval(parley_model: ScriptedModel) -> None:
    async with approving_client(parley_model) as client:
        await play(client, shell("c1", "bash", "-lc", "ls $x"))
        taken = dict[str, float]()
        for name, script in HOSTILE.items():
            before = cpu_seconds(client.raw.pid)
            messages = await play(client, shell("c1", "bash", "-lc", script))
            taken[name] = cpu_seconds(client.raw.pid) - before

            assert "elicitation/create" in types_of(messages), name
        assert {name: seconds for name, seconds in taken.items() if seconds > CPU_SECONDS} == {}

"""The approval request and the records of an action, and failures to store its settlement."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kit.builders.approvals import command_approval
from kit.builders.approvals_of_turn import approvals_in, gate_of, new_trust
from kit.builders.tools import NoCommands
from kit.builders.trees import not_a_link
from kit.servers.local_server import StandingClock
from kit.servers.slow_store import SlowStore
from kit.system.waiting import until
from parley.agent.policy import RETRY
from parley.config.load import Loader
from parley.config.types import ApprovalPolicy, Approvals, Settings, SettingsOverrides
from parley.conversation.records import ApprovalRequest
from parley.ports.commands import SandboxPolicy
from parley.ports.tools import Action, ApplyPatch, Granted, RejectedByUser, RunCommand
from parley.runtime.approvals import Answered
from parley.runtime.durable_log import WRITE_RETRY_SECONDS
from parley.runtime.permissions import Resumed
from parley.runtime.recipients import ReadingClient
from parley.stores.memory import MemoryStore
from parley.wire.ids import CallId
from parley.wire.principals import LOCAL


def settings_in(home: Path) -> Settings:
    loader = Loader(environ={"PARLEY_HOME": str(home)}, server_dir=str(home))
    wanted = SettingsOverrides(cwd=str(home), approval_policy="untrusted", sandbox="danger-full-access")
    return loader.choose(wanted).settings


def command(**more: Any) -> RunCommand:
    return RunCommand(call_id=CallId("c1"), argv=("touch", "a"), cwd="/project", **more)


def patch(**more: Any) -> ApplyPatch:
    return ApplyPatch(
        call_id=CallId("c1"), changes={"/project/a": "delete"}, paths=("/project/a",), inside_cwd=True, **more
    )


@pytest.mark.parametrize(
    ("action", "escalated", "has_failed"),
    [
        (command(), False, False),
        (command(escalated=True), True, False),
        (command(has_failed=True), False, True),
        (patch(), False, False),
        (patch(has_failed=True), False, True),
    ],
    ids=["a command", "one that wants out", "one that has failed", "a patch", "a patch that has failed"],
)
async def test_the_record_of_an_approval_holds_the_exact_request(
    tmp_path: Path, action: Action, escalated: bool, has_failed: bool
) -> None:
    approvals = await approvals_in(MemoryStore(), StandingClock())
    authorize = gate_of(approvals, NoCommands()).for_turn(settings_in(tmp_path))
    verdict = asyncio.create_task(authorize(action))
    await until(lambda: approvals.open is not None)
    approval = approvals.open
    assert approval is not None
    approvals.settle(approval.approval_id, "denied", by="tool", principal=LOCAL)

    assert await verdict == RejectedByUser()
    asked: ApprovalRequest = approval.request
    assert (asked.escalated, asked.has_failed) == (escalated, has_failed)


async def test_an_approval_for_the_session_counts_once_if_the_directory_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.symlink(tmp_path, tmp_path / "link")
    approvals, trust = await approvals_in(MemoryStore(), StandingClock()), new_trust()
    authorize = gate_of(approvals, NoCommands(), trust).for_turn(settings_in(tmp_path))
    monkeypatch.setattr(os, "readlink", not_a_link)
    verdict = asyncio.create_task(authorize(run("touch", "a", cwd=str(tmp_path / "link"))))
    await until(lambda: approvals.open is not None)
    assert approvals.open is not None
    approvals.settle(approvals.open.approval_id, "approved_for_session", by="tool", principal=LOCAL)

    assert (await verdict, approvals._log.projections.approvals.granted) == (Granted(by_person=True), {})


async def test_a_timeout_that_cannot_be_stored_leaves_the_approval_open_and_comes_again() -> None:
    store, clock = SlowStore(), StandingClock()
    approvals = await approvals_in(store, clock)
    approvals.register_reader("reader", ReadingClient(principal=LOCAL, can_be_asked=False, knows_limits=True))
    shown, asked = command_approval(1, "touch", "a")
    answer = asyncio.create_task(approvals.ask(shown, asked, Approvals(timeout_seconds=30)))
    await until(lambda: approvals.open is not None and clock.is_waited_for)
    store.slow = True
    clock.passes(30)
    await store.until_waiting()
    await store.fail()
    await until(lambda: approvals.open is not None and clock.is_waited_for)

    store.slow = False
    clock.passes(WRITE_RETRY_SECONDS)
    assert (await answer).decision == "denied"


@pytest.mark.parametrize("asked_again", ["the same", "another command", "another directory", "another call"])
async def test_an_earlier_answer_counts_once_and_only_for_the_same_request(
    tmp_path: Path, asked_again: str
) -> None:
    approvals = await approvals_in(MemoryStore(), StandingClock())
    _, asked = command_approval(1, "touch", "a")
    resumed = Resumed(asked, Answered(decision="approved"))
    authorize = gate_of(approvals, NoCommands()).for_turn(settings_in(tmp_path), resumed)
    action = {
        "the same": run("touch", "a"),
        "another command": run("touch", "b"),
        "another directory": run("touch", "a", cwd="/elsewhere"),
        "another call": run("touch", "a", call_id="call2"),
    }[asked_again]
    if asked_again == "the same":
        assert await authorize(action) == Granted(by_person=True)

    verdict = asyncio.create_task(authorize(action))
    await until(lambda: approvals.open is not None)
    assert approvals.open is not None
    approvals.settle(approvals.open.approval_id, "denied", by="tool", principal=LOCAL)
    assert await verdict == RejectedByUser()


class Confining(NoCommands):
    """A command runner that can confine every command."""

    async def why_unconfined(self, policy: SandboxPolicy) -> str | None:
        return None


@pytest.mark.parametrize(
    ("policy", "reason", "holds"),
    [("on-failure", RETRY, True), ("on-failure", "it is harmless", False), ("untrusted", RETRY, False)],
    ids=["the same", "another reason", "other settings"],
)
async def test_an_approved_retry_covers_only_what_the_settings_would_ask_after_a_failure(
    tmp_path: Path, policy: ApprovalPolicy, reason: str, holds: bool
) -> None:
    approvals = await approvals_in(MemoryStore(), StandingClock())
    _, asked = command_approval(1, "touch", "a", reason=reason, leaves_sandbox=True)
    resumed = Resumed(replace(asked, has_failed=True), Answered(decision="approved"))
    settings = replace(settings_in(tmp_path), approval_policy=policy, sandbox_mode="workspace-write")
    authorize = gate_of(approvals, Confining()).for_turn(settings, resumed)

    permitting = asyncio.create_task(authorize(run("touch", "a")))
    await until(lambda: permitting.done() or approvals.open is not None)
    if policy == "untrusted":
        assert approvals.open is not None
        approvals.settle(approvals.open.approval_id, "denied", by="tool", principal=LOCAL)
    verdict = await permitting

    assert (verdict == Granted(by_person=True)) is holds


def run(*argv: str, cwd: str = "/project", call_id: str = "call1") -> RunCommand:
    return RunCommand(call_id=CallId(call_id), argv=argv, cwd=cwd)

"""The approval request and the records of an action, and failures to store its settlement."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kit.builders.questions import command_question
from kit.builders.questions_of_turn import gate_of, new_trust, questions_in
from kit.builders.tools import NoCommands
from kit.builders.trees import not_a_link
from kit.servers.local_server import StandingClock
from kit.servers.slow_store import SlowStore
from parley.agent.policy import RETRY
from parley.config.load import Loader
from parley.config.types import ApprovalPolicy, Approvals, Settings, SettingsOverrides
from parley.conversation.records import QuestionAsked
from parley.ports.commands import SandboxPolicy
from parley.ports.tools import Action, ApplyPatch, Granted, RejectedByUser, RunCommand
from parley.runtime.approvals import Answered
from parley.runtime.durable_log import BETWEEN_TRIES_SECONDS
from parley.runtime.permissions import Resumed
from parley.stores.memory import MemoryStore
from parley.wire.ids import CallId

ROUNDS = 20
"""More turns of the loop than asking takes."""


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
    assert holds()


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
async def test_the_record_of_a_question_says_what_exactly_was_asked(
    tmp_path: Path, action: Action, escalated: bool, has_failed: bool
) -> None:
    questions = await questions_in(MemoryStore(), StandingClock())
    authorize = gate_of(questions, NoCommands()).for_turn(settings_in(tmp_path))
    verdict = asyncio.create_task(authorize(action))
    await until(lambda: questions.open is not None)
    question = questions.open
    assert question is not None
    questions.settle(question.approval_id, "denied", by="tool")

    assert await verdict == RejectedByUser()
    asked: QuestionAsked = question.request
    assert (asked.escalated, asked.has_failed) == (escalated, has_failed)


async def test_an_approval_for_the_session_counts_once_if_the_directory_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.symlink(tmp_path, tmp_path / "link")
    questions, trust = await questions_in(MemoryStore(), StandingClock()), new_trust()
    authorize = gate_of(questions, NoCommands(), trust).for_turn(settings_in(tmp_path))
    monkeypatch.setattr(os, "readlink", not_a_link)
    verdict = asyncio.create_task(authorize(run("touch", "a", cwd=str(tmp_path / "link"))))
    await until(lambda: questions.open is not None)
    assert questions.open is not None
    questions.settle(questions.open.approval_id, "approved_for_session", by="tool")

    assert (await verdict, questions._log.projections.approvals.granted) == (Granted(by_person=True), {})


async def test_a_timeout_that_cannot_be_stored_leaves_the_question_open_and_comes_again() -> None:
    store, clock = SlowStore(), StandingClock()
    questions = await questions_in(store, clock)
    questions.register_reader("somebody", can_be_asked=False, knows_limits=True)
    shown, asked = command_question(1, "touch", "a")
    answer = asyncio.create_task(questions.ask(shown, asked, Approvals(timeout_seconds=30)))
    await until(lambda: questions.open is not None)
    store.slow = True
    clock.passes(30)
    await store.until_waiting()
    await store.fail()
    await until(lambda: questions.open is not None)

    store.slow = False
    clock.passes(BETWEEN_TRIES_SECONDS)
    assert (await answer).decision == "denied"


@pytest.mark.parametrize("asked_again", ["the same", "another command", "another directory", "another call"])
async def test_an_answer_from_before_is_for_what_was_asked_and_for_that_once(
    tmp_path: Path, asked_again: str
) -> None:
    questions = await questions_in(MemoryStore(), StandingClock())
    _, asked = command_question(1, "touch", "a")
    resumed = Resumed(asked, Answered(decision="approved"))
    authorize = gate_of(questions, NoCommands()).for_turn(settings_in(tmp_path), resumed)
    wish = {
        "the same": run("touch", "a"),
        "another command": run("touch", "b"),
        "another directory": run("touch", "a", cwd="/elsewhere"),
        "another call": run("touch", "a", call_id="call2"),
    }[asked_again]
    if asked_again == "the same":
        assert await authorize(wish) == Granted(by_person=True)

    verdict = asyncio.create_task(authorize(wish))
    await until(lambda: questions.open is not None)
    assert questions.open is not None
    questions.settle(questions.open.approval_id, "denied", by="tool")
    assert await verdict == RejectedByUser()


class Confining(NoCommands):
    """A command runner that can confine every command."""

    async def why_unconfined(self, bounds: SandboxPolicy) -> str | None:
        return None


@pytest.mark.parametrize(
    ("policy", "reason", "holds"),
    [("on-failure", RETRY, True), ("on-failure", "it is harmless", False), ("untrusted", RETRY, False)],
    ids=["the same", "another reason", "other settings"],
)
async def test_an_approved_retry_covers_only_what_the_settings_would_ask_after_a_failure(
    tmp_path: Path, policy: ApprovalPolicy, reason: str, holds: bool
) -> None:
    questions = await questions_in(MemoryStore(), StandingClock())
    _, asked = command_question(1, "touch", "a", reason=reason, leaves_sandbox=True)
    resumed = Resumed(replace(asked, has_failed=True), Answered(decision="approved"))
    settings = replace(settings_in(tmp_path), approval_policy=policy, sandbox_mode="workspace-write")
    authorize = gate_of(questions, Confining()).for_turn(settings, resumed)

    permitting = asyncio.create_task(authorize(run("touch", "a")))
    await until(lambda: permitting.done() or questions.open is not None)
    if policy == "untrusted":
        assert questions.open is not None
        questions.settle(questions.open.approval_id, "denied", by="tool")
    verdict = await permitting

    assert (verdict == Granted(by_person=True)) is holds


def run(*argv: str, cwd: str = "/project", call_id: str = "call1") -> RunCommand:
    return RunCommand(call_id=CallId(call_id), argv=argv, cwd=cwd)

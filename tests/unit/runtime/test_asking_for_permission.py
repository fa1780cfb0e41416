"""What is asked and written down of an action, and what a failure to settle it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.hands import NoCommands
from kit.questions import command_question
from kit.room import StandingClock
from parley.agent.bounds import Roots
from parley.config.load import Loader
from parley.config.types import Approvals, Settings, Wanted
from parley.conversation.log import Happened
from parley.conversation.questions import Ledger
from parley.conversation.records import QuestionAsked, QuestionSettled
from parley.ports.tools import Action, ApplyPatch, Denied, RunCommand
from parley.runtime.permits import Permits
from parley.runtime.questions import Questions
from parley.wire.ids import CallId

ROUNDS = 20
"""More turns of the loop than asking takes."""


@dataclass
class Notebook:
    """Questions that are written down nowhere but in their own ledger."""

    broken: bool = False

    def __post_init__(self) -> None:
        self.clock = StandingClock()
        self.ledger = Ledger()
        self.questions = Questions(self.ledger, append=self._append, interrupt=lambda: None, clock=self.clock)

    def _append(self, *happened: Happened) -> None:
        if self.broken and isinstance(happened[0], QuestionSettled):
            raise OSError("no room is left")
        for one in happened:
            self.ledger.apply(one, at=self.clock.now())


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
    assert holds()


def settings_in(home: Path) -> Settings:
    loader = Loader(environ={"PARLEY_HOME": str(home)}, server_dir=str(home))
    wanted = Wanted(cwd=str(home), approval_policy="untrusted", sandbox="danger-full-access")
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
    notebook = Notebook()
    permit = Permits(notebook.questions, NoCommands(), Roots({})).for_turn(settings_in(tmp_path))
    verdict = asyncio.create_task(permit(action))
    await until(lambda: notebook.questions.open is not None)
    question = notebook.questions.open
    assert question is not None
    notebook.questions.settle(question.approval_id, "denied", by="tool")

    assert await verdict == Denied()
    asked: QuestionAsked = question.asked
    assert (asked.escalated, asked.has_failed) == (escalated, has_failed)


async def test_a_timeout_that_cannot_be_written_down_is_logged_and_leaves_the_question_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notebook = Notebook(broken=True)
    questions = notebook.questions
    questions.read_by("somebody", can_be_asked=False)
    shown, asked = command_question(1, "touch", "a")
    answer = asyncio.create_task(questions.ask(shown, asked, Approvals(timeout_seconds=30)))
    await until(lambda: questions.open is not None)
    notebook.clock.passes(30)
    await until(lambda: len(caplog.records) == 1)

    notebook.broken = False
    questions.settle(asked.approval_id, "approved", by="tool")
    assert (await answer).decision == "approved"
    assert caplog.messages == ["a question that nobody could be asked was not settled"]

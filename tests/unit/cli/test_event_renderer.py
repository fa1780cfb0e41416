"""Events as readable lines: `parley.cli.event_renderer` and `parley.cli.command_lines`."""

from __future__ import annotations

from io import StringIO

import pytest
from msgspec.structs import replace

from kit.builders.events import (
    agent_message,
    agent_reasoning,
    background_event,
    error,
    exec_command_begin,
    exec_command_end,
    task_complete,
    task_started,
    token_count,
    user_message,
)
from parley.cli.event_renderer import EventRenderer
from parley.client import Event, events
from parley.wire.ids import ApprovalId, CallId, MessageId

CALL = CallId("c")
HOSTILE = "\x1b[2J\x9b1m\u202e"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def rendered(*shown: Event, cwd: str | None = "/project", out: StringIO | None = None) -> str:
    out = StringIO() if out is None else out
    renderer = EventRenderer(out, cwd=cwd)
    for event in shown:
        renderer.render(event)
    renderer.end_line()
    return out.getvalue()


def delta(text: str) -> Event:
    return events.AgentMessageDelta(delta=text)


def output(text: bytes, *, call_id: str = "c", stream: events.OutputStream = "stdout") -> Event:
    return events.ExecCommandOutputDelta(call_id=CallId(call_id), stream=stream, chunk=tuple(text))


def updated(diff: str, *, move_path: str | None = None) -> events.FileChange:
    return events.OtherChange(update=events.UpdatedFile(unified_diff=diff, move_path=move_path))


def test_a_turn_reads_as_the_work_that_was_done() -> None:
    changes: dict[str, events.FileChange] = {
        "/project/new.py": events.OtherChange(add=events.AddedFile(content="a\nb\rB\n")),
        "/project/src/old.py": updated("@@ -1,2 +1,3 @@\n a\n-b\n+B\n+C\n"),
        "/project/name.py": updated("", move_path="/project/other.py"),
        "/project/marks.sql": updated("@@ -1,2 +1,2 @@\n--- guard\n+++ x\r+++ y\u2028+++ z\n same\n"),
        "/elsewhere/gone.py": "delete",
    }
    turn = [
        task_started(),
        user_message("Fix\nit."),
        agent_reasoning("I look first."),
        exec_command_begin("c", "bash", "-lc", "pytest -q"),
        output(b"1 failed\nexit"),
        output(b"ing\n", stream="stderr"),
        exec_command_end("c", exit_code=1),
        events.PatchApplyBegin(call_id=CallId("p"), auto_approved=True, changes=changes),
        output(b"Success. Updated the following files:\nA new.py\n", call_id="p"),
        events.PatchApplyEnd(call_id=CallId("p"), stdout="", stderr="", success=True),
        events.TurnDiff(unified_diff="@@ -1 +1 @@\n-b\n+B\n"),
        agent_message("Fixed."),
        token_count(input_tokens=1200, output_tokens=30),
        task_complete("Fixed."),
    ]

    assert rendered(*turn).splitlines() == [
        "> Fix",
        "> it.",
        "thinking: I look first.",
        "$ pytest -q",
        "  1 failed",
        "  ing",
        "  exit",
        "  exit code 1 (0.0 s)",
        "patch:",
        "  A new.py +2",
        "  M src/old.py +2 -1",
        "  R name.py -> other.py +0 -0",
        "  M marks.sql +1 -1",
        "  D /elsewhere/gone.py",
        "Fixed.",
        "tokens: 1,200 input, 30 output",
    ]


def test_a_text_that_arrives_in_pieces_is_shown_once_and_keeps_its_indentation() -> None:
    code = "def f():\n    return  1"

    assert rendered(delta("def f():\n    ret"), delta("urn  1"), agent_message(code)) == f"{code}\n"
    assert rendered(agent_message(code)) == f"{code}\n"


def test_a_text_that_another_event_interrupts_is_not_repeated() -> None:
    shown = rendered(delta("Half, "), user_message("Wait."), delta("whole."), agent_message("Half, whole."))

    assert shown == "Half, \n\n> Wait.\nwhole.\n"


def test_the_text_of_an_interrupted_turn_is_not_part_of_the_next() -> None:
    interrupted = error(" Turn interrupted", reason="interrupted")
    shown = rendered(task_started(), delta("Half"), interrupted, task_started(), delta("x"), agent_message("x"))

    assert shown == "Half\ninterrupted\nx\n"


def test_a_long_output_shows_its_beginning_and_its_end() -> None:
    numbers = b"".join(b"%d\n" % number for number in range(1, 101))
    shown = rendered(exec_command_begin("c", "seq", "100"), output(numbers), exec_command_end("c")).splitlines()

    assert shown == [
        "$ seq 100",
        *(f"  {number}" for number in range(1, 21)),
        "  ... 70 more lines",
        *(f"  {number}" for number in range(91, 101)),
        "  exit code 0 (0.0 s)",
    ]


def test_output_is_decoded_across_pieces_and_a_progress_bar_shows_its_last_state() -> None:
    euro = "€".encode()
    begin = exec_command_begin("c", "x")
    shown = rendered(begin, output(b"1%\r50%\r100%\r\n" + euro[:1]), output(euro[1:]), exec_command_end("c"))

    assert shown == "$ x\n  100%\n  €\n  exit code 0 (0.0 s)\n"


def test_a_command_elsewhere_names_its_directory_and_a_script_keeps_its_lines() -> None:
    begin = exec_command_begin("c", "sh", "-c", "cd a\nls", cwd="/tmp")

    assert rendered(begin, exec_command_end("c", exit_code=-1)) == (
        "$ cd a\n  ls  (in /tmp)\n  not completed, or failed in the sandbox (0.0 s)\n"
    )
    assert rendered(exec_command_begin("c", "echo", "a b")) == "$ echo 'a b'\n"


def test_a_patch_that_was_not_applied_says_why() -> None:
    begin = events.PatchApplyBegin(call_id=CALL, auto_approved=False, changes={"/project/a": "delete"})
    end = events.PatchApplyEnd(call_id=CALL, stdout="", stderr="no such\nfile", success=False)

    assert rendered(begin, end) == "patch:\n  D a\n  not applied: no such file\n"


def test_plans_tools_searches_and_retries_are_shown() -> None:
    steps = (
        events.PlanStep(step="look", status="completed"),
        events.PlanStep(step="fix", status="in_progress"),
        events.PlanStep(step="test", status="pending"),
    )
    call = events.Invocation(server="docs", tool="find", arguments={"text": "x" * 300})
    took = events.Duration(secs=1, nanos=200_000_000)
    failed = events.ToolCallOutcome(err="no such page")
    page = events.WebSearchResult(url="https://a.example", title="A")
    shown = rendered(
        events.PlanUpdate(explanation="next", plan=steps),
        events.McpToolCallBegin(call_id=CALL, invocation=call),
        events.McpToolCallEnd(call_id=CALL, invocation=call, duration=took, result=failed),
        events.WebSearch(call_id="s", query="cheese", results=(page,)),
        events.WebSearch(call_id="s", query="cheese", results=(), error="unavailable"),
        events.PatchRefused(call_id=CALL, message="empty\npatch"),
        events.RequestRetry(attempt=1, max_attempts=4, delay_ms=1500, reason="429 Too Many Requests"),
        background_event("The history was summarized."),
    ).splitlines()

    assert shown[:4] == ["plan: next", "  [x] look", "  [>] fix", "  [ ] test"]
    assert shown[4].startswith('docs.find {"text":"xxx')
    assert shown[4].endswith("x…")
    assert shown[5:] == [
        "  failed: no such page (1.2 s)",
        "web search: cheese; 1 results",
        "web search: cheese; failed: unavailable",
        "patch not applied: empty patch",
        "retry 1 of 4 in 1.5 s: 429 Too Many Requests",
        "The history was summarized.",
    ]


def test_approvals_show_the_whole_command_and_their_settlement_with_its_principal() -> None:
    settled = events.ApprovalSettled(
        approval_id=ApprovalId("a"), call_id=CALL, decision="denied", by="tool", principal="ada", reason="not now"
    )
    shown = rendered(
        events.ExecApprovalRequest(call_id=CALL, command=("sh", "-c", "rm x"), cwd="/project", reason="cleanup"),
        settled,
        events.ApplyPatchApprovalRequest(call_id=CALL, changes={"/project/a": "delete"}),
        events.LimitReached(limit="turn_cost", used=1_500_000, allowed=1_000_000),
    )

    assert shown == (
        "approval needed: cleanup\n  sh -c 'rm x'  (in /project)\n  denied (ada): not now\n"
        "approval needed:\n  D a\n"
        "approval needed: the limit turn_cost is reached (1.50 of 1.00)\n"
    )


def test_the_tokens_of_a_turn_are_added_up_and_shown_at_its_end() -> None:
    used = replace(token_count(input_tokens=1000, output_tokens=20, cached=500), cost_micros=2500)

    assert rendered(task_started(), used, used, task_complete(None), task_started(), task_complete(None)) == (
        "tokens: 2,000 input (1,000 cached), 40 output, cost 0.0050\n"
    )


def test_messages_name_their_sender_and_long_ones_are_cut() -> None:
    long = "\n".join(str(number) for number in range(1, 13))
    shown = rendered(user_message("Hers.", principal="ada"), user_message(long, principal="local")).splitlines()

    assert shown[0] == "> Hers. (ada)"
    assert shown[1:3] == ["", "> 1"]
    assert shown[-2:] == ["> 10", "> ... 2 more lines"]


def test_queue_and_workspace_are_shown_and_events_of_newer_servers_are_named() -> None:
    moved = events.WorkspaceUpdated(repository="r", branch="b", commit="a" * 40, pushed=False, message="no network")
    shown = rendered(
        events.QueueChanged(messages=(MessageId("m"),), paused=True),
        moved,
        events.UnknownEvent(type="new_event", encoded=b"{}"),
    )

    assert shown == "queue: 1 waiting, paused\ncommit aaaaaaaaaaaa on b, not pushed: no network\n(new_event)\n"


@pytest.mark.parametrize(
    "event",
    [
        delta(HOSTILE),
        agent_message(HOSTILE),
        agent_reasoning(HOSTILE),
        user_message(HOSTILE),
        error(HOSTILE),
        exec_command_begin("c", "bash", "-c", HOSTILE),
        output(HOSTILE.encode() + b"\n"),
        events.ExecApprovalRequest(call_id=CALL, command=("a", HOSTILE), cwd="/", reason=HOSTILE),
        events.PatchApplyBegin(call_id=CALL, auto_approved=True, changes={HOSTILE: "delete"}),
        events.UnknownEvent(type=HOSTILE, encoded=b"{}"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_no_event_acts_on_a_terminal(event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = rendered(event, delta("end"), out=Terminal())

    assert r"\x1b[2J\u009b1m\u202e" in shown
    assert shown.replace("\n", "").isprintable()


def test_a_terminal_gets_colours_that_always_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = rendered(exec_command_begin("c", "ls"), output(b"a\n"), exec_command_end("c"), out=Terminal())

    assert shown == "\x1b[1m$ ls\x1b[0m\n\x1b[2m  a\x1b[0m\n  exit code 0 (0.0 s)\n"

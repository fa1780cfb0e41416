"""Renders the trace of `parley demo`: `parley.cli.trace_renderer`, `parley.cli.steps` and `parley.cli.printing`."""

from __future__ import annotations

from io import StringIO

import pytest

from kit.builders.events import agent_message, error, task_complete, task_started, user_message
from parley.cli.printing import for_terminal, print_json, print_text
from parley.cli.steps import StepPrinter
from parley.cli.trace_renderer import TraceRenderer
from parley.client import Event, events
from parley.wire.ids import ApprovalId, CallId


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def rendered(*shown: Event, out: StringIO | None = None) -> str:
    out = StringIO() if out is None else out
    printer = StepPrinter(out)
    renderer = TraceRenderer(printer)
    for event in shown:
        renderer.render(event, live=True)
    printer.end_line()
    return out.getvalue()


def delta(text: str) -> Event:
    return events.AgentMessageDelta(delta=text)


def test_a_message_is_shown_once() -> None:
    assert rendered(delta("Half, "), delta("whole."), agent_message("Half, whole.")) == (
        "   <- agent_message_delta, one by one, as they are written:\n"
        "      Half, whole.\n"
        "   <- agent_message: the same 12 characters, whole\n"
    )
    assert rendered(agent_message("Whole.")) == "   <- agent_message:\n      Whole.\n"


def test_principals_other_than_the_local_user_are_named() -> None:
    settled = events.ApprovalSettled(
        approval_id=ApprovalId("a"), call_id=CallId("c"), decision="denied", by="tool", principal="ada"
    )
    output = rendered(
        user_message("Mine.", principal="local"),
        user_message("Hers.", principal="ada"),
        settled,
        error(" Turn interrupted", principal="ada"),
    )

    assert output == (
        "   <- user_message:\n      Mine.\n"
        "   <- user_message (ada):\n      Hers.\n"
        "   <- approval_settled: denied, by tool (ada)\n"
        "   <- error: Turn interrupted (ada)\n"
    )


def test_a_message_of_which_only_a_part_was_shown_is_shown_whole() -> None:
    output = rendered(delta("Half, "), agent_message("Half, whole."), agent_message("Another."))

    assert output.endswith(
        "      Half,\n   <- agent_message:\n      Half, whole.\n   <- agent_message:\n      Another.\n"
    )


def test_the_text_of_an_interrupted_turn_is_not_part_of_the_next() -> None:
    turns = [
        task_started(),
        delta("Half"),
        error(" Turn interrupted"),
        task_started(),
        delta("x"),
        agent_message("x"),
    ]

    assert "agent_message: the same 1 characters" in rendered(*turns)


def test_messages_of_the_user_and_errors_have_their_text() -> None:
    output = rendered(task_started(), user_message("go\non"), error("no such model"), task_complete(None))

    assert output == (
        "   <- task_started\n   <- user_message:\n      go\n      on\n"
        "   <- error: no such model\n   <- task_complete\n"
    )


def test_a_diff_without_hunks_is_shown() -> None:
    assert rendered(events.TurnDiff(unified_diff="rename from a")) == "   <- turn_diff:\n      rename from a\n"


@pytest.mark.parametrize(
    "event",
    [
        delta("\x1b[2J\x9b1m\u202e"),
        agent_message("\x1b[2J\x9b1m\u202e"),
        user_message("\x1b[2J\x9b1m\u202e"),
        error("\x1b[2J\x9b1m\u202e"),
        events.ExecCommandBegin(call_id=CallId("c"), command=("a", "\x1b[2J\x9b1m\u202e"), cwd="/", parsed_cmd=()),
        events.UnknownEvent(type="\x1b[2J\x9b1m\u202e", encoded=b"{}"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_no_event_acts_on_a_terminal(event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output = rendered(event, delta("end"), out=Terminal())

    assert r"\x1b[2J\u009b1m\u202e" in output
    assert output.replace("\n", "").isprintable()


def test_text_keeps_lines_and_emoji() -> None:
    family = "\U0001f468\u200d\U0001f469 \u2764\ufe0f"

    assert for_terminal(f"one\r\ntwo\tthree {family}") == f"one\ntwo\tthree {family}"


def test_what_is_not_for_a_terminal_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("\x1b[2J")
    print_json({"text": "\x1b \u202e \xe4"})

    assert capsys.readouterr().out == '\x1b[2J\n{"text":"\\u001b \u202e \xe4"}\n'


def test_a_search_a_refused_patch_and_a_limit_on_the_cost_are_shown() -> None:
    printer = events.WebSearchResult(url="https://a.example", title="A")
    found = events.WebSearch(call_id="s", query="cheese", results=(printer,))
    failed = events.WebSearch(call_id="s", query="cheese", results=(), error="unavailable")
    refused = events.PatchRefused(call_id=CallId("c1"), message="empty patch")
    limit = events.LimitReached(limit="turn_cost", used=1_500_000, allowed=1_000_000)

    assert "web_search: cheese; results: 1" in rendered(found)
    assert "web_search: cheese; unavailable" in rendered(failed)
    assert "patch_refused: empty patch" in rendered(refused)
    assert "limit_reached: turn_cost, 1.50 of 1.00" in rendered(limit)


def test_a_retry_of_a_request_is_shown_with_its_reason_and_delay() -> None:
    retry = events.RequestRetry(attempt=1, max_attempts=4, delay_ms=1500, reason="429 Too Many Requests")

    assert "request_retry: 429 Too Many Requests; retrying 1/4 in 1.5 s" in rendered(retry)


@pytest.mark.parametrize("out", [StringIO, Terminal])
def test_long_lines_of_output_and_diffs_are_shown_whole(out: type[StringIO]) -> None:
    line = "x" * 200
    output = events.ExecCommandOutputDelta(call_id=CallId("c"), stream="stdout", chunk=tuple(f"{line}\n".encode()))
    diff = events.TurnDiff(unified_diff=f"@@ -1 +1 @@\n+{line}")

    assert f"      {line}\n" in rendered(output, out=out())
    assert f"      +{line}\n" in rendered(diff, out=out())

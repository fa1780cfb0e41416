"""What the chat prints and what it keeps live.

Modules: `parley.cli.chat.view`, `parley.cli.chat.live`, `parley.cli.chat.markdown`, `parley.cli.chat.rich_blocks`,
`parley.cli.chat.status`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from prompt_toolkit.utils import get_cwidth
from rich.table import Table

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
from parley.cli.chat import markdown as chat_markdown
from parley.cli.chat.blocks import Block
from parley.cli.chat.live import MAX_FORMATTED, LiveRegion, LiveState
from parley.cli.chat.markdown import MarkdownRenderer
from parley.cli.chat.status import status_line
from parley.cli.chat.view import ChatView
from parley.cli.printing import for_terminal
from parley.client import Event, StreamEvent, events
from parley.wire.ids import CallId, ItemId, MessageId, Seq
from parley.wire.notifications import EventMeta
from parley.wire.text import unseen
from parley.wire.tools import NO_TOKENS

CALL = CallId("c")
ALLOWED = set(map(ord, "\n\t\u200d\ufe0e\ufe0f"))
"""Invisible characters that may be printed without colours."""


@pytest.fixture(autouse=True)
def _without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


class Chat:
    """A view with its live region."""

    def __init__(self, *, width: int = 80, formats: bool = False) -> None:
        self.now = 0.0
        self.seq = 0
        self.state = LiveState()
        markdown = MarkdownRenderer(colour=False)
        if formats:
            markdown.load()
        self.region = LiveRegion(self.state, markdown, clock=lambda: self.now, width_of=get_cwidth)
        self.view = ChatView(
            self.state,
            markdown,
            cwd="/project",
            colour=False,
            width=lambda: width,
            clock=lambda: self.now,
            width_of=get_cwidth,
        )

    def show(self, *shown: Event, item: str = "i") -> str:
        """Show events, and return what was printed."""
        for event in shown:
            self.seq += 1
            self.view.show(StreamEvent(event, EventMeta(item=ItemId(item), seq=Seq(self.seq)), True))
        return self.view.take_printed()

    def live(self, width: int = 80, height: int = 10) -> list[str]:
        return [text for _, text in self.region.lines(width=width, height=height)]


def delta(text: str) -> Event:
    return events.AgentMessageDelta(delta=text)


def output(text: str) -> Event:
    return events.ExecCommandOutputDelta(call_id=CALL, stream="stdout", chunk=tuple(text.encode()))


def test_finished_blocks_are_printed_once_and_the_open_block_is_live() -> None:
    chat = Chat()

    assert chat.show(task_started(), delta("One.\n\nTw")) == "One.\n"
    assert chat.live()[:2] == ["", "Tw"]
    assert chat.show(delta("o.")) == ""
    assert chat.show(agent_message("One.\n\nTwo.")) == "\nTwo.\n"
    assert chat.live() == ["working 0 s · Esc interrupts"]


def test_a_text_that_was_not_streamed_is_printed_whole() -> None:
    assert Chat().show(agent_message("# One\ntwo")) == "# One\n\ntwo\n"


def test_the_end_of_a_text_that_was_missed_is_printed() -> None:
    chat = Chat()

    assert chat.show(delta("One.\n\nTw")) == "One.\n"
    assert chat.show(agent_message("One.\n\nTwo.\n\nThree.")) == "\nTwo.\n\nThree.\n"


def test_markdown_is_formatted_and_control_characters_are_escaped() -> None:
    text = "**bold** `code` \x1b[2J 日本語 🙂\n\n- item\n\n```python\nx = 1\n```"

    printed = Chat(formats=True).show(agent_message(text))

    assert printed == "bold code \\x1b[2J 日本語 🙂\n\n • item\n\n  x = 1\n"


@pytest.mark.parametrize(
    "text",
    [
        "<http://x/%1B%5B2J%1B%5D52;c;YWJj%1B%5C>",
        "- <http://x/%1b%5b31mred%0D%0Aline>",
        "| a |\n|---|\n| <http://x/%9B> &#x202E; |",
        "# &#x202e;&ZeroWidthSpace; **&lrm;** [a&rlm;](b)",
        "> ![&#xAD;](x) &#13;",
    ],
)
def test_control_characters_that_the_markdown_parser_decodes_are_escaped(text: str) -> None:
    printed = Chat(formats=True).show(agent_message(text))

    assert printed == for_terminal(printed)
    assert "\\" in printed or "%9B" in printed


def test_a_formatted_line_fits_the_width() -> None:
    markdown = MarkdownRenderer(colour=True)
    markdown.load()

    lines = markdown.lines(Block("text", "日本語 **word** " * 40), 40)

    assert len(lines) > 5
    assert all(len(line) > 0 for line in lines)


@pytest.mark.parametrize("marker", [">", "> ", "- ", "1. "])
def test_a_text_in_many_levels_is_shown_as_its_source(marker: str, capfd: pytest.CaptureFixture[str]) -> None:
    markdown = MarkdownRenderer(colour=True)
    markdown.load()
    text = marker * 2_000 + "end"

    assert markdown.lines(Block("text", f"before\n{text}"), 80) == ["before", text]
    assert capfd.readouterr().err == ""


def test_a_block_that_takes_too_long_is_shown_as_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    markdown = MarkdownRenderer(colour=True)
    markdown.load()
    monkeypatch.setattr(chat_markdown, "FORMAT_SECONDS", 0.05)
    slow = Block("code", "a" * 19_000, "amdgpu")  # the lexer needs quadratic time
    shown = [markdown.lines(slow, 80) for _ in range(chat_markdown.MAX_SLOW)]

    assert shown == [[slow.text]] * chat_markdown.MAX_SLOW
    assert markdown.lines(Block("text", "**word**"), 80) == ["**word**"]


def test_tables_of_commands_are_escaped() -> None:
    table = Table("name")
    table.add_row("a\x1b[8mb\x07")

    lines = MarkdownRenderer(colour=True).render_escaped(table, 40)

    assert "a\\x1b[8mb " in "\n".join(lines)  # `rich` removes other control characters itself


def test_a_text_that_the_agent_discards_stays_and_is_marked() -> None:
    chat = Chat()
    chat.show(task_started(), delta("Half a "))

    printed = chat.show(background_event("reconnecting"), delta("Whole."), agent_message("Whole."))

    assert printed == "Half a \n\n(the agent did not complete this text)\nreconnecting\n\nWhole.\n"


def test_reasoning_is_folded_and_can_be_expanded() -> None:
    chat = Chat()
    thought = "**Looking around**\n\nA listing will tell."

    assert chat.show(events.AgentReasoningDelta(delta=thought)) == ""
    assert "A listing will tell." in chat.live()
    assert chat.show(agent_reasoning(thought)) == "thinking: Looking around (+1 lines, Ctrl-O shows them)\n"
    assert chat.live() == []
    assert chat.view.expand()
    assert chat.view.take_printed() == "thinking:\n  **Looking around**\n  \n  A listing will tell.\n"
    assert not chat.view.expand()


def test_the_whole_reasoning_is_shown_on_request() -> None:
    chat = Chat()
    chat.view.shows_reasoning = True

    assert chat.show(agent_reasoning("one\ntwo")) == "thinking: one\n  two\n"


def test_a_running_command_shows_the_end_of_its_output() -> None:
    chat = Chat()
    begin = exec_command_begin(CALL, "make")

    printed = chat.show(begin, output("".join(f"line {number}\n" for number in range(30))))
    chat.now = 65

    assert printed.splitlines() == ["$ make", *(f"  line {number}" for number in range(8))]
    assert chat.live() == [*(f"  line {number}" for number in range(26, 30)), "  running 1 min 5 s: make"]

    assert chat.show(exec_command_end(CALL, exit_code=0)).splitlines()[:2] == ["  ... 14 more lines", "  line 22"]
    assert chat.live() == []
    assert chat.view.expand()
    assert "line 15\n" in chat.view.take_printed()


def test_the_plan_is_live_and_printed_at_the_end_of_the_turn() -> None:
    chat = Chat()
    steps = tuple(
        events.PlanStep(step=f"step {number}", status="completed" if number < 4 else "pending")
        for number in range(9)
    )

    assert chat.show(task_started(), events.PlanUpdate(explanation=None, plan=steps)) == ""
    assert chat.live()[:2] == ["[x] step 3", "[ ] step 4"]
    assert "[ ] step 8" in chat.show(task_complete())
    assert chat.live() == []


def test_messages_are_pending_until_their_events() -> None:
    chat = Chat()
    chat.view.add_pending("m1", "first", is_queued=False)
    chat.view.add_pending("m2", "second", is_queued=False)

    assert chat.live() == ["sending: > first", "sending: > second"]

    chat.show(events.QueueChanged(messages=(MessageId("m2"),), paused=False))
    assert chat.show(user_message("first", message_id="m1")) == "> first\n"
    assert chat.live() == ["queued: > second"]

    chat.show(events.QueueChanged(messages=(MessageId("m2"),), paused=True))
    assert chat.live() == ["queued: > second", "queue: paused until the next message or /queue continue"]

    chat.show(events.QueueChanged(messages=(), paused=False))
    assert chat.live() == []


def test_the_patch_is_shown_with_its_diff_unless_the_approval_showed_it() -> None:
    changes = {"/project/a": events.OtherChange(add=events.AddedFile(content="x\n"))}
    begin = events.PatchApplyBegin(call_id=CALL, auto_approved=True, changes=dict(changes))
    chat = Chat()

    assert chat.show(begin) == "patch:\n  A a +1\n  add /project/a\n  +x\n"

    asked = events.ApplyPatchApprovalRequest(call_id=CALL, changes=dict(changes), reason=UNSET)
    assert "+x" in chat.show(asked)
    assert chat.show(begin) == "patch:\n  A a +1\n"


def test_the_live_region_never_exceeds_its_height() -> None:
    chat = Chat()
    chat.show(task_started(), delta("word " * 500), events.PlanUpdate(explanation=None, plan=()))

    for height in range(1, 12):
        for width in (10, 40):
            lines = chat.live(width, height)
            assert len(lines) <= height
            assert all(get_cwidth(line) <= width for line in lines)


PROSE = "A message that is too long for one row"


@pytest.mark.parametrize(
    ("event", "rows"),
    [
        (user_message(PROSE), ["> A message that is", "> too long for one", "> row"]),
        (background_event(PROSE), ["A message that is", "  too long for one", "  row"]),
        (
            events.PlanUpdate(explanation=None, plan=(events.PlanStep(step=PROSE, status="pending"),)),
            ["plan:", "  [ ] A message that", "      is too long", "      for one row"],
        ),
        (user_message("日本語 " * 4), ["> 日本語 日本語", "> 日本語 日本語"]),
        (user_message("x" * 25), [f"> {'x' * 18}", f"> {'x' * 7}"]),
        (exec_command_begin(CALL, "sh", "-c", PROSE), [f"$ {PROSE}"]),
        (events.PatchRefused(call_id=CALL, message=PROSE), [f"patch not applied: {PROSE}"]),
    ],
    ids=["message", "background", "plan", "wide", "long word", "command", "refused patch"],
)
def test_prose_is_wrapped_between_words_and_verbatim_text_is_not(event: Event, rows: list[str]) -> None:
    chat = Chat(width=20)
    printed = chat.show(event)
    if isinstance(event, events.PlanUpdate):
        printed = chat.show(task_complete())

    assert printed.splitlines() == rows


def test_notes_and_reasoning_are_wrapped_between_words() -> None:
    chat = Chat(width=20)
    chat.view.note(PROSE)
    chat.show(agent_reasoning(f"Title\n\n{PROSE}"))
    chat.view.take_printed()
    assert chat.view.expand()
    expanded = chat.view.take_printed()
    chat.show(events.AgentReasoningDelta(delta=PROSE))

    assert expanded.splitlines()[-3:] == ["  A message that is", "  too long for one", "  row"]
    assert [line.strip() for line in chat.live(20)] == ["A message that is", "too long for one row"]


def test_a_very_long_block_is_live_as_the_end_of_its_source() -> None:
    chat = Chat(formats=True)
    chat.show(delta("x" * (2 * MAX_FORMATTED) + " **end**"))

    assert "**end**" in chat.live()[-1]


def test_an_interrupted_turn_is_over() -> None:
    chat = Chat()
    printed = chat.show(
        task_started(),
        token_count(input_tokens=1, output_tokens=2),
        error("Turn interrupted", reason="interrupted"),
    )

    assert printed.startswith("interrupted\ntokens: ")
    assert chat.live() == []


HOSTILE = st.lists(
    st.sampled_from(
        ["\x1b[2J", "\x9b1m", "\u202e", "\x07", "\r", "\t", "\n", "\n\n", "```", "- ", "日本", "🙂", "word ", "\\"]
    )
).map("".join)
SHOWN = st.one_of(
    HOSTILE.map(delta),
    HOSTILE.map(agent_message),
    HOSTILE.map(agent_reasoning),
    HOSTILE.map(lambda text: events.AgentReasoningDelta(delta=text)),
    HOSTILE.map(lambda text: exec_command_begin(CALL, "sh", "-c", text)),
    HOSTILE.map(output),
    HOSTILE.map(lambda text: error(text, reason="interrupted")),
    HOSTILE.map(background_event),
    HOSTILE.map(user_message),
    HOSTILE.map(
        lambda text: events.PlanUpdate(explanation=text, plan=(events.PlanStep(step=text, status="pending"),))
    ),
    HOSTILE.map(
        lambda text: events.ApplyPatchApprovalRequest(
            call_id=CALL, changes={text: events.OtherChange(add=events.AddedFile(content=text))}, reason=text
        )
    ),
    HOSTILE.map(lambda text: events.ExecApprovalRequest(call_id=CALL, command=(text, text), cwd=text, reason=text)),
    st.builds(task_started),
    st.builds(task_complete),
    st.builds(lambda: exec_command_end(CALL)),
)


@given(shown=st.lists(SHOWN, max_size=12), height=st.integers(1, 12), width=st.integers(10, 60))
def test_no_event_controls_the_terminal_or_exceeds_the_screen(shown: list[Event], height: int, width: int) -> None:
    chat = Chat(width=width, formats=True)
    for event in shown:
        printed = chat.show(event)
        live = chat.region.lines(width=width, height=height)

        assert unseen(printed).keys() <= ALLOWED
        assert len(live) <= height
        for _, line in live:
            assert get_cwidth(line) <= width
            assert unseen(line).keys() <= ALLOWED - {ord("\n"), ord("\t")}


def test_tokens_that_the_status_contains_are_not_counted_twice() -> None:
    chat = Chat()
    chat.view.usage_seq = 1
    chat.show(token_count(input_tokens=1, output_tokens=2), token_count(input_tokens=10, output_tokens=20))

    assert (chat.view.usage.input_tokens, chat.view.usage.output_tokens) == (10, 20)


def test_the_status_line_is_cut_to_the_width() -> None:
    line = status_line(
        state="asking",
        settings=None,
        overrides={},
        attachments=1,
        cwd="/very/long/日本語/path",
        usage=NO_TOKENS,
        width=30,
        width_of=get_cwidth,
    )

    assert line.startswith("waits for you · 1 attached")
    assert get_cwidth(line) <= 30

"""Keys that answer an approval, and words that begin with such a key: `parley.cli.chat.approval_dialog`,
`parley.cli.chat.chat` and `parley.cli.chat.screen`.

The time is simulated.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser

import pytest
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from prompt_toolkit.utils import get_cwidth

from kit.system.simulated_time import run_in_simulated_time
from parley.cli import chat_command
from parley.cli.chat.approval_dialog import ANSWER_DELAY_SECONDS
from parley.cli.chat.approvals import QUIET_SECONDS
from parley.cli.chat.chat import Chat
from parley.cli.chat.live import Styled
from parley.cli.chat.screen import Screen
from parley.client import Approval
from parley.wire.ids import CallId

SOON, TYPING = ANSWER_DELAY_SECONDS * 0.9, 0.1
ENTER, ESCAPE, BACKSPACE, CTRL_C = "\r", "\x1b", "\x7f", "\x03"
PASTE = "\x1b[200~top\x1b[201~"


class OneApproval(Chat):
    """A chat without a server, in whose conversation one approval is open."""

    def __init__(self) -> None:
        parser = ArgumentParser()
        chat_command.configure(parser)
        super().__init__(parser.parse_args([]), None, (), colour=False, width_of=get_cwidth)
        self.decisions: list[str] = []
        self.sent: list[str] = []
        self.interrupts = 0
        self.asked: Approval | None = Approval(
            self._record,
            kind="exec",
            message="",
            approval_id="a",
            conversation_id="conversation",
            call_id=CallId("c"),
            command=("git", "push"),
            cwd="/project",
            changes=None,
            leaves_sandbox=False,
        )

    async def _record(self, decision: str, reason: str | None, timeout_seconds: float | None) -> None:
        self.asked = None
        self.decisions.append(decision if reason is None else f"{decision}: {reason}")

    @property
    def _open_approval(self) -> Approval | None:
        return self.asked

    def first_frame_drawn(self) -> None:
        pass

    def submit(self, text: str, *, queue: bool) -> None:
        if text and not self._dialog.is_denying:
            self.sent.append(text)
        super().submit(text, queue=queue)

    def escape(self) -> None:
        self.interrupts += 1


class Answering:
    """The state of a chat with an approval after some keys."""

    def __init__(self, chat: OneApproval, screen: Screen) -> None:
        self.chat, self.screen = chat, screen
        self.panel: list[Styled] = chat.panel_lines(width=80)

    @property
    def result(self) -> tuple[list[str], str]:
        """The decisions, and the text in the input."""
        return self.chat.decisions, self.screen.input_text


def typed(*keys: str | float) -> Answering:
    """Press keys in simulated time after the question has been on the screen for `QUIET_SECONDS`. A number is a
    pause in seconds.
    """

    async def run() -> Answering:
        chat = OneApproval()
        with create_pipe_input() as given:
            screen = Screen(chat, history=InMemoryHistory(), colour=False, output=DummyOutput(), input=given)
            chat._screen = screen
            running = asyncio.create_task(screen.run())
            await asyncio.sleep(2 * QUIET_SECONDS)
            for key in keys:
                if isinstance(key, str):
                    given.send_text(key)
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(key)
            answering = Answering(chat, screen)
            screen.exit()
            await running
        return answering

    return run_in_simulated_time(run)


def spelled(word: str) -> list[str | float]:
    return [step for letter in word for step in (letter, TYPING)]


@pytest.mark.parametrize("word", ["stop", "also", "add a test", "deny", "aa", "ss", "x!", "d'accord", "så"])
def test_a_word_decides_nothing_and_becomes_text(word: str) -> None:
    assert typed(*spelled(word), 5.0).result == ([], word)
    assert typed(word, 5.0).result == ([], word)


def test_a_word_is_sent_as_a_message() -> None:
    answering = typed(*spelled("stop"), ENTER, 5.0)

    assert answering.result == ([], "")
    assert answering.chat.sent == ["stop"]


@pytest.mark.parametrize(("key", "decision"), [("a", "approved"), ("s", "approved_for_session"), ("x", "abort")])
def test_a_key_without_a_following_key_decides_after_the_delay(key: str, decision: str) -> None:
    assert typed(key, SOON).result == ([], "")
    assert typed(key, 2 * ANSWER_DELAY_SECONDS).result == ([decision], "")


def test_a_key_without_a_following_key_begins_the_reason_for_a_denial() -> None:
    assert typed("d", 1.0, *spelled("not today"), ENTER, 1.0).result == (["denied: not today"], "")


@pytest.mark.parametrize(
    ("key", "decision"),
    [("a", "approved"), ("s", "approved_for_session"), ("d", "denied"), ("x", "abort")],
)
def test_enter_confirms_a_key_at_once(key: str, decision: str) -> None:
    assert typed(key, TYPING, ENTER, TYPING).result == ([decision], "")
    assert typed(key + ENTER, TYPING).result == ([decision], "")


@pytest.mark.parametrize("back", [ESCAPE, BACKSPACE, CTRL_C])
def test_a_key_is_taken_back(back: str) -> None:
    answering = typed("s", TYPING, back, 5.0)

    assert answering.result == ([], "")
    assert answering.chat.interrupts == 0
    assert [text for _, text in answering.panel][1:] == [
        "a allow once   s allow for the session   d deny   x deny and stop"
    ]


def test_any_other_key_cancels_the_answer() -> None:
    for other in ("\t", "\x1b[D", "\x0c", "\x1b[A"):
        assert typed("a", TYPING, other, 5.0).result == ([], "")
    assert typed("s", TYPING, PASTE, 5.0).result == ([], "stop")


def test_a_key_that_was_taken_back_can_be_pressed_again() -> None:
    assert typed("s", TYPING, ESCAPE, 1.0, "a", 1.0).result == (["approved"], "")
    assert typed("s", TYPING, ESCAPE, QUIET_SECONDS / 2, "a", 5.0).result == ([], "a")  # too soon after a key


def test_the_dialog_shows_the_key_while_it_waits() -> None:
    assert typed("s", SOON).panel == [
        ("class:question", "Run this command?"),
        ("class:chosen", "s allow for the session"),
        ("class:hint", "Esc takes the answer back."),
    ]


def test_an_empty_input_names_the_help_until_something_is_sent() -> None:
    async def run() -> list[str]:
        chat = OneApproval()
        shown = [chat.placeholder()]  # an approval is open
        chat.asked = None
        shown.append(chat.placeholder())
        chat.submit("hello", queue=False)
        return [*shown, chat.placeholder()]

    assert run_in_simulated_time(run) == ["", "/help lists the commands", ""]


def test_a_key_does_not_answer_a_later_approval() -> None:
    async def run() -> list[str]:
        chat = OneApproval()
        chat.panel_lines(width=80)
        pending = chat._dialog.set_pending("a")
        assert pending is not None
        first, chat.asked = chat.asked, OneApproval().asked
        chat.panel_lines(width=80)
        await chat._answer_pending(pending)
        assert first is not chat.asked
        chat._dialog.set_pending("a")
        chat.key_pressed()
        chat.asked = OneApproval().asked
        chat.confirm_cancelled_key()
        await asyncio.sleep(1)
        return chat.decisions

    assert run_in_simulated_time(run) == []

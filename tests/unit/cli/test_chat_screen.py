"""The keys of the chat: `parley.cli.chat.screen`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.input.base import PipeInput
from prompt_toolkit.output import DummyOutput

from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.cli.chat.live import Styled
from parley.cli.chat.screen import Screen

ESCAPE, ENTER, TAB, NEW_LINE = "\x1b", "\r", "\t", "\x1b\r"
PASTE = "\x1b[200~{}\x1b[201~"


class Recorder:
    """Actions that only record how they are called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answers = False
        """True if a key may answer an approval."""
        self.done = asyncio.Event()

    def first_frame_drawn(self) -> None:
        self.calls.append("first frame")

    def live_lines(self, *, width: int, height: int) -> list[Styled]:
        return []

    def panel_lines(self, *, width: int) -> list[Styled]:
        return []

    def prompt(self) -> str:
        return "> "

    def placeholder(self) -> str:
        return ""

    def status_line(self, *, width: int) -> str:
        return "status"

    def submit(self, text: str, *, queue: bool) -> None:
        self.calls.append(f"{'queue' if queue else 'send'} {text!r}")

    def key_pressed(self) -> None:
        pass

    def answer_key(self, key: str) -> bool:
        return self.answers and key != "s"

    def answer_after_delay(self, key: str) -> None:
        self.calls.append(f"answer {key}")

    def cancelled_key(self) -> str | None:
        return None

    def confirm_cancelled_key(self) -> None:
        pass

    def answer(self, key: str) -> None:
        pass

    def escape(self) -> None:
        self.calls.append("escape")

    def interrupt_key(self, *, is_empty: bool) -> None:
        self.calls.append("interrupt, empty" if is_empty else "interrupt")

    def leave(self) -> None:
        self.done.set()

    def expand(self) -> None:
        self.calls.append("expand")


@asynccontextmanager
async def shown(recorder: Recorder) -> AsyncIterator[tuple[Screen, PipeInput]]:
    with create_pipe_input() as keys:
        screen = Screen(recorder, history=InMemoryHistory(), colour=False, output=DummyOutput(), input=keys)
        running = asyncio.create_task(screen.run())
        yield screen, keys
        screen.exit()
        await running


async def calls_after(text: str, *, answers: bool = False) -> list[str]:
    """Press keys, and then Ctrl-D until the chat ends. Return the calls."""
    recorder = Recorder()
    recorder.answers = answers
    async with asyncio.timeout(TIMEOUT_SECONDS), shown(recorder) as (_, keys):
        keys.send_text(text)
        while not recorder.done.is_set():  # Ctrl-D ends the chat only if the input is empty
            keys.send_text("\x15\x04")
            await asyncio.sleep(0.01)
    assert recorder.calls[0] == "first frame"
    return recorder.calls[1:]


@pytest.mark.parametrize(
    ("keys", "calls"),
    [
        (f"hello{ENTER}", ["send 'hello'"]),
        (f"later{TAB}", ["queue 'later'"]),
        (f"  {TAB}", []),
        (f"one{NEW_LINE}two{ENTER}", ["send 'one\\ntwo'"]),
        (f"one\ntwo{ENTER}", ["send 'one\\ntwo'"]),
        (PASTE.format("a\nx\r\ny") + ENTER, ["send 'a\\nx\\ny'"]),
        ("draft\x03", ["interrupt"]),
        ("draft\x03\x03", ["interrupt", "interrupt, empty"]),
        ("\x0f", ["expand"]),
        (f"日本語🙂{ENTER}", ["send '日本語🙂'"]),
    ],
)
async def test_keys(keys: str, calls: list[str]) -> None:
    assert await calls_after(keys) == calls


async def test_escape_alone_interrupts() -> None:
    recorder = Recorder()
    async with asyncio.timeout(TIMEOUT_SECONDS), shown(recorder) as (_, keys):
        keys.send_text(ESCAPE)
        await until(lambda: "escape" in recorder.calls)


@pytest.mark.parametrize(
    ("keys", "calls"),
    [
        ("a", ["answer a"]),
        ("dx", ["answer d", "answer x"]),
        (f"s{ENTER}", ["send 's'"]),  # the approval has no such answer
        (f"mad{ENTER}", ["send 'mad'"]),  # the input is not empty any more
        (PASTE.format("a") + ENTER, ["send 'a'"]),
        (f"b\x7fa{ENTER}", ["answer a", "send ''"]),
    ],
)
async def test_keys_while_an_approval_is_open(keys: str, calls: list[str]) -> None:
    assert await calls_after(keys, answers=True) == calls


async def test_keys_that_are_typed_ahead_are_text() -> None:
    assert await calls_after(f"a{ENTER}") == ["send 'a'"]

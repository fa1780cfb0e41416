"""The chat on a terminal that cannot move its cursor (`TERM=dumb`), such as a shell in an editor.

The chat prints finished lines only, and reads whole lines. The user answers an approval with a word instead of a
key, so that a line that was typed ahead cannot answer a question by accident.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from parley.cli.chat.terminal import Actions

__all__ = ["ANSWER_WORDS", "PlainTerminal"]

ANSWER_WORDS: Final = {"/approve": "a", "/session": "s", "/deny": "d", "/abort": "x"}
FRAME_SECONDS: Final = 0.1
_HINT: Final = "Answer with /approve, /session (approve for the session), /deny REASON or /abort."


class PlainTerminal:
    """Implements `Terminal` with printed lines only, without a live region."""

    input_text = ""
    """Empty, because the terminal itself edits the input."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._printed: list[str] = []
        self._before: Callable[[], None] = lambda: None
        self._frame: asyncio.TimerHandle | None = None
        self._question: list[str] = []
        """The lines of the question that is open; an empty list if no question is open."""
        self._shown: list[str] = []
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._ended = asyncio.Event()

    @property
    def size(self) -> tuple[int, int]:
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        descriptor = sys.stdin.fileno()
        loop.add_reader(descriptor, self._read, descriptor)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        self._actions.first_frame_drawn()
        try:
            await self._ended.wait()
        finally:
            loop.remove_reader(descriptor)
            if self._frame is not None:
                self._frame.cancel()
            with suppress(OSError):  # the terminal was closed
                self._draw()

    def exit(self) -> None:
        self._ended.set()

    def _interrupt(self) -> None:
        """Handle Ctrl-C: interrupt the running turn, or exit the chat at the second Ctrl-C in a row."""
        self._actions.key_pressed()
        self._actions.escape()
        self._actions.interrupt_key(is_empty=True)

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, 65536)
        *lines, self._partial = (self._partial + self._decoder.decode(data, final=not data)).split("\n")
        for line in lines:
            self._handle(line)
        if not data:
            self._actions.leave()

    def _handle(self, line: str) -> None:
        self._actions.key_pressed()
        word, _, reason = line.strip().partition(" ")
        if (key := ANSWER_WORDS.get(word)) is None or not self._question:
            self._actions.submit(line, queue=False)
            return
        self._actions.answer(key)
        if key == "d":
            self._actions.submit(reason, queue=False)

    # --- output ----------------------------------------------------------------------------

    def print(self, text: str) -> None:
        if text:
            self._printed.append(text)

    def changed(self, before: Callable[[], None]) -> None:
        self._before = before
        if self._frame is None:
            self._frame = asyncio.get_running_loop().call_later(FRAME_SECONDS, self._draw)

    def _draw(self) -> None:
        self._frame = None
        self._before()
        panel = self._actions.panel_lines(width=self.size[0])
        question = [text for style, text in panel if style == "class:question"]
        # The other lines of a question name keys, but this terminal reads only lines.
        shown = [*question, _HINT] if question else [text for _, text in panel]
        if shown != self._shown:
            self._printed += [f"{line}\n" for line in shown]
        self._question, self._shown = question, shown
        sys.stdout.write("".join(self._printed))
        sys.stdout.flush()
        self._printed.clear()

    def set_input(self, text: str) -> None:
        if text:
            self.print(f"(the text was not sent: {text})\n")

    def extend(self, completer: object, keys: object) -> None:
        """Ignore the completer and the key bindings, because this terminal reads whole lines."""

    async def overlay(self, container: object, *, focus: object, key_bindings: object) -> Any:
        """Print that this terminal cannot show lists. Return None, as if the user had chosen nothing."""
        self.print("This list needs a terminal that can move its cursor. Give an id instead.\n")
        return None

"""The screen of the chat: an input line, and a live region above it that shows the unfinished work.

Finished text is written above the live region, into the scrollback of the terminal. The screen uses neither the
mouse nor the alternate screen, except for short overlays. Importing this module imports prompt_toolkit.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from prompt_toolkit.application import Application
from prompt_toolkit.application.run_in_terminal import in_terminal
from prompt_toolkit.auto_suggest import DummyAutoSuggest
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer, DummyCompleter, DynamicCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import History
from prompt_toolkit.input.base import Input
from prompt_toolkit.key_binding import (
    DynamicKeyBindings,
    KeyBindings,
    KeyBindingsBase,
    KeyPressEvent,
    merge_key_bindings,
)
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    AnyContainer,
    BufferControl,
    Dimension,
    Float,
    FloatContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.containers import ConditionalContainer
from prompt_toolkit.layout.layout import FocusableElement
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from parley.cli.chat.approvals import ANSWERS
from parley.cli.chat.live import Styled
from parley.cli.chat.terminal import Actions

__all__ = ["Screen", "width_of"]

FRAME_SECONDS: Final = 0.08
"""The minimum time, in seconds, between two frames that are drawn because of events. When the user presses a key, a
frame is drawn immediately.
"""
BUSY_SHARE: Final = 4
"""The minimum interval between two frames that are drawn because of events, as a multiple of the time that it took
to draw the last frame. Therefore, even a slow computer has most of the time for handling keys.
"""
ESCAPE_SECONDS: Final = 0.1
"""The number of seconds for which the screen waits after the Esc character for the rest of an escape sequence, such
as the sequence of Alt-Enter.
"""
TICK_SECONDS: Final = 1.0
INPUT_LINES: Final = 8
MENU_LINES: Final = 8
MIN_LIVE_LINES: Final = 3

STYLE: Final = Style.from_dict(
    {
        "dim": "fg:ansibrightblack",
        "prompt": "bold fg:ansicyan",
        "status": "fg:ansibrightblack",
        "activity": "fg:ansicyan",
        "notice": "fg:ansiyellow",
        "question": "bold fg:ansiyellow",
        "key": "bold",
        "chosen": "bold reverse",
        "hint": "fg:ansibrightblack",
    }
)


def width_of(text: str) -> int:
    """Return the number of terminal columns that a string occupies."""
    return get_cwidth(text)


class _HeldOutput(Vt100_Output):
    """A terminal output that collects the text while `is_held` is True, and writes it with the next flush after
    that. Finished lines and the frame below them are thus written together, so that the input does not flicker.
    """

    is_held = False

    def flush(self) -> None:
        if not self.is_held:
            super().flush()

    def erase_down(self) -> None:
        """Erase the screen from the cursor to the end. The cursor is at the beginning of a line.

        The first line is erased separately. If a single command erased the whole screen, tmux would copy the erased
        text to its scrollback.
        """
        self.write_raw("\x1b7\x1b[K\x1b[B\x1b[J\x1b8")


class Screen:
    """Implements `Terminal` with an input line and a live region above it."""

    def __init__(
        self,
        actions: Actions,
        *,
        history: History,
        colour: bool,
        output: Output | None = None,
        input: Input | None = None,  # noqa: A002 - prompt_toolkit uses this name
    ) -> None:
        self._actions = actions
        self._completer: Completer = DummyCompleter()
        self._extra: KeyBindingsBase = KeyBindings()
        self._printed: list[str] = []
        self._before: Callable[[], None] = lambda: None
        self._frame: asyncio.TimerHandle | None = None
        self._last_frame = self._frame_cost = self._draw_began = 0.0
        self._overlays = 0
        self._tick: asyncio.TimerHandle | None = None
        self._is_first = True
        self.buffer = Buffer(
            multiline=True,
            history=history,
            completer=DynamicCompleter(lambda: self._completer),
            complete_while_typing=True,
            auto_suggest=DummyAutoSuggest(),
        )
        if output is None:
            output = _HeldOutput.from_pty(sys.stdout, term=os.environ.get("TERM"))
        self._held = output if isinstance(output, _HeldOutput) else None
        self.app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=merge_key_bindings([self._keys(), DynamicKeyBindings(lambda: self._extra)]),
            style=STYLE,
            include_default_pygments_style=False,
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            mouse_support=False,
            enable_page_navigation_bindings=False,
            output=output,
            input=input,
        )
        self.app.ttimeoutlen = self.app.timeoutlen = ESCAPE_SECONDS
        self.app.before_render += self._begin_draw
        self.app.after_render += self._end_draw
        self.app.key_processor.before_key_press += self._record_key

    # --- layout ----------------------------------------------------------------------------

    def _layout(self) -> Layout:
        live = _shown_if_filled(FormattedTextControl(self._live), wrap=False)
        panel = _shown_if_filled(FormattedTextControl(self._panel), wrap=True)
        self._input = Window(
            BufferControl(self.buffer, input_processors=[_Placeholder(self._actions.placeholder)]),
            dont_extend_height=True,
            wrap_lines=True,
            height=Dimension(min=1, max=INPUT_LINES),
            get_line_prefix=self._prefix,
        )
        status = Window(FormattedTextControl(self._status), height=1, dont_extend_height=True, wrap_lines=False)
        room_for_menu = ConditionalContainer(Window(height=MENU_LINES), filter=has_completions)
        body = HSplit([live, panel, self._input, status, room_for_menu], align=VerticalAlign.TOP)
        menu = CompletionsMenu(max_height=MENU_LINES, scroll_offset=1)
        return Layout(
            FloatContainer(body, floats=[Float(menu, xcursor=True, ycursor=True)]), focused_element=self._input
        )

    @property
    def size(self) -> tuple[int, int]:
        """The number of columns and rows of the terminal."""
        size = self.app.output.get_size()
        return max(size.columns, 10), max(size.rows, 4)

    @property
    def input_text(self) -> str:
        return self.buffer.text

    def _live(self) -> StyleAndTextTuples:
        columns, rows = self.size
        panel = len(self._actions.panel_lines(width=columns))
        height = max(MIN_LIVE_LINES, rows - 3 - panel - min(self.buffer.document.line_count, INPUT_LINES))
        return _fragments(self._actions.live_lines(width=columns - 1, height=min(height, rows - 2)))

    def _panel(self) -> StyleAndTextTuples:
        return _fragments(self._actions.panel_lines(width=self.size[0]))

    def _status(self) -> StyleAndTextTuples:
        return [("class:status", self._actions.status_line(width=self.size[0] - 1))]

    def _prefix(self, line: int, wraps: int) -> StyleAndTextTuples:
        prompt = self._actions.prompt()
        return [("class:prompt", prompt if line == 0 and wraps == 0 else " " * get_cwidth(prompt))]

    # --- keys ------------------------------------------------------------------------------

    def _keys(self) -> KeyBindingsBase:
        keys = KeyBindings()
        buffer = self.buffer
        is_empty = Condition(lambda: not buffer.text)
        has_menu = Condition(lambda: buffer.complete_state is not None)
        has_choice = Condition(
            lambda: buffer.complete_state is not None and buffer.complete_state.current_completion is not None
        )

        @keys.add("enter")
        def _send(event: KeyPressEvent) -> None:
            self._submit(queue=False)

        @keys.add("enter", filter=has_choice)
        def _accept(event: KeyPressEvent) -> None:
            buffer.complete_state = None

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _new_line(event: KeyPressEvent) -> None:
            buffer.insert_text("\n")

        @keys.add("tab", filter=~has_menu)
        def _queue(event: KeyPressEvent) -> None:
            if buffer.text.strip():
                self._submit(queue=True)

        @keys.add("tab", filter=has_menu)
        def _complete(event: KeyPressEvent) -> None:
            state = buffer.complete_state
            if state is not None and len(state.completions) == 1:
                buffer.apply_completion(state.completions[0])
            else:
                buffer.complete_next()

        @keys.add("escape", eager=False)
        def _escape(event: KeyPressEvent) -> None:
            if buffer.complete_state is not None:
                buffer.cancel_completion()
            else:
                self._actions.escape()

        @keys.add("c-c")
        def _interrupt(event: KeyPressEvent) -> None:
            was_empty = not buffer.text
            buffer.reset(append_to_history=not was_empty)
            self._actions.interrupt_key(is_empty=was_empty)

        @keys.add("c-d", filter=is_empty)
        def _leave(event: KeyPressEvent) -> None:
            self._actions.leave()

        @keys.add("c-o")
        def _expand(event: KeyPressEvent) -> None:
            self._actions.expand()

        @keys.add("c-z")
        def _suspend(event: KeyPressEvent) -> None:
            event.app.suspend_to_background()

        def answer(event: KeyPressEvent) -> None:
            self._actions.answer_after_delay(event.data)

        for key in ANSWERS:
            keys.add(key, filter=is_empty & Condition(partial(self._actions.answer_key, key)))(answer)
        return merge_key_bindings([keys, self._keys_after_answer()])

    def _keys_after_answer(self) -> KeyBindings:
        """Return the bindings for a key that the user presses before the answer of the previous key has taken
        effect.

        Enter confirms the answer. Every other key cancels the answer. Esc, Backspace and Ctrl-C have no other
        effect. A typed character or pasted text is added to the input, after the character of the previous key.
        """
        keys = KeyBindings()
        buffer = self.buffer
        follows = Condition(lambda: self._actions.cancelled_key() is not None)

        @keys.add(Keys.Any, filter=follows)
        def _insert(event: KeyPressEvent) -> None:
            buffer.insert_text(f"{self._actions.cancelled_key() or ''}{event.data}")

        @keys.add(Keys.BracketedPaste, filter=follows)
        def _paste(event: KeyPressEvent) -> None:
            pasted = event.data.replace("\r\n", "\n").replace("\r", "\n")
            buffer.insert_text(f"{self._actions.cancelled_key() or ''}{pasted}")

        @keys.add("enter", filter=follows)
        def _confirm(event: KeyPressEvent) -> None:
            self._actions.confirm_cancelled_key()

        @keys.add("escape", filter=follows)
        @keys.add("backspace", filter=follows)
        @keys.add("c-c", filter=follows)
        def _take_back(event: KeyPressEvent) -> None:
            pass

        return keys

    def _submit(self, *, queue: bool) -> None:
        text = self.buffer.text
        self.buffer.reset(append_to_history=bool(text.strip()))
        self._actions.submit(text, queue=queue)

    def _record_key(self, processor: Any) -> None:
        self._actions.key_pressed()

    # --- drawing ---------------------------------------------------------------------------

    def print(self, text: str) -> None:
        """Write finished text above the live region with the next frame."""
        if text:
            self._printed.append(text)

    def changed(self, before: Callable[[], None] | None = None) -> None:
        """Draw a frame soon, because the content has changed. Several changes are drawn together. If `before` is
        given, it is called before this frame and all later frames, and can print finished lines.
        """
        if before is not None:
            self._before = before
        if self._frame is None:
            loop = asyncio.get_running_loop()
            delay = max(FRAME_SECONDS, BUSY_SHARE * self._frame_cost)
            self._frame = loop.call_at(self._last_frame + delay, self._draw)

    def _draw(self) -> None:
        self._frame = None
        self._last_frame = asyncio.get_running_loop().time()
        self._before()
        if self._overlays or not self.app.is_running:
            return
        if self._printed:
            text = "".join(self._printed)
            self._printed.clear()
            if self._held is not None:
                self._held.is_held = True  # the output is written when the frame below the text is complete
            self.app.renderer.erase(leave_alternate_screen=False)
            self.app.output.write_raw(text.replace("\n", "\r\n"))
        self.app.invalidate()

    def _begin_draw(self, app: Application[None]) -> None:
        self._draw_began = asyncio.get_running_loop().time()

    def _end_draw(self, app: Application[None]) -> None:
        if self._held is not None and self._held.is_held:
            self._held.is_held = False
            self._held.flush()
        self._frame_cost = asyncio.get_running_loop().time() - self._draw_began
        if self._is_first:
            self._is_first = False
            self._actions.first_frame_drawn()

    # --- running ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Show the screen and handle keys until `exit` is called."""
        self._tick = asyncio.get_running_loop().call_later(TICK_SECONDS, self._on_tick)
        try:
            await self.app.run_async(handle_sigint=False, set_exception_handler=False)
        finally:
            self._tick.cancel()
            if self._frame is not None:
                self._frame.cancel()
            if self._held is not None:
                self._held.is_held = False
            self._before()
            with suppress(OSError):  # the terminal was closed
                sys.stdout.write("".join(self._printed))
                sys.stdout.flush()
            self._printed.clear()

    def _on_tick(self) -> None:
        """Draw a frame once a second, because the live region shows elapsed times."""
        self._tick = asyncio.get_running_loop().call_later(TICK_SECONDS, self._on_tick)
        self.changed()

    def exit(self) -> None:
        if self.app.is_running and not self.app.is_done:
            self.app.exit()

    def set_input(self, text: str) -> None:
        self.buffer.set_document(Document(text, len(text)))

    def extend(self, completer: Completer | None, keys: KeyBindingsBase | None) -> None:
        """Add the completer and the key bindings of the extensions; None adds nothing."""
        if completer is not None:
            self._completer = completer
        if keys is not None:
            self._extra = keys

    async def overlay(
        self, container: AnyContainer, *, focus: FocusableElement | None, key_bindings: KeyBindingsBase | None
    ) -> Any:
        """Show a container on the full screen until a key binding ends the overlay with a result, and return this
        result.
        """
        self._overlays += 1
        try:
            async with in_terminal():
                app: Application[Any] = Application(
                    layout=Layout(container, focused_element=focus),
                    key_bindings=key_bindings,
                    style=STYLE,
                    include_default_pygments_style=False,
                    color_depth=self.app.color_depth,
                    full_screen=True,
                    mouse_support=False,
                    output=self.app.output,
                    input=self.app.input,
                )
                app.ttimeoutlen = app.timeoutlen = ESCAPE_SECONDS
                return await app.run_async(handle_sigint=False, set_exception_handler=False)
        finally:
            self._overlays -= 1
            self.changed()


class _Placeholder(Processor):
    """Shows a dim text while the input is empty."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        given = transformation_input
        if given.document.text or not (text := self._text()):
            return Transformation(given.fragments)
        return Transformation([*given.fragments, ("class:hint", text)])


def _shown_if_filled(control: FormattedTextControl, *, wrap: bool) -> ConditionalContainer:
    """Return a window that shows `control`, and takes no line while the text of `control` is empty. If `wrap` is
    True, long lines are wrapped.
    """
    window = Window(control, dont_extend_height=True, wrap_lines=wrap)
    return ConditionalContainer(window, filter=Condition(lambda: bool(to_formatted_text(control.text))))


def _fragments(lines: list[Styled]) -> StyleAndTextTuples:
    result: StyleAndTextTuples = []
    for number, (style, text) in enumerate(lines):
        if number:
            result.append(("", "\n"))
        if style == "ansi":
            result.extend(to_formatted_text(ANSI(text)))
        else:
            result.append((style, text))
    return result

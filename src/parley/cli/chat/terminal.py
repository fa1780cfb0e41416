"""The interfaces between the chat and its terminal. The chat calls `Terminal`, and the terminal calls `Actions`.

`screen.py` implements `Terminal` with a live region, and `plain.py` implements it with printed lines only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from parley.cli.chat.live import Styled

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.key_binding import KeyBindingsBase
    from prompt_toolkit.layout import AnyContainer
    from prompt_toolkit.layout.layout import FocusableElement

__all__ = ["Actions", "Terminal"]


class Terminal(Protocol):
    """Shows one chat on a terminal and reads the input of the user."""

    @property
    def size(self) -> tuple[int, int]:
        """The number of columns and rows."""

    @property
    def input_text(self) -> str:
        """The text that the user has typed but not sent."""

    async def run(self) -> None:
        """Show the chat until `exit` is called."""

    def exit(self) -> None: ...
    def print(self, text: str) -> None:
        """Write finished text above the input with the next frame. The text is never drawn again."""

    def changed(self, before: Callable[[], None]) -> None:
        """Draw a frame soon, because the content has changed. Several changes are drawn together.

        `before` is called before this frame and before each later frame. It can print finished lines.
        """

    def set_input(self, text: str) -> None: ...
    def extend(self, completer: Completer | None, keys: KeyBindingsBase | None) -> None:
        """Add the completer and the key bindings of the extensions; None adds nothing."""

    async def overlay(
        self, container: AnyContainer, *, focus: FocusableElement | None, key_bindings: KeyBindingsBase | None
    ) -> Any:
        """Show a container on the full screen until a key binding ends the overlay with a result, and return this
        result.
        """


class Actions(Protocol):
    """Handles the keys and the input of the user, and provides the lines that the terminal shows."""

    def first_frame_drawn(self) -> None: ...
    def live_lines(self, *, width: int, height: int) -> list[Styled]: ...
    def panel_lines(self, *, width: int) -> list[Styled]:
        """Return the lines between the live region and the input, such as the question about an open approval. The
        lines are wrapped to `width` columns.
        """

    def prompt(self) -> str: ...
    def placeholder(self) -> str:
        """Return the text that an empty input shows."""

    def status_line(self, *, width: int) -> str: ...
    def submit(self, text: str, *, queue: bool) -> None:
        """Handle an input that the user has finished: a message, a command, or the reason for a denial. If `queue`
        is True and the input is a message, the message waits until the running turn has ended.
        """

    def key_pressed(self) -> None:
        """Record that a key was pressed. This method is called before the key is handled."""

    def answer_key(self, key: str) -> bool:
        """Return whether pressing `key` now answers an approval."""

    def answer_after_delay(self, key: str) -> None:
        """Answer the approval on the screen with the decision that `key` stands for, unless the user presses
        another key within `ANSWER_DELAY_SECONDS`.
        """

    def cancelled_key(self) -> str | None:
        """Return the key whose answer the last key has cancelled; None if the last key has cancelled no answer. A
        key cancels the answer of the previous key if that answer has not taken effect yet.
        """

    def confirm_cancelled_key(self) -> None:
        """Answer the approval on the screen with the key that `cancelled_key` returns, because the user confirmed
        the answer with Enter. The key for a denial then denies without a reason. Do nothing if the approval is no
        longer open.
        """

    def answer(self, key: str) -> None:
        """Send the decision that `key` stands for, as the answer to the approval on the screen. If the key is `d`,
        the chat first asks for a reason, and the next input is the reason.
        """

    def escape(self) -> None:
        """Handle Esc: stop asking for the reason for a denial; if the chat is not asking for a reason, interrupt
        the running turn.
        """

    def interrupt_key(self, *, is_empty: bool) -> None:
        """Handle Ctrl-C: stop asking for the reason for a denial; if the chat is not asking for a reason, exit at
        the second Ctrl-C in a row.

        `is_empty` is True if the input was empty before the key was pressed. A Ctrl-C that clears a non-empty input
        does not count.
        """

    def leave(self) -> None:
        """End the chat."""

    def expand(self) -> None:
        """Print the newest folded passage in full. A passage is folded if only a part of it was printed."""

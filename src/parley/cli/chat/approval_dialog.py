"""The question of an open approval on the screen, and the keys that answer it.

The chat sends the decision to the server (`chat.py`). `approvals.py` defines the questions and the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from parley.cli.chat.approvals import AnswerGuard, answer_keys, key_rows, question
from parley.cli.chat.live import Styled
from parley.client import Approval

__all__ = ["DENY", "ApprovalDialog"]

DENY: Final = "d"
"""The key after which the user can write a reason."""

_REASON_HINT: Final = "Enter denies, with the reason for the agent if you write one. Esc goes back."
_INPUT_HINT: Final = "To answer, send or clear the input first (Ctrl-C clears it)."


class ApprovalDialog:
    """The state of the question: the approval on the screen, and whether the user is writing a reason."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._guard = AnswerGuard(clock)
        self._shown: Approval | None = None
        """The approval whose question is on the screen; None if no question is on the screen."""
        self._denying: Approval | None = None
        """The approval that the user is denying, while the user writes a reason; None at any other time."""

    @property
    def is_denying(self) -> bool:
        """True while the user writes a reason for a denial."""
        return self._denying is not None

    def seconds_until_keys(self, *, has_input: bool) -> float | None:
        """Return the number of seconds after which the keys can answer, if the user types nothing until then.
        Return None if `lines` already returns the keys, or if waiting alone does not make it return them.
        """
        if self._shown is None or self._denying is self._shown or has_input or self._guard.is_quiet:
            return None
        return self._guard.remaining_seconds

    def show(self, approval: Approval | None) -> None:
        """Record that the question of `approval` is now on the screen; None if no question is on the screen."""
        if approval is not self._shown:
            self._shown = approval
            self._guard.question_appeared()

    def lines(self, *, note: str, has_input: bool, width: int) -> list[Styled]:
        """Return the question that is on the screen, followed by `note`, and the keys that answer it.

        `has_input` is True if the user has typed text. The keys cannot answer then.
        """
        if (approval := self._shown) is None:
            return []
        asked: Styled = ("class:question", question(approval) + note)
        if self._denying is approval:
            return [asked, ("class:hint", _REASON_HINT)]
        if has_input:
            return [asked, ("class:hint", _INPUT_HINT)]
        if not self._guard.is_quiet:
            return [asked, ("class:hint", "...")]
        return [asked, *(("class:key", row) for row in key_rows(approval, width))]

    def key_pressed(self) -> None:
        """Record that a key was pressed. This method is called before the key is handled."""
        self._guard.key_pressed()

    def accepts(self, key: str, approval: Approval | None) -> bool:
        """Return whether pressing `key` now answers `approval`, the open approval of the conversation."""
        if approval is None or approval is not self._shown or self.is_denying:
            return False
        return self._guard.accepts and key in answer_keys(approval)

    def answer(self, key: str) -> Approval | None:
        """Handle a key that answers. Return the approval that is now decided. Return None if no question is on the
        screen, or if the user writes a reason first.
        """
        if key == DENY:
            self._denying = self._shown
            return None
        return self._shown

    def take_denied(self) -> Approval | None:
        """Stop asking for the reason of a denial, because the reason is complete. Return the approval to deny; None
        if the user is not denying an approval.
        """
        denied, self._denying = self._denying, None
        return denied

    def stop_denying(self, *, unless: Approval | None = None) -> bool:
        """Stop asking for a reason, unless the user is denying the approval `unless`. Return whether this call has
        changed anything.
        """
        if self._denying is None or self._denying is unless:
            return False
        self._denying = None
        return True

"""Shows the question about an open approval, and determines when a key answers the question.

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
"""The key that denies an approval. After this key, the user can write a reason."""

_REASON_HINT: Final = "Enter denies, with the reason for the agent if you write one. Esc goes back."
_INPUT_HINT: Final = "To answer, send or clear the input first (Ctrl-C clears it)."


class ApprovalDialog:
    """The state of the question about an open approval: the approval on the screen, and whether the user is writing
    a reason.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._guard = AnswerGuard(clock)
        self._shown: Approval | None = None
        """The approval whose question is on the screen; None if no question is on the screen."""
        self._denying: Approval | None = None
        """The approval that the user is denying; None unless the user is writing a reason."""

    @property
    def is_denying(self) -> bool:
        """True while the user writes a reason for a denial."""
        return self._denying is not None

    def seconds_until_keys(self, *, has_input: bool) -> float | None:
        """Return the number of seconds after which the keys can answer the question, if the user types nothing
        until then.

        Return None if no wait is necessary, or if a wait does not enable the keys, for example because the input
        contains text (`has_input`).
        """
        if self._shown is None or self._denying is self._shown or has_input or self._guard.is_quiet:
            return None
        return self._guard.remaining_seconds

    def show(self, approval: Approval | None) -> None:
        """Record that the question about `approval` is now on the screen. `approval` is None if no question is on
        the screen.
        """
        if approval is not self._shown:
            self._shown = approval
            self._guard.question_appeared()

    def lines(self, *, note: str, has_input: bool, width: int) -> list[Styled]:
        """Return the question that is on the screen, followed by `note`, and rows of at most `width` columns with
        the keys that answer the question. If no question is on the screen, return an empty list.

        While the keys cannot answer the question, the list contains a hint instead of the keys. For example, if the
        input contains text (`has_input`), the hint tells the user to send or clear the input first.
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
        """Return whether pressing `key` now answers `approval`, the open approval of the conversation. `approval`
        is None if the conversation has no open approval.
        """
        if approval is None or approval is not self._shown or self.is_denying:
            return False
        return self._guard.accepts and key in answer_keys(approval)

    def answer(self, key: str) -> Approval | None:
        """Handle a key that answers the question, and return the approval that the key decides; None if no question
        is on the screen. If the key is `DENY`, begin to ask for a reason and return None, because the approval is
        denied only when the reason is complete.
        """
        if key == DENY:
            self._denying = self._shown
            return None
        return self._shown

    def take_denied(self) -> Approval | None:
        """Stop asking for the reason for a denial after the user has completed the reason. Return the approval to
        deny; None if the user is not denying an approval.
        """
        denied, self._denying = self._denying, None
        return denied

    def stop_denying(self, *, unless: Approval | None = None) -> bool:
        """Stop asking for the reason for a denial, and return True. If the user is denying no approval, or is
        denying the approval `unless`, do nothing and return False.
        """
        if self._denying is None or self._denying is unless:
            return False
        self._denying = None
        return True

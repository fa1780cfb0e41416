"""Shows the question about an open approval, and determines when a key answers the question.

A key that answers takes effect only if no other key follows within `ANSWER_DELAY_SECONDS`. A word that the user
types as a reply, such as "stop", therefore decides nothing, although it begins with a key that answers.

The chat sends the decision to the server (`chat.py`). `approvals.py` defines the questions and the keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from parley.cli.chat.approvals import AnswerGuard, answer_keys, key_rows, question
from parley.cli.chat.live import Styled
from parley.client import Approval

__all__ = ["ANSWER_DELAY_SECONDS", "DENY", "ApprovalDialog", "PendingAnswer"]

DENY: Final = "d"
"""The key that denies an approval. After this key, the user can write a reason."""

ANSWER_DELAY_SECONDS: Final = 0.4
"""The number of seconds after which the answer of a pressed key takes effect. If the user presses another key
before this time has passed, the first key does not answer.
"""

_REASON_HINT: Final = "Enter denies, with the reason for the agent if you write one. Esc goes back."
_INPUT_HINT: Final = "To answer, send or clear the input first (Ctrl-C clears it)."
_PENDING_HINT: Final = "Esc takes the answer back."


@dataclass(frozen=True, eq=False)
class PendingAnswer:
    """The answer of a pressed key to `approval`. The answer takes effect if the user presses no other key within
    `ANSWER_DELAY_SECONDS`.
    """

    key: str
    approval: Approval


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
        self._pending: PendingAnswer | None = None
        """The answer that has not taken effect yet; None if there is no such answer."""
        self._cancelled: PendingAnswer | None = None
        """The answer that the key that is being handled has cancelled; None if it has cancelled no answer."""

    @property
    def is_denying(self) -> bool:
        """True while the user writes a reason for a denial."""
        return self._denying is not None

    def seconds_until_keys(self, *, has_input: bool) -> float | None:
        """Return the number of seconds after which the keys can answer the question. Each key press restarts this
        time.

        Return None if the keys can already answer, if no question is on the screen, or if the keys cannot answer
        because the input contains text (`has_input`) or the user is writing a reason.
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

        If the user has pressed a key and its answer has not taken effect yet, the list contains this answer instead
        of the keys.

        While the keys cannot answer the question, the list contains a hint instead of the keys. For example, if the
        input contains text (`has_input`), the hint tells the user to send or clear the input first.
        """
        if (approval := self._shown) is None:
            return []
        asked: Styled = ("class:question", question(approval) + note)
        if (pending := self._pending) is not None and pending.approval is approval:
            label = answer_keys(approval)[pending.key]
            return [asked, ("class:chosen", f"{pending.key} {label}"), ("class:hint", _PENDING_HINT)]
        if self._denying is approval:
            return [asked, ("class:hint", _REASON_HINT)]
        if has_input:
            return [asked, ("class:hint", _INPUT_HINT)]
        if not self._guard.is_quiet:
            return [asked, ("class:hint", "...")]
        return [asked, *(("class:key", row) for row in key_rows(approval, width))]

    def key_pressed(self) -> None:
        """Record that a key was pressed. This method is called before the key is handled.

        If the answer of the previous key has not taken effect yet, cancel the answer. `cancelled_key` then contains
        the previous key until the next key is pressed.
        """
        self._guard.key_pressed()
        self._pending, self._cancelled = None, self._pending

    def accepts(self, key: str, approval: Approval | None) -> bool:
        """Return whether pressing `key` now answers `approval`, the open approval of the conversation. `approval`
        is None if the conversation has no open approval.
        """
        if approval is None or approval is not self._shown or self.is_denying:
            return False
        return self._guard.accepts and key in answer_keys(approval)

    def set_pending(self, key: str) -> PendingAnswer | None:
        """Record that the user pressed `key`, which answers the question. Return the recorded answer; None if no
        question is on the screen. The caller then waits for `takes_effect` before it sends the answer.
        """
        self._pending = None if self._shown is None else PendingAnswer(key, self._shown)
        return self._pending

    async def takes_effect(self, pending: PendingAnswer) -> bool:
        """Wait `ANSWER_DELAY_SECONDS`. Return True if the answer takes effect: no other key was pressed in this
        time, and the question is still on the screen.
        """
        await asyncio.sleep(ANSWER_DELAY_SECONDS)
        if self._pending is not pending:
            return False
        self._pending = None
        return pending.approval is self._shown

    @property
    def cancelled_key(self) -> str | None:
        """The key whose answer the last key has cancelled; None if the last key has cancelled no answer. A key
        cancels the answer of the previous key if that answer has not taken effect yet.
        """
        return None if self._cancelled is None else self._cancelled.key

    def take_cancelled(self) -> PendingAnswer | None:
        """Return the cancelled answer, and clear `cancelled_key`. Return None if no answer was cancelled, or if the
        question is no longer on the screen.
        """
        cancelled, self._cancelled = self._cancelled, None
        return cancelled if cancelled is not None and cancelled.approval is self._shown else None

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
        """Return the approval that the user is denying, and stop asking for the reason. Return None if the user is
        not denying an approval. Call this method when the user has completed the reason.
        """
        denied, self._denying = self._denying, None
        return denied

    def stop_denying(self, *, unless: Approval | None = None) -> bool:
        """Stop asking for the reason for a denial, and return True. If the dialog is not asking for a reason, or is
        asking for the reason to deny the approval `unless`, do nothing and return False.
        """
        if self._denying is None or self._denying is unless:
            return False
        self._denying = None
        return True

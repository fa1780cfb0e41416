"""The outcome of a turn as a command reports it: the agent's last message, the error and the exit code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from parley.cli.exit_codes import CUT_OFF, NOT_APPROVED, TIMED_OUT, exit_code
from parley.cli.runner import FAILED
from parley.client import Event, TurnFailed, TurnResult, events
from parley.client.turn import result_of
from parley.client.turn_result import TurnSummary
from parley.wire.events import REPLY_CUT_OFF

__all__ = ["CheckAnswer", "EndedTurn", "TurnOutcome"]

CheckAnswer = Callable[[str], str | None]
"""A function that returns the reason why the last message of a turn is not a valid answer; None if the message is
valid.
"""


_FILTERS: Final = frozenset({"content_filter", "sensitive"})
"""The reasons that a provider gives when it truncates a response because of the response's content."""

_CALLS: Final = (events.ExecCommandBegin, events.PatchApplyBegin, events.McpToolCallBegin, events.WebSearch)


class EndedTurn(NamedTuple):
    text: str
    """The last message of the agent."""
    result: TurnResult
    error: str | None
    """The reason why the turn did not succeed; None if the turn succeeded."""
    error_code: str | None
    """The error code: an error code of the protocol, `cut_off`, `timeout` or `invalid_answer`; None if the error
    has no code or the turn succeeded.
    """
    exit_code: int
    cut_off: str | None = None
    """The server's note that the provider has truncated the last response; None if the response is complete or the
    turn failed.
    """


class TurnOutcome:
    """Accumulates the outcome of a turn, event by event."""

    def __init__(self) -> None:
        self._summary = TurnSummary()
        self._text = ""
        self._has_answer = False
        """True if the agent has written a message after its last tool call."""
        self._cut_off: str | None = None
        """The server's note that the provider has truncated the last response; None if the response is complete."""
        self._open_approvals = 0
        self._was_aborted = False
        """True if an approval of the turn was answered with `abort`."""
        self._over_time: str | None = None
        """The message for the user that the turn has exceeded its time limit; None if it has not."""
        self._was_waiting = False
        """True if the turn was waiting for an approval when it exceeded its time limit."""

    def add(self, event: Event) -> bool:
        """Add an event, and return whether the event ends the turn."""
        match event:
            case events.AgentMessage(message=message):
                self._text, self._has_answer, self._cut_off = message, bool(message.strip()), None
            case events.BackgroundEvent(message=message) if message.startswith(REPLY_CUT_OFF):
                self._cut_off = message
            case _ if isinstance(event, _CALLS):
                self._has_answer, self._cut_off = False, None
            case events.ExecApprovalRequest() | events.ApplyPatchApprovalRequest() | events.LimitReached():
                self._open_approvals += 1
            case events.ApprovalSettled(decision=decision):
                self._open_approvals -= 1
                self._was_aborted = self._was_aborted or decision == "abort"
            case _:
                pass
        return self._summary.add(event)

    def exceed(self, seconds: float) -> str:
        """Record that the turn has exceeded its time limit of `seconds` and will be interrupted. Return a message
        for the user with the reason.
        """
        self._over_time = f"the turn took longer than {seconds:g} s"
        self._was_waiting = self._open_approvals > 0
        if self._was_waiting:
            self._over_time += ", because an approval was not answered"
        return self._over_time

    def end(self, check_answer: CheckAnswer | None) -> EndedTurn:
        """Return the outcome of the turn after it has ended. `check_answer` checks the last message of a turn that
        succeeded; None if the message is not checked.
        """
        try:
            result = result_of(self._summary)
        except TurnFailed as failed:
            return self._failed(failed)
        if self._cut_off is not None and not self._has_answer:
            reason = self._cut_off.removeprefix(REPLY_CUT_OFF).partition(";")[0]
            error_code = "model_refused" if reason in _FILTERS else CUT_OFF
            error = f"the answer is empty: the model's reply was cut off: {reason}"
            return EndedTurn(self._text, result, error, error_code, exit_code("failed", error_code))
        why = None if check_answer is None else check_answer(self._text)
        if why is not None:
            return EndedTurn(self._text, result, why, "invalid_answer", FAILED, self._cut_off)
        return EndedTurn(self._text, result, None, None, 0, self._cut_off)

    def _failed(self, failed: TurnFailed) -> EndedTurn:
        error, code = failed.message.strip(), exit_code(failed.reason, failed.code)
        if failed.reason == "interrupted" and self._over_time is not None:
            code = NOT_APPROVED if self._was_waiting else TIMED_OUT
            return EndedTurn(self._text, failed.result, self._over_time, "timeout", code)
        if failed.reason == "interrupted" and self._was_aborted:
            code = NOT_APPROVED
        return EndedTurn(self._text, failed.result, error, failed.code, code)

"""The exit codes of the commands that follow a turn."""

from __future__ import annotations

from typing import Final

from parley.cli.runner import FAILED
from parley.errors import LIMIT_REACHED as LIMIT_CODE
from parley.wire.events import TurnEndReason

__all__ = ["CUT_OFF", "INTERRUPTED", "LIMIT_REACHED", "MODEL_REFUSED", "NOT_APPROVED", "TIMED_OUT", "exit_code"]

LIMIT_REACHED: Final = 3
MODEL_REFUSED: Final = 4
NOT_APPROVED: Final = 5
TIMED_OUT: Final = 124
"""The exit code for a turn that exceeded its time limit. `timeout` of the GNU core utilities uses the same code."""
INTERRUPTED: Final = 130

CUT_OFF: Final = "cut_off"
"""The error code of a turn whose last response the provider truncated before the response contained text. Only the
commands use this error code; on the server, the turn has succeeded.
"""

_BY_ERROR: Final = {
    LIMIT_CODE: LIMIT_REACHED,
    "usage_limit_reached": LIMIT_REACHED,
    "model_refused": MODEL_REFUSED,
    CUT_OFF: LIMIT_REACHED,
}
"""The exit codes of failed turns, keyed by error code. For any other error code, the exit code is `FAILED`."""


def exit_code(reason: TurnEndReason, error_code: str | None) -> int:
    """Return the exit code for a turn that ended for the given reason.

    `error_code` is the code of the turn's error; None if the error has no code.
    """
    match reason:
        case "done":
            return 0
        case "interrupted":
            return INTERRUPTED
        case "failed" | "restarted" | "stopped":
            return _BY_ERROR.get(error_code or "", FAILED)

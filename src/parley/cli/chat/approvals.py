"""Tracks the open approvals of the chat, and formats them with the keys that answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET

from parley.cli.chat.diffs import change_lines
from parley.cli.chat.live import wrapped
from parley.cli.event_renderer import SCRIPT_OPTIONS, SHELLS
from parley.cli.printing import for_terminal
from parley.client import Approval, events
from parley.wire.events import Decision
from parley.wire.ids import CallId
from parley.wire.text import quoted, quoted_command, visible

__all__ = [
    "ANSWERS",
    "QUIET_SECONDS",
    "AnswerGuard",
    "OpenApprovals",
    "Request",
    "answer_keys",
    "key_rows",
    "question",
    "request_lines",
    "request_of",
]

ANSWERS: Final[Mapping[str, Decision]] = {
    "a": "approved",
    "s": "approved_for_session",
    "d": "denied",
    "x": "abort",
}
"""The decisions, keyed by the key that the user presses."""

_LABELS: Final = {"a": "allow once", "s": "allow for the session", "d": "deny", "x": "deny and stop"}

QUIET_SECONDS: Final = 0.5
"""The number of seconds without a key press after which a key can answer the approval on the screen."""


NO_LIMIT: Final = 1_000_000
CONTINUED: Final = "    "
"""The additional indent of the continuation rows of a long line."""
TAB: Final = 4


class AnswerGuard:
    """Decides whether a pressed key answers an approval, or is input that the user typed before reading the
    question.

    A key can answer if the question has been on the screen for `QUIET_SECONDS`, and no key was pressed during these
    seconds. Otherwise, the character of the key is added to the input.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = -inf
        """The time of the last key press, or of the appearance of the question if it appeared later."""
        self.accepts = False
        """True if the key that is being handled can answer an approval."""

    @property
    def is_quiet(self) -> bool:
        return self.remaining_seconds <= 0

    @property
    def remaining_seconds(self) -> float:
        return self._since + QUIET_SECONDS - self._clock()

    def question_appeared(self) -> None:
        self._since = self._clock()

    def key_pressed(self) -> None:
        """Record that a key was pressed. This method is called before the key is handled."""
        self.accepts = self.is_quiet
        self._since = self._clock()


class OpenApprovals:
    """The approvals that the server asks this client to decide, in all conversations that the client has opened."""

    def __init__(self, *, changed: Callable[[], None]) -> None:
        self._open: dict[str, tuple[Approval, asyncio.Future[None]]] = {}
        self._changed = changed

    async def ask(self, approval: Approval) -> None:
        """Add an approval to the open approvals, and wait until this chat decides it.

        The wait is cancelled when another client has decided the approval, when the turn of the approval has ended,
        or when the connection is lost.
        """
        key = approval.approval_id or approval.call_id
        decided = asyncio.get_running_loop().create_future()
        self._open[key] = approval, decided
        self._changed()
        try:
            await decided
        finally:
            if self._open.get(key, (None, None))[1] is decided:
                del self._open[key]
            self._changed()

    def of(self, conversation_id: str | None) -> Approval | None:
        """Return the oldest open approval of a conversation; None if the conversation has no open approval or
        `conversation_id` is None.
        """
        return next((one for one, _ in self._open.values() if one.conversation_id == conversation_id), None)

    async def answer(self, approval: Approval, decision: Decision, reason: str | None = None) -> None:
        """Send the decision on an approval to the server. `reason` is the user's reason for a denial; None if the
        user gave no reason.

        Raises:
            AlreadyDecided: another client has decided the approval, or the approval was withdrawn.
            Disconnected: the connection is lost. When the connection is restored, the server sends the approval
                request again.
        """
        match decision:
            case "approved":
                await approval.approve()
            case "approved_for_session":
                await approval.approve_for_session()
            case "denied":
                await approval.deny(reason)
            case "abort":
                await approval.abort()
        _, decided = self._open.get(approval.approval_id or approval.call_id, (None, None))
        if decided is not None and not decided.done():
            decided.set_result(None)


def answer_keys(approval: Approval) -> dict[str, str]:
    """Return the labels of the keys that answer an approval, keyed by key."""
    # For a patch or a limit, `approved_for_session` has the same effect as `approved`.
    return {key: label for key, label in _LABELS.items() if key != "s" or approval.kind == "exec"}


def key_rows(approval: Approval, width: int) -> list[str]:
    """Return the keys that answer an approval, each followed by its label, in rows of at most `width` columns. A
    key and a label that together exceed `width` columns get a longer row of their own.
    """
    rows: list[str] = []
    for key, label in answer_keys(approval).items():
        if rows and len(longer := f"{rows[-1]}   {key} {label}") <= width:
            rows[-1] = longer
        else:
            rows.append(f"{key} {label}")
    return rows


def question(approval: Approval) -> str:
    """Return the question that the chat asks about an approval.

    The question does not describe the action, because the chat prints the lines of `request_lines` above the
    question.
    """
    outside = " outside the sandbox" if approval.leaves_sandbox else ""
    match approval.kind:
        case "exec":
            return f"Run this command{outside}?"
        case "patch":
            return f"Apply these changes{outside}?"
        case "limit":
            return "Continue beyond the limit?"


Request: TypeAlias = events.ExecApprovalRequest | events.ApplyPatchApprovalRequest | events.LimitReached


def request_of(approval: Approval) -> Request:
    """Return an event that describes the action of an approval. The event is made from the fields of the approval,
    and not read from the log.
    """
    reason = UNSET if approval.reason is None else approval.reason
    match approval.kind:
        case "exec":
            command, cwd = approval.command or (), approval.cwd or ""
            return events.ExecApprovalRequest(
                call_id=CallId(approval.call_id), command=command, cwd=cwd, reason=reason
            )
        case "patch":
            changes = msgspec.convert(approval.changes or {}, dict[str, events.FileChange])
            return events.ApplyPatchApprovalRequest(
                call_id=CallId(approval.call_id), changes=changes, reason=reason
            )
        case "limit":
            return events.LimitReached(limit=approval.message, used=0, allowed=0)


def request_lines(
    request: Request, *, colour: bool, width: int = NO_LIMIT, width_of: Callable[[str], int] = len
) -> list[str]:
    """Return lines that show the whole action in `request`, coloured if `colour` is True. `width_of` returns the
    number of columns of a string.

    Control characters are escaped. A line that is longer than `width` columns continues in an indented line,
    because a continuation at the left margin could imitate the title of another request.
    """
    bold, plain = ("\x1b[1m", "\x1b[0m") if colour else ("", "")

    def rows(line: str, indent: int) -> list[str]:
        room = max(width - indent - len(CONTINUED), 1)
        first, *more = wrapped(line, room, width_of)
        return [" " * indent + first, *(" " * indent + CONTINUED + row for row in more)]

    if isinstance(request, events.LimitReached):
        return [f"{bold}The limit {for_terminal(request.limit)} is reached ({request.amounts}).{plain}"]
    if isinstance(request, events.ExecApprovalRequest):
        title = f"The agent asks to run a command in {quoted(request.cwd)}:"
        command = [row for indent, line in _whole_command(request.command) for row in rows(line, indent)]
        lines = [f"{bold}{row}{plain}" for row in command]
    else:
        count = len(request.changes)
        title = f"The agent asks to change {count} file{'' if count == 1 else 's'}:"
        lines = list(change_lines(request.changes, colour=colour, split=lambda line: rows(line, 2)))
    if isinstance(request.reason, str) and request.reason.strip():
        reason = request.reason.strip().expandtabs(TAB).splitlines()
        lines += ["  reason:", *(row for line in reason for row in rows(visible(line), 4))]
    return [*(f"{bold}{row}{plain}" for row in rows(title, 0)), *lines]


def _whole_command(command: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return the lines of a command, each preceded by the number of spaces of its indent. A shell script keeps its
    lines; all other newlines are escaped.
    """
    is_script = len(command) == 3 and command[0].rpartition("/")[2] in SHELLS and command[1] in SCRIPT_OPTIONS
    if not is_script or "\n" not in command[2]:
        return [(2, f"$ {quoted_command(command)}")]
    script = command[2].expandtabs(TAB).split("\n")
    return [(2, f"$ {quoted_command(command[:2])}"), *((6, visible(line)) for line in script)]

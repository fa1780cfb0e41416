"""The interface of the tools that a model can call.

`Tools` provides the tools of the process, and `TurnTools` provides the tools of one turn. A tool appends its events
to the transcript of the turn, and returns the text for the model.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from parley.config.types import Settings
from parley.conversation.records import CallItem, Changed
from parley.ports.commands import SandboxPolicy
from parley.ports.model import ToolSpec
from parley.ports.transcript import Transcript
from parley.wire.events import FileChange
from parley.wire.ids import CallId

__all__ = [
    "Action",
    "ApplyPatch",
    "Authorize",
    "Granted",
    "RejectedByPolicy",
    "RejectedByUser",
    "RunCommand",
    "ToolContext",
    "Tools",
    "TurnTools",
    "Verdict",
]


# --- actions to authorize ---------------------------------------------------------------


class RunCommand(Struct, frozen=True, kw_only=True):
    """A command that the model wants to run."""

    call_id: CallId
    argv: tuple[str, ...]
    cwd: str
    """The absolute path of the working directory. If the model chose the directory, symbolic links in the path are
    resolved, so that the approval shows where the command really runs.
    """
    search_path: str | None = None
    """The value of the environment variable `PATH` with which the command runs; None if the variable is not set."""
    home: str | None = None
    """The value of the environment variable `HOME` with which the command runs; None if the variable is not set."""
    escalated: bool = False
    """True if the model asked to run the command without the sandbox."""
    justification: str | None = None
    has_failed: bool = False
    """True if the command has failed in the sandbox, and this is a request to repeat it without the sandbox."""
    covers: str = ""
    """The identities of the command's directory and program, as a single string. An approval is valid only as long
    as this string does not change.
    """
    changed: Changed | None = None
    """The kind of change since an earlier approval of the same action; None if the action was not approved
    earlier.
    """


class ApplyPatch(Struct, frozen=True, kw_only=True):
    """A verified patch that the model wants to apply."""

    call_id: CallId
    changes: dict[str, FileChange]
    """The changes, by absolute path. Symbolic links in the paths are resolved."""
    paths: tuple[str, ...]
    """All paths that are written, including the old and the new path of a moved file. They are absolute, with
    symbolic links resolved.
    """
    inside_cwd: bool
    """True if every file is inside the working directory of the conversation."""
    has_failed: bool = False
    """True if applying the patch failed in the sandbox, and this is a request to apply it without the sandbox."""
    covers: str = ""
    """A string that identifies the directories of the patch and the current contents of its files. An approval is
    valid only as long as this string does not change.
    """
    changed: Changed | None = None
    """The kind of change since an earlier approval of the same action; None if the action was not approved
    earlier.
    """


Action = RunCommand | ApplyPatch


class Granted(Struct, frozen=True, kw_only=True):
    """The verdict that an action is allowed."""

    policy: SandboxPolicy | None = None
    """The sandbox policy for the action; None means no sandbox."""
    by_person: bool = False
    """True if a person approved the action; False if the settings allow the action."""
    known_safe: bool = False
    """True for a command that is known to be safe, because it only reads and prints. If such a command fails, the
    tool does not assume that the sandbox was the cause.
    """
    ask_again: bool = False
    """True if the tool, after a failure in the sandbox, must call `authorize` again with `has_failed` set. If
    False, the tool returns the failure to the model.
    """
    accepted: tuple[str, ...] = ()
    """The paths of protected files that could not be restored, but that a person has accepted in their current
    state.
    """


class RejectedByPolicy(Struct, frozen=True, kw_only=True):
    """The verdict that the settings forbid an action."""

    why: str
    """The reason for the rejection. In the output for the model, it follows the text `exec command rejected: ` or
    `patch rejected: `.
    """


class RejectedByUser(Struct, frozen=True, kw_only=True):
    """The verdict that a person denied an action."""

    reason: str | None = None
    """The reason that the person gave, which the model gets; None if the person gave no reason."""


Verdict = Granted | RejectedByPolicy | RejectedByUser


class Authorize(Protocol):
    """Decides whether an action is allowed. If the settings require an approval, a person decides.

    Tools get a `Granted` only from this function. A person may interrupt the turn instead of deciding. The
    interrupt cancels the call of this function.
    """

    async def __call__(self, action: Action) -> Verdict:
        """Return `Granted` if the action is allowed; otherwise return a verdict with the reason for the
        rejection.
        """
        ...


# --- tools of a turn -------------------------------------------------------------------


class ToolContext(Struct, frozen=True, kw_only=True):
    """The objects of a turn that its tools use: the settings, the transcript and the function `authorize`."""

    settings: Settings
    transcript: Transcript
    authorize: Authorize


class TurnTools(Protocol):
    """The tools that the model can call in one turn."""

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the model may call, in the order in which the model gets them."""
        ...

    async def run(self, call: CallItem) -> str:
        """Run a tool call and return the output for the model. Events are appended while the tool call is running.
        If the tool call fails, the output describes the error; the method never raises an error. A cancellation
        ends running commands and leaves no partially written file. After a cancellation, the caller records an
        output for the tool call.
        """
        ...


class Tools(Protocol):
    """The tools that this process can offer to models."""

    def open(self, context: ToolContext) -> AbstractAsyncContextManager[TurnTools]:
        """Return a context manager that opens the tools of one turn and closes them at its exit.

        The tool servers that the turn may use keep running until the tools are closed.
        """
        ...

    async def start_servers(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        """Start the tool servers in the settings that are not running yet.

        Wait until each of these servers has started or failed, but at most until ten seconds after the last server
        began to start. Return a pair for each server that could not be started, in the order of the settings: its
        name and a sentence about the failure. A server that needs longer continues to start and is not reported.
        """
        ...

    async def close(self) -> None:
        """Close all tools and stop all tool servers."""
        ...

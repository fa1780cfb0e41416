"""The port of the tools that a model can call.

`Tools` belongs to the process, `TurnTools` to one turn. A tool appends its events to the transcript of the turn,
and returns the text for the model.
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
    """Absolute. If a call names the directory, its symbolic links are resolved, so that the approval shows where
    the command runs.
    """
    search_path: str | None = None
    """The `PATH` of the command; None if it has none."""
    home: str | None = None
    """The `HOME` of the command."""
    escalated: bool = False
    """True if the model asks to run it outside the sandbox."""
    justification: str | None = None
    has_failed: bool = False
    """True if it has failed in the sandbox, and is to be repeated without one."""
    covers: str = ""
    """The identities of its directory and program, which an approval covers too."""
    changed: Changed | None = None
    """What has changed since it was approved, so that it has to be approved again."""


class ApplyPatch(Struct, frozen=True, kw_only=True):
    """A verified patch that the model wants to apply."""

    call_id: CallId
    changes: dict[str, FileChange]
    """By absolute path, with symbolic links resolved."""
    paths: tuple[str, ...]
    """All paths that are written, including the old and the new path of a moved file: absolute, with symbolic
    links resolved.
    """
    inside_cwd: bool
    """True if every file is below the working directory of the conversation."""
    has_failed: bool = False
    """True if writing has failed in the sandbox, and is to be repeated without one."""
    covers: str = ""
    """The identities of its directories and the contents of its files, which an approval covers too."""
    changed: Changed | None = None
    """What has changed since it was approved, so that it has to be approved again."""


Action = RunCommand | ApplyPatch


class Granted(Struct, frozen=True, kw_only=True):
    """The action is allowed."""

    bounds: SandboxPolicy | None = None
    """The sandbox policy; None for no sandbox."""
    by_person: bool = False
    """True if a person approved the action; False if the settings allow it."""
    known_safe: bool = False
    """True for a command that is known to be harmless: if it fails, the sandbox is not the reason."""
    ask_again: bool = False
    """True if the tool must ask again, with `has_failed`, after a failure in the sandbox."""
    accepted: tuple[str, ...] = ()
    """Paths of protected files that could not be restored, and that a person has accepted as they are."""


class RejectedByPolicy(Struct, frozen=True, kw_only=True):
    """The settings forbid the action."""

    why: str
    """The reason, which follows `exec command rejected: ` or `patch rejected: `."""


class RejectedByUser(Struct, frozen=True, kw_only=True):
    """A person denied the action."""

    reason: str | None = None
    """The reason that the person gave, for the model."""


Verdict = Granted | RejectedByPolicy | RejectedByUser


class Authorize(Protocol):
    """Decides about an action by the settings, or asks a person. Every `Granted` comes from here.

    A person may interrupt the turn instead, which cancels the call.
    """

    async def __call__(self, action: Action) -> Verdict:
        """Return `Granted`, or why the action is rejected."""
        ...


# --- tools of a turn -------------------------------------------------------------------


class ToolContext(Struct, frozen=True, kw_only=True):
    """What the tools of a turn are given."""

    settings: Settings
    transcript: Transcript
    authorize: Authorize


class TurnTools(Protocol):
    """The tools of one turn."""

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the model is offered, in order."""
        ...

    async def run(self, call: CallItem) -> str:
        """Run a call and return the output for the model. Events are appended meanwhile.

        Never fails: an error becomes the output. A cancellation ends running commands and leaves no file half
            written; the caller then records the output of the call.
        """
        ...


class Tools(Protocol):
    """All tools of this process."""

    def open(self, context: ToolContext) -> AbstractAsyncContextManager[TurnTools]:
        """Open the tools of one turn. The tool servers that the turn may use keep running until the tools are
        closed.
        """
        ...

    async def start_servers(self, settings: Settings) -> tuple[str, ...]:
        """Start the tool servers of these settings that do not run. Wait until they have started, but at most ten
        seconds after the last of them began to start.

        Return a sentence for each server that could not be started, in the order of the settings. A server that
        needs longer continues to start and is not reported.
        """
        ...

    async def close(self) -> None:
        """End all tools and tool servers."""
        ...

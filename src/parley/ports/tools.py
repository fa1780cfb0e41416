"""What the agent can do besides talking.

`Tools` belongs to the process, `TurnTools` to one turn. A tool says what happens by itself, in the
turn's transcript; what it returns is what the model is told.
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


# --- what needs a yes ------------------------------------------------------------------


class RunCommand(Struct, frozen=True, kw_only=True):
    """The model wants a command run."""

    call_id: CallId
    argv: tuple[str, ...]
    cwd: str
    """Absolute, and as given by a call without links: what whoever is asked is told is where it runs."""
    search_path: str | None = None
    """The `PATH` that it will have; None: it will have none."""
    home: str | None = None
    """The `HOME` that it will have."""
    escalated: bool = False
    """The model asks for it to run outside the sandbox."""
    justification: str | None = None
    has_failed: bool = False
    """It has run within its bounds and failed there: may it run again, without any?"""
    covers: str = ""
    """The identity of its directory and program, which an approval covers as well."""
    changed: Changed | None = None
    """It was approved, and has to be again, because this is not the same any more."""


class ApplyPatch(Struct, frozen=True, kw_only=True):
    """The model wants files changed; the patch was verified and would apply."""

    call_id: CallId
    changes: dict[str, FileChange]
    """By absolute path, with every link in it resolved."""
    paths: tuple[str, ...]
    """All that is written to, moved files at both ends: absolute, with every link in them resolved."""
    inside_cwd: bool
    """Every file lies below the conversation's working directory."""
    has_failed: bool = False
    """It was written within its bounds and failed there: may it be written without any?"""
    covers: str = ""
    """The identity of its directories and the contents of its files, which an approval covers as well."""
    changed: Changed | None = None
    """It was approved, and has to be again, because this is not the same any more."""


Action = RunCommand | ApplyPatch


class Granted(Struct, frozen=True, kw_only=True):
    """It may be done."""

    bounds: SandboxPolicy | None = None
    """Within which; None: without a sandbox."""
    by_person: bool = False
    """Somebody was asked; otherwise the settings allow it."""
    known_safe: bool = False
    """It is a command that can do no harm: when it fails, that is no fault of its bounds."""
    ask_again: bool = False
    """When it fails within its bounds, ask once more, with `has_failed`."""
    accepted: tuple[str, ...] = ()
    """Paths of protected files that could not be restored, and that a person has accepted as they are."""


class RejectedByPolicy(Struct, frozen=True, kw_only=True):
    """It must not be done, by the settings."""

    why: str
    """Behind `exec command rejected: ` or `patch rejected: `."""


class RejectedByUser(Struct, frozen=True, kw_only=True):
    """It must not be done: somebody was asked and said no."""

    reason: str | None = None
    """In the words of whoever said so, for the model."""


Verdict = Granted | RejectedByPolicy | RejectedByUser


class Authorize(Protocol):
    """Decides by the settings, or asks. The only way to a `Granted`.

    Whoever is asked may stop the whole turn instead: it is then cancelled.
    """

    async def __call__(self, action: Action) -> Verdict: ...


# --- a turn's tools --------------------------------------------------------------------


class ToolContext(Struct, frozen=True, kw_only=True):
    """One turn, as the tools that work in it see it."""

    settings: Settings
    transcript: Transcript
    permit: Authorize


class TurnTools(Protocol):
    """The tools of one turn."""

    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is offered, in order."""
        ...

    async def run(self, call: CallItem) -> str:
        """Do what the model asked for, and return what it is told. Events are appended meanwhile.

        Never fails: what a tool cannot do, or does wrong, is told to the model as well. Cancelling
        ends whatever runs, and leaves no file half written; the caller then answers the call.
        """
        ...


class Tools(Protocol):
    """All tools of this process."""

    def open(self, desk: ToolContext) -> AbstractAsyncContextManager[TurnTools]:
        """The tools for one turn; tool servers that it may use are kept running until it closes."""
        ...

    async def start_servers(self, settings: Settings) -> tuple[str, ...]:
        """Start the tool servers of these settings, or find them running; wait for those that still
        start: until ten seconds after the last of them began, and a moment for what they say then.

        Returns a sentence for each that could not be started, in the order of the settings. One that
        needs longer goes on starting and is not among them.
        """
        ...

    async def close(self) -> None:
        """End everything that still runs."""
        ...

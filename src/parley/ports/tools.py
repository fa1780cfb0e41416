"""What the agent can do besides talking.

`Tools` belongs to the process, `Hands` to one turn. A tool says what happens by itself, in the
turn's transcript; what it returns is what the model is told.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from parley.config.types import Settings
from parley.conversation.records import CallItem
from parley.ports.model import ToolSpec
from parley.ports.transcript import Transcript
from parley.wire.events import FileChange
from parley.wire.ids import CallId

__all__ = [
    "Action",
    "ApplyPatch",
    "Desk",
    "Granted",
    "Hands",
    "Permit",
    "Refused",
    "RunCommand",
    "Tools",
    "Verdict",
]


# --- what needs a yes ------------------------------------------------------------------


class RunCommand(Struct, frozen=True, kw_only=True):
    """The model wants a command run."""

    call_id: CallId
    argv: tuple[str, ...]
    cwd: str
    escalated: bool = False
    """The model asks for it to run outside the sandbox."""
    justification: str | None = None


class ApplyPatch(Struct, frozen=True, kw_only=True):
    """The model wants files changed; the patch was verified and would apply."""

    call_id: CallId
    changes: dict[str, FileChange]
    """By absolute path, with every link in it resolved."""
    inside_cwd: bool
    """Every file lies below the conversation's working directory."""


Action = RunCommand | ApplyPatch


class Granted(Struct, frozen=True, kw_only=True):
    """It may be done."""

    by_person: bool = False
    """Somebody was asked; otherwise the settings allow it."""


class Refused(Struct, frozen=True, kw_only=True):
    """It must not be done."""

    why: str
    """Behind `exec command rejected: ` or `patch rejected: `."""


Verdict = Granted | Refused


class Permit(Protocol):
    """Decides by the settings, or asks. The only way to a `Granted`."""

    async def __call__(self, action: Action) -> Verdict: ...


# --- a turn's tools --------------------------------------------------------------------


class Desk(Struct, frozen=True, kw_only=True):
    """One turn, as the tools that work in it see it."""

    settings: Settings
    transcript: Transcript
    permit: Permit


class Hands(Protocol):
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

    def open(self, desk: Desk) -> AbstractAsyncContextManager[Hands]:
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

"""The patches of one turn, from the text of a patch to what the model is told.

Knows the texts and the order of events (docs/protocol.md, apply_patch). Does not know how files
are matched or written, nor who may change what.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from msgspec import Struct

from parley.conversation.records import CallItem
from parley.errors import BadArguments, PatchRefused
from parley.ports.model import ToolSpec
from parley.ports.tools import ApplyPatch, Desk, Refused
from parley.tools.cutting import for_model
from parley.tools.results import BAD_ARGUMENTS, ran
from parley.wire.arguments import fit
from parley.wire.events import FileChange, OutputStream, PatchApplyBegin, PatchApplyEnd, TurnDiff
from parley.wire.ids import CallId
from parley.wire.text import sayable

if TYPE_CHECKING:
    from parley.tools.patch.plan import Plan

__all__ = ["Patches"]

T = TypeVar("T")


class Patches:
    """Applies patches, and keeps count of what the turn has changed by them."""

    names = ("apply_patch", "applypatch")

    def __init__(self, desk: Desk) -> None:
        # Matching, writing and comparing are loaded by the first turn that has tools, not by the server.
        from parley.tools.patch import turndiff

        self._desk = desk
        self._diff = turndiff.TurnDiff(desk.settings.cwd)

    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.names[0], description=_DESCRIPTION, parameters=_PARAMETERS)

    async def run(self, call: CallItem) -> str:
        try:
            patch = _patch(sayable(call.arguments).encode())
        except BadArguments as error:
            return BAD_ARGUMENTS + error.detail
        return await self.apply(call.call_id, patch, workdir=self._desk.settings.cwd)

    async def apply(self, call_id: CallId, patch: str, *, workdir: str) -> str:
        """Apply a patch whose paths are read from `workdir`, and return what the model is told.

        Cancelling while files are written waits until they are, or are as they were, and until that was said.
        """
        settings, transcript = self._desk.settings, self._desk.transcript
        try:
            verified = await asyncio.to_thread(_verified, patch, workdir=workdir, cwd=settings.cwd)
        except PatchRefused as refusal:
            return sayable(str(refusal))
        action = ApplyPatch(call_id=call_id, changes=verified.changes, cwd=workdir)
        verdict = await self._desk.permit(action)
        if isinstance(verdict, Refused):
            return f"patch rejected: {sayable(verdict.why)}"
        await transcript.append(
            PatchApplyBegin(call_id=call_id, auto_approved=not verdict.by_person, changes=verified.changes)
        )
        outcome, cancelled = await _to_its_end(lambda: self._carry_out(verified.plan))
        stream: OutputStream = "stderr" if outcome.stderr else "stdout"
        transcript.show_output(call_id, stream, outcome.said.encode())
        kept = transcript.kept_output(call_id)
        end = PatchApplyEnd(
            call_id=call_id, stdout=outcome.stdout, stderr=outcome.stderr, success=not outcome.stderr
        )
        await transcript.append(
            *([] if kept is None else [kept]),
            end,
            *([TurnDiff(unified_diff=outcome.diff)] if outcome.diff else []),
        )
        if cancelled is not None:
            raise cancelled
        told = "".join(map(for_model, kept.streams)) if kept else ""
        return ran(told, exit_code=1 if outcome.stderr else 0, seconds=outcome.seconds)

    def _carry_out(self, plan: Plan) -> _Outcome:
        from parley.tools.patch.commit import commit

        started_at = time.monotonic()
        try:
            commit(plan.changes)
        except PatchRefused as failure:
            return _Outcome(stderr=sayable(f"{failure}\n"), seconds=time.monotonic() - started_at)
        seconds = time.monotonic() - started_at
        for change in plan.changes:
            self._diff.before(change.path, change.before, change.mode_before)
            if change.move_to is not None:
                self._diff.before(change.move_to, None, None)
                self._diff.moved(change.path, change.move_to)
        return _Outcome(stdout=plan.summary(), seconds=seconds, diff=self._diff.render())


class _Outcome(NamedTuple):
    """What came of writing: one of the two streams says it."""

    seconds: float
    stdout: str = ""
    stderr: str = ""
    diff: str = ""

    @property
    def said(self) -> str:
        return self.stderr or self.stdout


class _Verified(NamedTuple):
    plan: Plan
    changes: dict[str, FileChange]


def _verified(patch: str, *, workdir: str, cwd: str) -> _Verified:
    from parley.tools.patch.plan import verify

    plan = verify(patch, workdir=workdir, cwd=cwd)
    return _Verified(plan, plan.for_events())


async def _to_its_end(work: Callable[[], T]) -> tuple[T, asyncio.CancelledError | None]:
    """Do something in a thread, all of it; also whether we were cancelled meanwhile."""
    # Not a task: ending the event loop cancels those.
    doing = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait((doing,))
        except asyncio.CancelledError as asked:
            cancelled = asked
    if cancelled is not None and doing.exception() is not None:
        raise cancelled
    return doing.result(), cancelled


# --- what is asked for -------------------------------------------------------------------


class _Arguments(Struct, frozen=True, kw_only=True):
    input: str | None = None
    patch: str | None = None
    """What some models call it."""


def _patch(arguments: bytes) -> str:
    given = fit(_Arguments, arguments)
    patch = given.patch if given.input is None else given.input
    if patch is None:
        raise BadArguments("missing field `input`", field="input")
    return patch


# --- how it is offered -------------------------------------------------------------------

_DESCRIPTION: Final = """\
Change files by a patch: all of it is applied, or nothing. The patch is text of this form:

*** Begin Patch
*** Add File: new.txt
+every line of the new file, behind a plus sign
*** Update File: src/old.py
@@ def greet():
 unchanged line
-removed line
+added line
*** Delete File: gone.txt
*** End Patch

Between the first line and the last stand any number of the three kinds of hunk. Paths are relative to the \
working directory. A file must not exist to be added, and must exist to be updated or deleted.

An update consists of chunks. A chunk begins with @@, alone or followed by a line that stands somewhere above \
it in the file, such as the head of a function; the first chunk may do without. Each further line begins with \
a blank (unchanged), a minus sign (removed) or a plus sign (added). Unchanged and removed lines must stand in the \
file just so, next to each other; give about three unchanged lines before and after a change, so that the \
place is found. Chunks stand in the order of the file. A chunk that only adds lines puts them at the end of the \
file. *** End of File behind a chunk says that it is the last of the file. To rename a file, put \
*** Move to: NEW_PATH right behind its Update line."""

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole patch"}},
    "required": ["input"],
    "additionalProperties": False,
}

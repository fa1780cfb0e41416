"""The `apply_patch` tool: applies the patches of one turn, and returns the output that the model reads.

This module defines the model-facing text and the order of events (docs/protocol.md#apply_patch). The
package `tools/patch` matches patches against files and writes the files.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from parley.common.shield import run_to_completion
from parley.common.spelling import shortened
from parley.common.threads import begin_in_thread
from parley.config.installation import installed_paths
from parley.config.types import Settings
from parley.conversation.records import CallItem, CallOutput, CommandOutput, StreamOutput
from parley.errors import BadArguments, CommandNotStarted
from parley.ports.commands import CommandRunner
from parley.ports.model import ToolSpec
from parley.ports.tools import ApplyPatch, Granted, RejectedByPolicy, RejectedByUser, ToolContext
from parley.tools.errors import PatchChanged, PatchNotApplied
from parley.tools.patch.deadline import CancelToken
from parley.tools.patch.threads import written_in_thread
from parley.tools.reapproval import MAX_APPROVALS, REPLACED_EACH_TIME, ask_to_escalate, report_changed
from parley.tools.results import (
    BAD_ARGUMENTS,
    denied_by_sandbox,
    failed_in_sandbox,
    internal_error,
    ran,
    rejected,
)
from parley.tools.truncation import for_model
from parley.wire.arguments import decode_arguments
from parley.wire.events import FileChange, OutputStream, PatchApplyBegin, PatchApplyEnd, PatchRefused, TurnDiff
from parley.wire.ids import CallId, ItemId
from parley.wire.patch_format import PATCH_FORMAT
from parley.wire.text import replace_surrogates

if TYPE_CHECKING:
    from parley.tools.patch.plan import Plan
    from parley.tools.patch.turndiff import TouchedFiles

__all__ = ["Patches"]

log: Final = logging.getLogger(__name__)

FAILED: Final = 1
"""The exit code in the output for the model if a patch was not applied."""

MAX_MESSAGE_CHARACTERS: Final = 1000
"""The maximum number of characters of the message in the event `patch_refused`."""


class Patches:
    """Applies the patches of one turn, and maintains a diff of all changes in the turn."""

    names = ("apply_patch", "applypatch")

    def __init__(self, context: ToolContext, commands: CommandRunner, touched: TouchedFiles | None = None) -> None:
        # The first turn that has tools imports `turndiff`. The first patch imports the modules that match and
        # write.
        from parley.tools.patch.turndiff import TouchedFiles

        self._context, self._commands = context, commands
        hidden = context.settings.withheld_paths
        self._touched = TouchedFiles(context.settings.cwd, hidden=hidden) if touched is None else touched

    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.names[0], description=_DESCRIPTION, parameters=_PARAMETERS)

    async def run(self, call: CallItem) -> str:
        try:
            patch = _patch(replace_surrogates(call.arguments).encode())
        except BadArguments as error:
            await self._report(call.call_id, error.detail)
            return BAD_ARGUMENTS + error.detail
        return await self.apply(call.call_id, patch, workdir=self._context.settings.cwd)

    async def apply(self, call_id: CallId, patch: str, *, workdir: str) -> str:
        """Apply a patch whose paths are relative to `workdir`, and return the output for the model.

        If the tool call is cancelled while files are being written, the method first writes or restores all files
        and appends the event that ends the patch. Then it raises `CancelledError`.
        """
        try:
            verified = await self._verified(patch, workdir)
            done = await self._decide_and_write(call_id, verified, partial(self._verified, patch, workdir))
        except PatchNotApplied as refusal:
            why = replace_surrogates(str(refusal))
            await self._report(call_id, why)
            return _truncated(why)
        if isinstance(done, _Attempt):
            return done.output
        if isinstance(done, RejectedByPolicy):
            await self._report(call_id, replace_surrogates(done.why))
        return rejected("patch", done)

    async def _report(self, call_id: CallId, why: str) -> None:
        """Append the event that tells clients why the server refused the patch (`why`)."""
        message = shortened(why.removeprefix("error: ").removeprefix("patch rejected: "), MAX_MESSAGE_CHARACTERS)
        await self._context.transcript.append(PatchRefused(call_id=call_id, message=message))

    async def _verified(self, patch: str, workdir: str) -> _Verified:
        return await _verify(patch, workdir=workdir, settings=self._context.settings)

    async def _decide_and_write(
        self, call_id: CallId, verified: _Verified, verify: Callable[[], Awaitable[_Verified]]
    ) -> _Attempt | RejectedByPolicy | RejectedByUser:
        """Apply a verified patch if the policy or the user allows it. Return the result of the attempt, or the
        rejection of the patch. `verify` verifies the patch again, against the current files.

        Raises:
            PatchNotApplied: the patch was approved, but no longer matches the files.
        """
        action = ApplyPatch(
            call_id=call_id,
            changes=verified.changes,
            paths=verified.plan.paths,
            inside_cwd=verified.plan.inside_cwd,
            covers=verified.covers,
        )
        verdict = await self._context.authorize(action)
        if not isinstance(verdict, Granted):
            return verdict
        if verdict.by_person:
            return await self._write_approved(action, verified, verdict, verify)
        attempt = await self._attempt(verified, action, verdict)
        if attempt.denied is None or not verdict.ask_again:
            return attempt
        action = replace(action, has_failed=True)
        verdict = await ask_to_escalate(self._context, action, why=attempt.denied)
        if not isinstance(verdict, Granted):
            return verdict
        return await self._write_approved(action, verified, verdict, verify)

    async def _write_approved(
        self, action: ApplyPatch, verified: _Verified, verdict: Granted, verify: Callable[[], Awaitable[_Verified]]
    ) -> _Attempt | RejectedByPolicy | RejectedByUser:
        """Apply an approved patch if its files and directories are still the approved ones. If a file or directory
        was replaced, ask the user again, at most `MAX_APPROVALS` times in total. Return the result of the last
        attempt, or the rejection of the patch. `verify` verifies the patch again, against the current files.

        Raises:
            PatchNotApplied: the patch no longer matches the files.
        """
        for approvals in range(1, MAX_APPROVALS + 1):
            now = await verify()
            if now.covers == verified.covers:
                attempt = await self._attempt(verified, action, verdict)
                if not attempt.is_changed:
                    return attempt
                now = await verify()
            await report_changed(self._context, "files")
            if approvals == MAX_APPROVALS:
                break
            verified = now
            action = replace(
                action,
                changes=verified.changes,
                paths=verified.plan.paths,
                inside_cwd=verified.plan.inside_cwd,
                covers=verified.covers,
                changed="files",
            )
            again = await self._context.authorize(action)
            if not isinstance(again, Granted):
                return again
            verdict = again
        return REPLACED_EACH_TIME

    async def _attempt(self, verified: _Verified, action: ApplyPatch, verdict: Granted) -> _Attempt:
        transcript, call_id = self._context.transcript, action.call_id
        # A retry has the same value as its first attempt, which needed no approval.
        auto_approved = action.has_failed or not verdict.by_person
        await transcript.append(
            PatchApplyBegin(call_id=call_id, auto_approved=auto_approved, changes=verified.changes)
        )
        outcome, cancelled = await self._carry_out(verified, verdict)
        stream: OutputStream = "stderr" if outcome.stderr else "stdout"
        transcript.show_output(call_id, stream, outcome.text.encode())
        kept = transcript.output_so_far(call_id)
        end = PatchApplyEnd(
            call_id=call_id, stdout=outcome.stdout, stderr=outcome.stderr, success=not outcome.stderr
        )
        attempt = _attempt(outcome, kept, verdict)
        await transcript.append(
            *([] if kept is None else [kept]),
            end,
            *([TurnDiff(unified_diff=outcome.diff)] if outcome.diff else []),
        )
        if cancelled is None:
            return attempt
        if call_id in transcript.history.unanswered:  # the model must know what was written
            await transcript.append(CallOutput(call_id=call_id, output=attempt.output))
        raise cancelled

    async def _carry_out(
        self, verified: _Verified, verdict: Granted
    ) -> tuple[_Outcome, asyncio.CancelledError | None]:
        """Apply the patch in a thread. Return the result, and the `CancelledError` that was raised while the files
        were being written. The error is None if the tool call was not cancelled.

        This method raises no exceptions, because every begin event must be followed by an end event.
        """
        cancelled: asyncio.CancelledError | None = None
        try:
            # The write is not a task, because the end of the event loop would cancel a task.
            writing = written_in_thread(lambda: self._write(verified, verdict), name="write-patch")
            try:
                await run_to_completion(writing)
            except asyncio.CancelledError as asked:
                cancelled = asked
            return writing.result(), cancelled
        except Exception as bug:
            log.exception("a patch failed")
            return _Outcome(stderr=internal_error(bug)), cancelled

    def _write(self, verified: _Verified, verdict: Granted) -> _Outcome:
        started_at, policy = time.monotonic(), verdict.policy
        try:
            if policy is not None and not verdict.by_person:
                self._commands.confine_thread(policy)
            left = verified.commit_approved() if verdict.by_person else verified.commit()
        except PatchNotApplied as failure:
            seconds = time.monotonic() - started_at
            is_changed = isinstance(failure, PatchChanged)
            return _Outcome(
                stderr=replace_surrogates(f"{failure}\n"), seconds=seconds, refused=True, changed=is_changed
            )
        except CommandNotStarted as failure:
            return _Outcome(stderr=replace_surrogates(failure.detail), not_begun=True)
        seconds = time.monotonic() - started_at
        summary = verified.plan.summary() + replace_surrogates("".join(f"{sentence}\n" for sentence in left))
        return _Outcome(stdout=summary, seconds=seconds, diff=self._diff(verified.plan))

    def _diff(self, plan: Plan) -> str:
        """Return the diff of all changes in the turn, including the changes of `plan`, which have already been
        written. If the diff cannot be computed, log the reason and return an empty string, because the patch must
        not count as failed.
        """
        try:
            for change in plan.changes:
                self._touched.before(change.path, change.before, change.mode_before)
                if change.move_to is not None:
                    self._touched.before(change.move_to, None, None)
                    self._touched.moved(change.path, change.move_to)
            return self._touched.render()
        except Exception:
            log.exception("failed to compute the diff of a turn")
            return ""


class _Outcome(NamedTuple):
    """The result of applying a patch. If the patch was applied, `stdout` contains the summary of the changes.
    Otherwise, `stderr` contains the error.
    """

    stdout: str = ""
    stderr: str = ""
    diff: str = ""
    seconds: float = 0.0
    refused: bool = False
    """True if the files could not be written, or no longer matched the patch."""
    changed: bool = False
    """True if the files changed after the patch was verified."""
    not_begun: bool = False
    """True if nothing was written, because the sandbox could not be set up."""

    @property
    def text(self) -> str:
        return self.stderr or self.stdout


class _Attempt(NamedTuple):
    """The result of an attempt to apply a patch."""

    output: str
    """The output for the model."""
    denied: str | None = None
    """The reason for a failure that the sandbox may have caused; None if there was no such failure."""
    is_changed: bool = False
    """True if the patch was not applied because the files changed after the patch was verified."""


def _attempt(outcome: _Outcome, kept: CommandOutput | None, verdict: Granted) -> _Attempt:
    policy = verdict.policy
    if outcome.not_begun:
        return _Attempt(f"execution error: {outcome.stderr}")
    streams = kept.streams if kept else ()
    if policy is not None and outcome.refused:
        denied = denied_by_sandbox(FAILED, stdout=None, stderr=streams[0] if streams else None)
        return _Attempt(failed_in_sandbox(denied, policy), denied)
    shown = "".join(map(for_model, streams))
    output = ran(shown, exit_code=FAILED if outcome.stderr else 0, seconds=outcome.seconds)
    return _Attempt(output, is_changed=outcome.changed)


class _Verified(NamedTuple):
    """A patch that matches the current files, and the functions that apply it."""

    plan: Plan
    changes: dict[str, FileChange]
    covers: str
    """A digest of the files and directories that the patch changes. An approval is valid only for this digest."""
    commit: Callable[[], tuple[str, ...]]
    """The function that applies a patch that needed no approval. The function returns a message for each temporary
    file that could not be removed.
    """
    commit_approved: Callable[[], tuple[str, ...]]
    """The function that applies an approved patch. It does the same as `commit`, but raises `PatchChanged` if a
    directory was replaced after the patch was verified.
    """


def _installed_paths(settings: Settings) -> tuple[str, ...]:
    if settings.sandbox_mode == "danger-full-access":
        return ()
    return (*installed_paths((settings.cwd, *settings.workspace_write.writable_roots)), *settings.clones)


async def _verify(patch: str, *, workdir: str, settings: Settings) -> _Verified:
    """Verify a patch in a thread, and return the verified patch. The paths of the patch are relative to `workdir`,
    and `settings` determine which paths are protected. If the tool call is cancelled, the thread stops soon
    afterwards.

    Raises:
        PatchNotApplied: the patch is invalid, does not match the files or names a protected path.
    """
    cancel = CancelToken()

    def verified() -> _Verified:
        from parley.tools.patch.commit import commit
        from parley.tools.patch.plan import verify

        plan = verify(
            patch,
            workdir=workdir,
            cwd=settings.cwd,
            home=settings.home,
            hidden=settings.withheld_paths,
            installed=_installed_paths(settings),
            cancel=cancel,
        )
        return _Verified(
            plan,
            plan.for_events(cancel=cancel),
            plan.covers,
            partial(commit, plan.changes),
            partial(commit, plan.changes, expected=plan.folders),
        )

    try:
        return await begin_in_thread(verified, name="verify-patch")
    finally:
        cancel.cancel()


def _truncated(text: str) -> str:
    """Return `text`, truncated to the limits for the output of a command."""
    encoded = text.encode()
    return for_model(
        StreamOutput(
            item=ItemId(""), stream="stderr", head=encoded, tail=b"", size=len(encoded), lines=encoded.count(b"\n")
        )
    )


# --- arguments ---------------------------------------------------------------------------


class _Arguments(Struct, frozen=True, kw_only=True):
    input: str | None = None
    patch: str | None = None
    """The patch, under a name that some models use instead of `input`; None if it is missing."""


def _patch(arguments: bytes) -> str:
    given = decode_arguments(_Arguments, arguments)
    patch = given.patch if given.input is None else given.input
    if patch is None:
        raise BadArguments("missing field `input`", field="input")
    return patch


# --- description for the model -----------------------------------------------------------

_DESCRIPTION: Final = f"Apply a patch to files. Either the whole patch is applied or nothing.\n\n{PATCH_FORMAT}"

_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole patch"}},
    "required": ["input"],
    "additionalProperties": False,
}

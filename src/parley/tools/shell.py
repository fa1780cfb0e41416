"""The shell tool: one command of the model, from its arguments to what the model is told.

Knows the texts and the order of events (docs/protocol.md, the shell tool). Does not know how
processes are run nor who may run what.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Annotated, Any, Final, NamedTuple, Protocol

from msgspec import Meta, Struct

from parley.config.types import Settings
from parley.conversation.records import CallItem, CommandOutput, StreamOutput
from parley.errors import BadArguments, CommandNotStarted
from parley.ports.commands import Command, Commands, Ended
from parley.ports.model import ToolSpec
from parley.ports.tools import Desk, Refused, RunCommand
from parley.tools import parsed_commands
from parley.tools.commands.environment import command_environment
from parley.tools.cutting import both_for_model, for_end_event, for_model
from parley.tools.patch.recognise import patch_in
from parley.tools.results import BAD_ARGUMENTS, as_duration, internal_error, ran
from parley.wire.arguments import fit
from parley.wire.events import ExecCommandBegin, ExecCommandEnd
from parley.wire.ids import CallId
from parley.wire.text import sayable

__all__ = ["DEFAULT_TIMEOUT_MS", "AppliesPatches", "Shell"]

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS: Final = 10_000
LOCAL_SHELL: Final = "local_shell"
"""What calls of the shell that some models were taught are named."""


class AppliesPatches(Protocol):
    """Whatever can apply a patch, with its events."""

    async def apply(self, call_id: CallId, patch: str, *, workdir: str) -> str:
        """Apply it and return what the model is told."""
        ...


class Shell:
    """Runs one command; one that hands a patch to `apply_patch` has the patch applied instead."""

    names: tuple[str, ...] = ("shell", "container.exec", LOCAL_SHELL)

    def __init__(self, desk: Desk, commands: Commands, patches: AppliesPatches, environ: Mapping[str, str]) -> None:
        self._desk, self._commands, self._patches, self._environ = desk, commands, patches, environ

    def spec(self) -> ToolSpec:
        settings = self._desk.settings
        if settings.approval_policy == "on-request" and settings.sandbox_mode != "danger-full-access":
            properties, description = {**_PROPERTIES, **_ASKING_PROPERTIES}, _description_with_sandbox(settings)
        else:
            properties, description = _PROPERTIES, _DESCRIPTION
        parameters = {
            "type": "object",
            "properties": properties,
            "required": ["command"],
            "additionalProperties": False,
        }
        return ToolSpec(name=self.names[0], description=description, parameters=parameters)

    async def run(self, call: CallItem) -> str:
        try:
            wanted = _wanted(call)
        except BadArguments as error:
            return BAD_ARGUMENTS + error.detail
        settings = self._desk.settings
        cwd = os.path.join(settings.cwd, wanted.workdir) if wanted.workdir else settings.cwd
        if (patch := patch_in(wanted.command)) is not None:
            return await self._patches.apply(call.call_id, patch, workdir=cwd)
        verdict = await self._desk.permit(
            RunCommand(
                call_id=call.call_id,
                argv=wanted.command,
                cwd=cwd,
                escalated=wanted.escalated,
                justification=wanted.justification,
            )
        )
        if isinstance(verdict, Refused):
            return f"exec command rejected: {sayable(verdict.why)}"
        return await self._carry_out(call.call_id, wanted, cwd)

    @cached_property
    def _env(self) -> Mapping[str, str]:
        """For every command of the turn."""
        settings = self._desk.settings
        return command_environment(
            self._environ,
            settings.shell_environment,
            network=settings.network_access,
            keys=settings.key_variables,
        )

    async def _carry_out(self, call_id: CallId, wanted: _Wanted, cwd: str) -> str:
        settings, transcript = self._desk.settings, self._desk.transcript
        command = Command(
            argv=wanted.command,
            cwd=cwd,
            env=self._env,
            timeout_seconds=wanted.timeout_ms / 1000,
        )
        await transcript.append(
            ExecCommandBegin(
                call_id=call_id,
                command=wanted.command,
                cwd=sayable(cwd),
                parsed_cmd=parsed_commands.parse(wanted.command),
            )
        )
        ended: Ended | CommandNotStarted
        try:
            ended = await self._commands.run(command, output=partial(transcript.show_output, call_id))
        except CommandNotStarted as error:
            ended = error
        except Exception as bug:  # of ours: what began must still be seen to end
            log.exception("a command failed")
            ended = CommandNotStarted(internal_error(bug))
        kept = transcript.kept_output(call_id)
        outcome = _outcome(ended, kept, wanted, settings)
        end = ExecCommandEnd(
            call_id=call_id,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            exit_code=outcome.exit_code,
            duration=as_duration(outcome.seconds),
        )
        await transcript.append(*([] if kept is None else [kept]), end)
        return outcome.told


# --- what is asked for -------------------------------------------------------------------


Milliseconds = Annotated[float, Meta(ge=0)]


class _Arguments(Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    workdir: str | None = None
    timeout: Milliseconds | None = None
    with_escalated_permissions: bool | None = None
    justification: str | None = None


class _Action(Struct, frozen=True, kw_only=True):
    """What a `local_shell_call` holds. Its `env` and `user` are left alone: whoever is asked about a
    command sees neither."""

    command: tuple[str, ...]
    working_directory: str | None = None
    timeout_ms: Milliseconds | None = None


class _Wanted(NamedTuple):
    command: tuple[str, ...]
    workdir: str | None
    timeout_ms: float
    escalated: bool = False
    justification: str | None = None


def _wanted(call: CallItem) -> _Wanted:
    arguments = sayable(call.arguments).encode()
    if call.name == LOCAL_SHELL:
        action = fit(_Action, arguments)
        return _Wanted(action.command, action.working_directory, _milliseconds(action.timeout_ms))
    given = fit(_Arguments, arguments)
    return _Wanted(
        given.command,
        given.workdir,
        _milliseconds(given.timeout),
        escalated=bool(given.with_escalated_permissions),
        justification=given.justification,
    )


def _milliseconds(given: float | None) -> float:
    return DEFAULT_TIMEOUT_MS if given is None else given


# --- what came of it ---------------------------------------------------------------------


class _Outcome(NamedTuple):
    """By default that of a command which did not run to its end."""

    told: str
    stderr: str
    stdout: str = ""
    exit_code: int = -1
    seconds: float = 0.0


def _outcome(
    ended: Ended | CommandNotStarted, kept: CommandOutput | None, wanted: _Wanted, settings: Settings
) -> _Outcome:
    if isinstance(ended, CommandNotStarted):
        detail = sayable(ended.detail)
        return _Outcome(told=f"execution error: {detail}", stderr=detail)
    if ended.timed_out:
        told = f"command timed out after {int(wanted.timeout_ms)} milliseconds"
        if settings.approval_policy in ("never", "on-request"):
            told = _failed_in_sandbox("command timed out")
        return _Outcome(told=told, stderr="sandbox error: command timed out")
    if ended.exit_code is None:
        why = "command was killed by a signal"
        return _Outcome(told=_failed_in_sandbox(why), stderr=f"sandbox error: {why}")
    said = {output.stream: output for output in kept.streams} if kept else {}
    stdout, stderr = said.get("stdout"), said.get("stderr")
    told = _told(stdout, stderr if ended.exit_code else None)
    return _Outcome(
        told=ran(told, exit_code=ended.exit_code, seconds=ended.seconds),
        stdout=for_end_event(stdout) if stdout else "",
        stderr=for_end_event(stderr) if stderr else "",
        exit_code=ended.exit_code,
        seconds=ended.seconds,
    )


def _failed_in_sandbox(why: str) -> str:
    return f"failed in sandbox None with execution error: {why}"


def _told(stdout: StreamOutput | None, stderr: StreamOutput | None) -> str:
    """One behind the other, as far as they are wanted."""
    if stdout is None or stderr is None:
        return "".join(for_model(output) for output in (stdout, stderr) if output is not None)
    first, second = both_for_model(stdout, stderr)
    return first + ("" if first.endswith("\n") else "\n") + second


# --- how it is offered -------------------------------------------------------------------

_DESCRIPTION: Final = (
    "Run one program and get what it prints. No shell reads the command: "
    'for pipes, wildcards or several commands, run ["bash", "-lc", "..."].'
)

_PROPERTIES: Final[dict[str, Any]] = {
    "command": {
        "type": "array",
        "items": {"type": "string"},
        "description": "The program and its arguments, a string each",
    },
    "workdir": {"type": "string", "description": "Where to run it; relative to the working directory"},
    "timeout": {"type": "number", "description": f"Milliseconds it may take; {DEFAULT_TIMEOUT_MS} by default"},
}

_ASKING_PROPERTIES: Final[dict[str, Any]] = {
    "with_escalated_permissions": {
        "type": "boolean",
        "description": "Ask for this command to run outside the sandbox",
    },
    "justification": {
        "type": "string",
        "description": "Why it has to run outside the sandbox: one sentence for the person who decides",
    },
}


def _description_with_sandbox(settings: Settings) -> str:
    return sayable(
        f"{_DESCRIPTION}\n\n"
        f"Commands run in a sandbox. They can read files anywhere. {_what_it_forbids(settings)}\n\n"
        "If a command needs more than that, or has failed for want of it, call again with "
        "with_escalated_permissions set to true and a justification. Somebody is then asked, and the command "
        "runs outside the sandbox if they agree. Do not ask for what works inside it."
    )


def _what_it_forbids(settings: Settings) -> str:
    network = "They can use the network." if settings.network_access else "They cannot use the network."
    if settings.sandbox_mode == "read-only":
        return f"They cannot write files. {network}"
    chosen = settings.workspace_write
    places = [settings.cwd, *chosen.writable_roots]
    if not chosen.exclude_slash_tmp:
        places.append("/tmp")
    if not chosen.exclude_tmpdir_env_var:
        places.append("$TMPDIR")
    return (
        f"They can write files only below these directories, and not in .git there: {', '.join(places)}. {network}"
    )

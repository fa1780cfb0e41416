"""The shell tool: runs one command of the model, and returns the output that the model reads.

This module defines the model-facing text and the order of events (docs/protocol.md#shell). A
`CommandRunner` runs the processes, and `ToolContext.authorize` decides which commands are allowed.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, Protocol

from msgspec import Meta, Struct
from msgspec.structs import replace

from parley.common.guarded_files import DirFds, HiddenPath
from parley.common.os_errors import os_detail
from parley.common.paths import is_below_any
from parley.config.checks import MAX_PATH_BYTES
from parley.config.types import Settings
from parley.conversation.records import CallItem, Changed, CommandOutput, StreamOutput
from parley.errors import BadArguments, CommandNotStarted
from parley.ports.commands import Approved, Command, CommandResult, CommandRunner
from parley.ports.model import ToolSpec
from parley.ports.tools import Authorize, Granted, RejectedByPolicy, RejectedByUser, RunCommand, ToolContext
from parley.tools import parsed_commands
from parley.tools.command_target import CommandTarget
from parley.tools.commands.environment import command_environment, with_restricted_git
from parley.tools.errors import CommandReplaced
from parley.tools.patch.extract import patch_in
from parley.tools.reapproval import MAX_APPROVALS, REPLACED_EACH_TIME, ask_to_escalate, report_changed
from parley.tools.results import (
    BAD_ARGUMENTS,
    as_duration,
    denied_by_sandbox,
    failed_in_sandbox,
    internal_error,
    ran,
    rejected,
)
from parley.tools.truncation import both_for_model, for_end_event, for_model
from parley.wire.arguments import decode_arguments
from parley.wire.events import ExecCommandBegin, ExecCommandEnd
from parley.wire.ids import CallId
from parley.wire.text import quoted, replace_surrogates

__all__ = ["DEFAULT_TIMEOUT_MS", "AppliesPatches", "Shell"]

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MS: Final = 10_000
LOCAL_SHELL: Final = "local_shell"
"""The name of the built-in shell tool that some models were trained to call."""
MAX_WORDS: Final = 100_000
"""The maximum number of words in a command. A longer command fails, because handling it would block the server."""
NOT_FOUND: Final = 127
"""The exit code with which shells report that a program does not exist. A failure with this exit code is not
attributed to the sandbox.
"""


_MISSING: Final = tuple(os_detail(OSError(number, os.strerror(number))) for number in (errno.ENOENT, errno.ENOTDIR))
"""Error messages that do not state whether the program or the working directory is missing."""
_TIMED_OUT: Final = "sandbox error: command timed out"


class AppliesPatches(Protocol):
    """Applies the patches in commands, and appends their events to the log."""

    async def apply(self, call_id: CallId, patch: str, *, workdir: str) -> str:
        """Apply a patch whose paths are relative to `workdir`, and return the output for the model."""
        ...


class Shell:
    """Runs commands. If a command passes a patch to `apply_patch`, the patch is applied instead."""

    names: tuple[str, ...] = ("shell", "container.exec", LOCAL_SHELL)

    def __init__(self, context: ToolContext, commands: CommandRunner, patches: AppliesPatches) -> None:
        self._context, self._commands, self._patches = context, commands, patches
        self._envs: dict[bool, Mapping[str, str]] = {}

    def spec(self) -> ToolSpec:
        settings = self._context.settings
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
            shell_call = _decoded_call(call)
        except BadArguments as error:
            return BAD_ARGUMENTS + error.detail
        settings = self._context.settings
        try:
            cwd, concealed = _directory(settings.cwd, shell_call.workdir, hidden=settings.withheld_paths)
        except OSError as error:
            return replace_surrogates(
                f"execution error: {shell_call.workdir} cannot be resolved: {os_detail(error)}"
            )
        if (patch := patch_in(shell_call.command)) is not None:
            return await self._patches.apply(call.call_id, patch, workdir=concealed or cwd)
        shell_call = shell_call._replace(concealed=concealed)
        env = self._env(network=True)
        action = RunCommand(
            call_id=call.call_id,
            argv=shell_call.command,
            cwd=cwd,
            search_path=env.get("PATH"),
            home=env.get("HOME"),
            escalated=shell_call.escalated,
            justification=shell_call.justification,
        )
        # an empty command needs no approval, and the error is reported when the command is started
        if not action.argv:
            return (await self._carry_out(action, shell_call, Granted())).output
        done = await self._decide_and_run(action, shell_call, self._context.authorize)
        if isinstance(done, _Outcome) and done.denied is not None and done.may_be_retried:
            ask = partial(ask_to_escalate, self._context, why=done.denied)
            done = await self._decide_and_run(replace(action, has_failed=True), shell_call, ask)
        return done.output if isinstance(done, _Outcome) else rejected("exec command", done)

    async def _decide_and_run(
        self, action: RunCommand, shell_call: _ShellCall, authorize: Authorize
    ) -> _Outcome | RejectedByPolicy | RejectedByUser:
        """Run the command if `authorize` allows it. Return the result of the command, or the rejection of the
        command.

        A command that the user approved runs only in the approved directory and with the approved program. If the
        directory or the program was replaced, the user is asked again, at most `MAX_APPROVALS` times in total.
        """
        if self._context.settings.approval_policy == "never":  # the user is never asked
            verdict = await authorize(action)
            return await self._carry_out(action, shell_call, verdict) if isinstance(verdict, Granted) else verdict
        for _ in range(MAX_APPROVALS):
            with CommandTarget(action.argv, action.cwd, action.search_path) as target:
                verdict = await authorize(replace(action, covers=target.covers))
                if not isinstance(verdict, Granted):
                    return verdict
                done = await self._run_approved(action, shell_call, verdict, target) if verdict.by_person else None
            if done is None:
                return await self._carry_out(action, shell_call, verdict)
            if isinstance(done, _Outcome):
                return done
            await report_changed(self._context, done)
            # The next approval request must show where the command would run now.
            action, authorize = replace(action, cwd=_real(action.cwd), changed=done), self._context.authorize
        return REPLACED_EACH_TIME

    async def _run_approved(
        self, action: RunCommand, shell_call: _ShellCall, verdict: Granted, target: CommandTarget
    ) -> _Outcome | Changed:
        """Run an approved command, and return its result. If its directory or program has been replaced since the
        approval, run nothing and return the replaced part instead. `target` is the approved directory and program.
        """
        if (changed := target.change()) is not None:
            return changed
        outcome = await self._carry_out(action, shell_call, verdict, target.approved)
        return outcome if outcome.changed is None else outcome.changed

    def _env(self, *, network: bool) -> Mapping[str, str]:
        """Return the environment of the turn's commands. `network` is True if the commands have network access."""
        if network not in self._envs:
            settings = self._context.settings
            self._envs[network] = command_environment(
                settings.environ, settings.shell_environment, network=network, keys=settings.key_variables
            )
        return self._envs[network]

    def _env_for(self, verdict: Granted) -> Mapping[str, str]:
        env = self._env(network=verdict.policy is None or verdict.policy.network)
        return with_restricted_git(env) if verdict.known_safe else env

    async def _carry_out(
        self, action: RunCommand, shell_call: _ShellCall, verdict: Granted, approved: Approved | None = None
    ) -> _Outcome:
        settings, transcript, call_id = self._context.settings, self._context.transcript, action.call_id
        is_confined = verdict.policy is not None
        command = Command(
            argv=action.argv,
            cwd=shell_call.concealed if is_confined and shell_call.concealed else action.cwd,
            env=self._env_for(verdict),
            timeout_seconds=shell_call.timeout_ms / 1000,
            policy=verdict.policy,
            approved=approved,
            accepted=verdict.accepted,
        )
        await transcript.append(
            ExecCommandBegin(
                call_id=call_id,
                command=action.argv,
                cwd=replace_surrogates(action.cwd),
                parsed_cmd=parsed_commands.parse(action.argv),
            )
        )
        ended: CommandResult | CommandNotStarted
        try:
            ended = await self._commands.run(command, output=partial(transcript.show_output, call_id))
        except CommandNotStarted as error:
            ended = _explained(error, command, settings)
        except Exception as bug:  # the begin event needs an end event in any case
            log.exception("a command failed")
            ended = CommandNotStarted(internal_error(bug))
        kept = transcript.output_so_far(call_id)
        outcome = _outcome(ended, kept, shell_call, settings, verdict)
        end = ExecCommandEnd(
            call_id=call_id,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            exit_code=outcome.exit_code,
            duration=as_duration(outcome.seconds),
        )
        await transcript.append(*([] if kept is None else [kept]), end)
        return outcome


def _explained(error: CommandNotStarted, command: Command, settings: Settings) -> CommandNotStarted:
    """If a command could not be started because its working directory is missing, return an error that names the
    directory. If the interpreter of its program is missing, return an error that names the program. Otherwise,
    return `error` unchanged. The text for a missing program is not changed, because the protocol defines it.
    """
    if type(error) is not CommandNotStarted or error.detail not in _MISSING:
        return error
    directory = os.path.realpath(command.cwd)
    if is_below_any(directory, settings.withheld_paths):
        return error
    if not os.path.isdir(directory):
        return CommandNotStarted(f"the working directory {quoted(command.cwd)} cannot be used: {error.detail}")
    if not _program_exists(command, directory, hidden=settings.withheld_paths):
        return error
    return CommandNotStarted(f"the interpreter of {quoted(command.argv[0])} cannot be run: {error.detail}")


def _program_exists(command: Command, directory: str, *, hidden: Sequence[str]) -> bool:
    """Return whether the program file of `command` exists. A relative path of the program is relative to
    `directory`. If the path leads through one of the `hidden` directories, return False.
    """
    import shutil  # imported here: few commands name a program that cannot be run

    name = command.argv[0]
    search_path = command.env.get("PATH", os.defpath)
    path = os.path.join(directory, name) if "/" in name else shutil.which(name, path=search_path)
    if path is None:
        return False
    try:
        with DirFds(hidden) as folders:
            real = folders.resolve(path)
    except OSError:
        return False
    return os.path.exists(real) and not is_below_any(real, map(os.path.realpath, hidden))


# --- arguments ---------------------------------------------------------------------------


Milliseconds = Annotated[float, Meta(ge=0)]


class _Arguments(Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    workdir: str | None = None
    timeout: Milliseconds | None = None
    with_escalated_permissions: bool | None = None
    justification: str | None = None


class _Action(Struct, frozen=True, kw_only=True):
    """The content of a `local_shell_call`. Its members `env` and `user` are ignored, because an approval request
    does not show them.
    """

    command: tuple[str, ...]
    working_directory: str | None = None
    timeout_ms: Milliseconds | None = None


class _ShellCall(NamedTuple):
    command: tuple[str, ...]
    workdir: str | None
    timeout_ms: float
    escalated: bool = False
    justification: str | None = None
    concealed: str | None = None
    """The absolute path of the working directory, with unresolved symbolic links, if the path leads through a
    hidden directory; otherwise None.

    A confined command is started with this path, because the sandbox gives the same error for every path through a
    hidden directory. The error for the resolved path would reveal the target of a hidden symbolic link.
    """


def _decoded_call(call: CallItem) -> _ShellCall:
    arguments = replace_surrogates(call.arguments).encode()
    if call.name == LOCAL_SHELL:
        action = decode_arguments(_Action, arguments)
        _refuse_too_large(action.command, action.working_directory, field="working_directory")
        return _ShellCall(action.command, action.working_directory, _milliseconds(action.timeout_ms))
    given = decode_arguments(_Arguments, arguments)
    _refuse_too_large(given.command, given.workdir, field="workdir")
    return _ShellCall(
        given.command,
        given.workdir,
        _milliseconds(given.timeout),
        escalated=bool(given.with_escalated_permissions),
        justification=given.justification,
    )


def _refuse_too_large(command: Sequence[str], workdir: str | None, *, field: str) -> None:
    """Check the number of words in a command, and the length of its working directory, which is the argument
    `field`. Resolving a very long path would block the server.
    """
    if len(command) > MAX_WORDS:
        raise BadArguments(f"more than {MAX_WORDS} words (command)", field="command")
    if workdir is not None and len(os.fsencode(workdir)) > MAX_PATH_BYTES:
        raise BadArguments(f"a path of more than {MAX_PATH_BYTES} bytes ({field})", field=field)


def _directory(cwd: str, workdir: str | None, *, hidden: Sequence[str]) -> tuple[str, str | None]:
    """Return two paths of a command's working directory. The directory is `workdir`, relative to `cwd`, or `cwd`
    itself if `workdir` is missing.

    In the first path, symbolic links are resolved, so that an approval request shows the real directory. The second
    path is absolute, with unresolved symbolic links, if it leads through one of the `hidden` directories; otherwise
    it is None. Hidden directories that contain `cwd` are not considered.

    Raises:
        OSError: another process replaced a directory in the path while the path was being resolved.
    """
    if not workdir:
        return cwd, None
    path = os.path.join(cwd, workdir)
    try:
        with DirFds(hidden, visible=cwd) as folders:
            return folders.resolve(path), None
    except HiddenPath:
        return os.path.realpath(path), path
    except OSError:
        pass  # the directory does not exist, or cannot be opened
    try:
        return os.path.realpath(path), None
    except ValueError:
        return path, None  # the path contains a NUL; the error is reported when the command is started


def _real(cwd: str) -> str:
    try:
        return os.path.realpath(cwd)
    except (OSError, ValueError):
        return cwd  # the error is reported when the command is started


def _milliseconds(given: float | None) -> float:
    return DEFAULT_TIMEOUT_MS if given is None else given


# --- results -----------------------------------------------------------------------------


class _Outcome(NamedTuple):
    """The result of a command. The default values are for a command that did not run to its end."""

    output: str
    stderr: str
    stdout: str = ""
    exit_code: int = -1
    seconds: float = 0.0
    denied: str | None = None
    """The reason for a failure that the sandbox may have caused; None if there was no such failure."""
    may_be_retried: bool = False
    """True if the tool may ask for an approval to run the command again without the sandbox."""
    changed: Changed | None = None
    """The part of the command that was replaced after the approval; None if nothing was replaced. If a part was
    replaced, the command was not started.
    """


def _outcome(
    ended: CommandResult | CommandNotStarted,
    kept: CommandOutput | None,
    shell_call: _ShellCall,
    settings: Settings,
    verdict: Granted,
) -> _Outcome:
    policy = verdict.policy
    if isinstance(ended, CommandNotStarted):
        detail = replace_surrogates(ended.detail)
        changed = ended.changed if isinstance(ended, CommandReplaced) else None
        return _Outcome(output=f"execution error: {detail}", stderr=detail, changed=changed)
    if ended.timed_out:
        output = f"command timed out after {int(shell_call.timeout_ms)} milliseconds"
        if settings.approval_policy in ("never", "on-request"):
            output = failed_in_sandbox("command timed out", policy)
        return _Outcome(
            output=_with_remarks(ended.remarks, output), stderr=_with_remarks(ended.remarks, _TIMED_OUT)
        )
    if ended.exit_code is None:
        why = "command was killed by a signal"
        output = failed_in_sandbox(why, policy)
        return _Outcome(
            output=_with_remarks(ended.remarks, output),
            stderr=_with_remarks(ended.remarks, f"sandbox error: {why}"),
        )
    streams = {one.stream: one for one in kept.streams} if kept else {}
    stdout, stderr = streams.get("stdout"), streams.get("stderr")
    shown_stderr = for_end_event(stderr) if stderr else ""
    if policy is not None and not verdict.known_safe and ended.exit_code not in (0, NOT_FOUND):
        denied = denied_by_sandbox(ended.exit_code, stdout=stdout, stderr=stderr)
        output, may_be_retried = failed_in_sandbox(denied, policy), verdict.ask_again
        return _Outcome(output=output, stderr=shown_stderr, denied=denied, may_be_retried=may_be_retried)
    output = _output_for_model(stdout, stderr if ended.exit_code else None)
    return _Outcome(
        output=ran(output, exit_code=ended.exit_code, seconds=ended.seconds),
        stdout=for_end_event(stdout) if stdout else "",
        stderr=shown_stderr,
        exit_code=ended.exit_code,
        seconds=ended.seconds,
    )


def _with_remarks(remarks: Sequence[str], output: str) -> str:
    """Return the text `output`, followed by each of the `remarks` on a new line. `output` is the text that replaces
    the output of a command that timed out or was killed by a signal.
    """
    return "\n".join((output, *remarks))


def _output_for_model(stdout: StreamOutput | None, stderr: StreamOutput | None) -> str:
    """Return stdout followed by stderr, truncated to the limits for the model."""
    if stdout is None or stderr is None:
        return "".join(for_model(output) for output in (stdout, stderr) if output is not None)
    first, second = both_for_model(stdout, stderr)
    return first + ("" if first.endswith("\n") else "\n") + second


# --- description for the model -----------------------------------------------------------

_DESCRIPTION: Final = (
    "Run a program and return its output. The command is not interpreted by a shell: "
    'for pipes, wildcards or several commands, run ["bash", "-lc", "..."].'
)

_PROPERTIES: Final[dict[str, Any]] = {
    "command": {
        "type": "array",
        "items": {"type": "string"},
        "description": "The program and its arguments, as separate strings",
    },
    "workdir": {
        "type": "string",
        "description": "The directory in which the program runs, absolute or relative to the working directory",
    },
    "timeout": {
        "type": "number",
        "description": f"The time limit in milliseconds; the default is {DEFAULT_TIMEOUT_MS}",
    },
}

_ASKING_PROPERTIES: Final[dict[str, Any]] = {
    "with_escalated_permissions": {
        "type": "boolean",
        "description": "True to ask for permission to run this command outside the sandbox",
    },
    "justification": {
        "type": "string",
        "description": "One sentence for the user: why the command must run outside the sandbox",
    },
}


def _description_with_sandbox(settings: Settings) -> str:
    return replace_surrogates(
        f"{_DESCRIPTION}\n\n"
        "Commands run in a sandbox. They can read all files except those that the user has hidden. "
        f"{_what_it_forbids(settings)}\n\n"
        "If a command needs more permissions, or failed because of the sandbox, call this tool again with "
        "with_escalated_permissions set to true and a justification. The user is then asked, and the command runs "
        "outside the sandbox if the user approves. Do not ask for commands that work in the sandbox."
    )


def _what_it_forbids(settings: Settings) -> str:
    network = "They can use the network." if settings.network_access else "They cannot use the network."
    if settings.sandbox_mode == "read-only":
        return f"They cannot write files. {network}"
    chosen = settings.workspace_write
    places = [settings.cwd, *chosen.writable_roots]
    if not chosen.exclude_slash_tmp:
        places.append("/tmp")
    if not chosen.exclude_tmpdir_env_var and settings.environ.get("TMPDIR", "").startswith("/"):
        places.append("$TMPDIR")
    return (
        f"They can write files only below these directories: {', '.join(places)}. "
        f"There they cannot change .git or the settings of coding agents. {network}"
    )

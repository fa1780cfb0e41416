"""One command of the model: its arguments, its events, and the output for the model."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from kit.builders.records import call
from kit.builders.transcript import Appended, OutputShown, RecordingTranscript
from kit.builders.trees import not_a_link
from kit.models.raw_provider import settings
from parley.config.types import Environment, Settings, WorkspaceWrite
from parley.conversation.records import CallItem, CommandOutput, StreamOutput
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.ports.commands import Approved, Command, CommandResult, Output, SandboxPolicy
from parley.ports.tools import Action, Granted, RejectedByPolicy, RejectedByUser, RunCommand, ToolContext, Verdict
from parley.tools.commands.environment import with_restricted_git
from parley.tools.errors import CommandReplaced
from parley.tools.shell import Shell
from parley.wire.events import (
    BackgroundEvent,
    Duration,
    ExecCommandBegin,
    ExecCommandEnd,
    OutputStream,
    ParsedCommand,
    ParsedPlain,
)
from parley.wire.ids import CallId, ItemId

KEPT = 64 * 1024
CALL = CallId("c1")
ZERO = Duration(secs=0, nanos=0)
OK = CommandResult(exit_code=0, seconds=0.0)
GRANTED = Granted()
POLICY = SandboxPolicy(hidden=("/home/me/.ssh",))
CONFINED = Granted(policy=POLICY)
SANDBOX = "MacosSeatbelt" if sys.platform == "darwin" else "LinuxSeccomp"


class Patch(NamedTuple):
    call_id: CallId
    patch: str
    workdir: str


NOTHING_APPROVED: Final = Approved(directory=(0, 0), program=(0, 0))
"""The identities for `/project`, which does not exist."""


class Bench:
    """The fakes around the tool, with one list of all calls in order."""

    def __init__(
        self,
        *,
        says: Sequence[tuple[OutputStream, bytes]] = (),
        ends: CommandResult | CommandNotStarted = OK,
        then_ends: CommandResult | CommandNotStarted = OK,
        verdict: Verdict = GRANTED,
        then: Verdict = GRANTED,
        **changes: Any,
    ) -> None:
        """Set the results of the first command and the first approval, and of later ones."""
        environ = Environment(PATH="/bin", MY_API_KEY="secret")
        base: dict[str, Any] = {"cwd": "/project", "sandbox_mode": "danger-full-access", "environ": environ}
        self.settings: Settings = settings(**{**base, **changes})
        self.transcript = RecordingTranscript()
        self.did = self.transcript.did
        self.running = asyncio.Event()
        self.never = asyncio.Event()
        self.hangs = False
        self._says, self._ends, self._then_ends = says, ends, then_ends
        self._verdict, self._then = verdict, then
        context = ToolContext(settings=self.settings, transcript=self.transcript, authorize=self._authorize)
        self.shell = Shell(context, self, self)

    async def call(self, name: str = "shell", /, **arguments: Any) -> str:
        return await self.run_call(call(CALL, msgspec.json.encode(arguments).decode(), name=name))

    async def run_call(self, item: CallItem) -> str:
        async with asyncio.timeout(90):
            return await self.shell.run(item)

    @property
    def command(self) -> Command:
        (command,) = [entry for entry in self.did if isinstance(entry, Command)]
        return command

    @property
    def end(self) -> ExecCommandEnd:
        event = self.transcript.payloads[-1]
        assert isinstance(event, ExecCommandEnd)
        return event

    async def _authorize(self, action: Action) -> Verdict:
        verdict = self._then if any(isinstance(entry, RunCommand) for entry in self.did) else self._verdict
        assert isinstance(action, RunCommand)
        self.did.append(msgspec.structs.replace(action, covers=""))
        return verdict

    # --- the command runner and the patch tool ---

    async def why_unconfined(self, policy: SandboxPolicy) -> str | None:
        raise AssertionError("others ask that")

    async def unrestored(self, policy: SandboxPolicy) -> tuple[str, ...]:
        return ()

    def confine_thread(self, policy: SandboxPolicy) -> bool:
        raise AssertionError("others ask for that")

    async def run(self, command: Command, *, output: Output) -> CommandResult:
        if any(isinstance(entry, Command) for entry in self.did):
            self.did.append(command)
            if isinstance(self._then_ends, CommandNotStarted):
                raise self._then_ends
            return self._then_ends
        self.did.append(command)
        for stream, data in self._says:
            output(stream, data)
        self.running.set()
        if self.hangs:
            await self.never.wait()
        if isinstance(self._ends, CommandNotStarted):
            raise self._ends
        return self._ends

    async def apply(self, call_id: CallId, patch: str, *, workdir: str) -> str:
        self.did.append(Patch(call_id, patch, workdir))
        return "patched"


def stored_stream(stream: OutputStream, data: bytes, *, item: str = "i1") -> StreamOutput:
    return StreamOutput(
        item=ItemId(item),
        stream=stream,
        head=data[:KEPT],
        tail=data[KEPT:][-KEPT:],
        size=len(data),
        lines=data.count(b"\n"),
    )


def unknown(*words: str) -> ParsedCommand:
    return ParsedCommand(unknown=ParsedPlain(cmd=words))


# --- events --------------------------------------------------------------------------------


async def test_a_command_begins_says_what_it_says_and_ends() -> None:
    bench = Bench(
        says=[("stdout", b"out\n"), ("stderr", b"warning\n"), ("stdout", b"more\n")],
        ends=CommandResult(exit_code=0, seconds=1.26),
    )

    output = await bench.call(command=["echo", "hi"])

    assert output == '{"output":"out\\nmore\\n","metadata":{"exit_code":0,"duration_seconds":1.3}}'
    assert bench.did == [
        RunCommand(call_id=CALL, argv=("echo", "hi"), cwd="/project", search_path="/bin"),
        Appended(
            (
                ExecCommandBegin(
                    call_id=CALL, command=("echo", "hi"), cwd="/project", parsed_cmd=(unknown("echo", "hi"),)
                ),
            )
        ),
        Command(argv=("echo", "hi"), cwd="/project", env={"PATH": "/bin"}, timeout_seconds=10.0),
        OutputShown(CALL, "stdout", b"out\n"),
        OutputShown(CALL, "stderr", b"warning\n"),
        OutputShown(CALL, "stdout", b"more\n"),
        Appended(
            (
                CommandOutput(
                    call_id=CALL,
                    streams=(
                        stored_stream("stdout", b"out\nmore\n"),
                        stored_stream("stderr", b"warning\n", item="i2"),
                    ),
                ),
                ExecCommandEnd(
                    call_id=CALL,
                    stdout="out\nmore\n",
                    stderr="warning\n",
                    exit_code=0,
                    duration=Duration(secs=1, nanos=260_000_000),
                ),
            )
        ),
    ]


async def test_a_silent_command_leaves_its_two_events_alone() -> None:
    bench = Bench()

    output = await bench.call(command=["true"])

    assert output == '{"output":"","metadata":{"exit_code":0,"duration_seconds":0.0}}'
    assert [entry for entry in bench.did if isinstance(entry, Appended)] == [
        Appended((ExecCommandBegin(call_id=CALL, command=("true",), cwd="/project", parsed_cmd=()),)),
        Appended((ExecCommandEnd(call_id=CALL, stdout="", stderr="", exit_code=0, duration=ZERO),)),
    ]


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ([("stdout", b"out\n"), ("stderr", b"err\n")], "out\\nerr\\n"),
        ([("stderr", b"err\n")], "err\\n"),
        ([("stdout", b"out\n")], "out\\n"),
        ([("stdout", b"out"), ("stderr", b"err")], "out\\nerr"),
        ([], ""),
    ],
)
async def test_of_a_command_that_failed_the_model_reads_stdout_and_then_stderr(
    says: list[tuple[OutputStream, bytes]], expected: str
) -> None:
    bench = Bench(says=says, ends=CommandResult(exit_code=3, seconds=0.04))

    assert await bench.call(command=["make"]) == (
        f'{{"output":"{expected}","metadata":{{"exit_code":3,"duration_seconds":0.0}}}}'
    )
    assert (bench.end.exit_code, bench.end.duration) == (3, Duration(secs=0, nanos=40_000_000))


async def test_a_program_that_cannot_be_started_has_a_beginning_and_an_end() -> None:
    detail = "Permission denied (os error 13)"
    bench = Bench(ends=CommandNotStarted(detail))

    output = await bench.call(command=["no-such-program"])

    assert output == f"execution error: {detail}"
    assert [entry for entry in bench.did if isinstance(entry, Appended)] == [
        Appended(
            (
                ExecCommandBegin(
                    call_id=CALL,
                    command=("no-such-program",),
                    cwd="/project",
                    parsed_cmd=(unknown("no-such-program"),),
                ),
            )
        ),
        Appended((ExecCommandEnd(call_id=CALL, stdout="", stderr=detail, exit_code=-1, duration=ZERO),)),
    ]


async def test_an_empty_command_cannot_be_started_and_needs_no_approval() -> None:
    bench = Bench(ends=CommandNotStarted("command args are empty"), approval_policy="untrusted")

    output = await bench.call(command=[])

    assert output == "execution error: command args are empty"
    assert bench.did[0] == Appended(
        (ExecCommandBegin(call_id=CALL, command=(), cwd="/project", parsed_cmd=(unknown(),)),)
    )
    assert bench.end == ExecCommandEnd(
        call_id=CALL, stdout="", stderr="command args are empty", exit_code=-1, duration=ZERO
    )


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("never", "failed in sandbox None with execution error: command timed out"),
        ("on-request", "failed in sandbox None with execution error: command timed out"),
        ("on-failure", "command timed out after 300 milliseconds"),
        ("untrusted", "command timed out after 300 milliseconds"),
    ],
)
async def test_a_command_that_took_too_long_keeps_what_it_said(policy: str, expected: str) -> None:
    bench = Bench(
        says=[("stdout", b"begun\n")], ends=CommandResult(timed_out=True, seconds=0.3), approval_policy=policy
    )

    assert await bench.call(command=["sleep", "20"], timeout=300) == expected
    assert bench.did[-1] == Appended(
        (
            CommandOutput(call_id=CALL, streams=(stored_stream("stdout", b"begun\n"),)),
            ExecCommandEnd(
                call_id=CALL,
                stdout="",
                stderr="sandbox error: command timed out",
                exit_code=-1,
                duration=ZERO,
            ),
        )
    )


@pytest.mark.parametrize("policy", ["never", "on-request", "on-failure", "untrusted"])
async def test_a_command_killed_by_a_signal_did_not_run_to_its_end(policy: str) -> None:
    bench = Bench(ends=CommandResult(signal=9, seconds=0.5), approval_policy=policy)

    output = await bench.call(command=["kill", "-9", "0"])

    assert output == "failed in sandbox None with execution error: command was killed by a signal"
    assert bench.end == ExecCommandEnd(
        call_id=CALL,
        stdout="",
        stderr="sandbox error: command was killed by a signal",
        exit_code=-1,
        duration=ZERO,
    )


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (
            CommandResult(timed_out=True, seconds=0.3, remarks=("one", "two")),
            "command timed out after 300 milliseconds",
        ),
        (
            CommandResult(signal=9, seconds=0.3, remarks=("one", "two")),
            "failed in sandbox None with execution error: command was killed by a signal",
        ),
    ],
)
async def test_restored_files_are_reported_also_if_the_output_is_withheld(
    ends: CommandResult, expected: str
) -> None:
    bench = Bench(ends=ends, approval_policy="untrusted")

    assert await bench.call(command=["sleep", "20"], timeout=300) == f"{expected}\none\ntwo"
    assert bench.end.stderr.splitlines()[1:] == ["one", "two"]


async def test_a_working_directory_that_cannot_be_resolved_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    bench = Bench(cwd=str(tmp_path))
    monkeypatch.setattr(os, "readlink", not_a_link)

    output = await bench.call(command=["true"], workdir="link/sub")
    assert output == "execution error: link/sub cannot be resolved: Invalid argument (os error 22)"
    assert bench.did == []


async def test_long_output_is_cut_for_the_model_and_shorter_still_in_the_end_event() -> None:
    bench = Bench(
        says=[("stdout", b"x" * 60_000), ("stderr", b"e\n" * 300)], ends=CommandResult(exit_code=1, seconds=0)
    )

    output = msgspec.json.decode(await bench.call(command=["noisy"]))

    stdout = "x" * 4820 + "\n[... 0 lines, 50360 bytes truncated ...]\n" + "x" * 4820
    stderr = "e\n" * 127 + "[... 46 lines, 92 bytes truncated ...]\n" + "e\n" * 127
    assert output["output"] == f"{stdout}\n{stderr}"
    assert (bench.end.stdout, bench.end.stderr) == ("x" * 5120, "e\n" * 256)


async def test_output_that_is_not_utf_8_has_replacement_characters() -> None:
    bench = Bench(says=[("stdout", b"a\xff\xfeb\x00c\xc3")])

    output = msgspec.json.decode(await bench.call(command=["printf"]))

    assert output["output"] == bench.end.stdout == "a��b\x00c�"


async def test_a_command_that_is_cancelled_is_left_for_the_caller_to_end() -> None:
    bench = Bench(says=[("stdout", b"begun\n")])
    bench.hangs = True
    running = asyncio.create_task(bench.call(command=["sleep", "20"]))
    async with asyncio.timeout(90):
        await bench.running.wait()

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert bench.did[-1] == OutputShown(CALL, "stdout", b"begun\n")


# --- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shell", "container.exec"])
async def test_both_names_of_the_function_take_the_same_arguments(name: str) -> None:
    bench = Bench()

    await bench.call(
        name,
        command=["ls"],
        workdir="sub",
        timeout=1500,
        with_escalated_permissions=True,
        justification="needs to write",
        unknown=1,
    )

    assert bench.did[0] == RunCommand(
        call_id=CALL,
        argv=("ls",),
        cwd="/project/sub",
        search_path="/bin",
        escalated=True,
        justification="needs to write",
    )
    assert bench.command == Command(argv=("ls",), cwd="/project/sub", env={"PATH": "/bin"}, timeout_seconds=1.5)


async def test_a_local_shell_call_is_run_without_the_variables_and_the_user_that_it_names() -> None:
    bench = Bench()

    output = await bench.call(
        "local_shell",
        type="exec",
        command=["ls"],
        timeout_ms=5000,
        working_directory="/",
        env={"LD_PRELOAD": "/tmp/x.so"},
        user="root",
    )

    assert output == '{"output":"","metadata":{"exit_code":0,"duration_seconds":0.0}}'
    assert bench.command == Command(argv=("ls",), cwd="/", env={"PATH": "/bin"}, timeout_seconds=5.0)


@pytest.mark.parametrize("name", ["shell", "local_shell"])
async def test_null_means_the_same_as_a_missing_argument(name: str) -> None:
    bench = Bench()

    await bench.call(
        name,
        command=["ls"],
        workdir=None,
        working_directory=None,
        timeout=None,
        timeout_ms=None,
        with_escalated_permissions=None,
        justification=None,
    )

    assert bench.did[0] == RunCommand(call_id=CALL, argv=("ls",), cwd="/project", search_path="/bin")
    assert bench.command.timeout_seconds == 10.0


@pytest.mark.parametrize(
    ("workdir", "cwd"), [("sub", "/project/sub"), ("/", "/"), ("", "/project"), ("../x", "/x")]
)
async def test_a_working_directory_is_taken_from_that_of_the_conversation(workdir: str, cwd: str) -> None:
    bench = Bench()

    await bench.call(command=["pwd"], workdir=workdir)

    assert bench.command.cwd == cwd


async def test_an_approval_request_shows_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "build").symlink_to("elsewhere")
    bench = Bench()

    await bench.call(command=["pwd"], workdir=str(tmp_path / "build"))

    asked = bench.did[0]
    assert isinstance(asked, RunCommand)
    assert (asked.cwd, bench.command.cwd) == (str(tmp_path / "elsewhere"), str(tmp_path / "elsewhere"))


MANY_WORDS: Final = json.dumps({"command": ["ls"] + ["-l"] * 100_000})
"""The arguments of a hostile model.

A check of a million words would take a second, during which all clients would wait.
"""


@pytest.mark.parametrize(
    ("name", "arguments", "detail"),
    [
        ("shell", "{not json", "arguments cannot be read: JSON is malformed: object keys must be strings (byte 1)"),
        ("shell", "", "arguments cannot be read: Input data was truncated"),
        ("shell", "[]", "invalid type: sequence, expected a map (arguments)"),
        ("shell", "[" * 100_000, "arguments cannot be read: nested too deeply"),
        ("shell", '{"command": "echo hi"}', 'invalid type: string "echo hi", expected a sequence (command)'),
        ("shell", '{"command": ["a", 1]}', "invalid type: integer `1`, expected a string (command[1])"),
        ("shell", "{}", "missing field `command`"),
        (
            "shell",
            '{"command": ["a"], "timeout": -1}',
            "invalid value: integer `-1`, expected a number, at least 0 (timeout)",
        ),
        ("shell", '{"command": ["a"], "workdir": 1}', "invalid type: integer `1`, expected a string (workdir)"),
        (
            "shell",
            '{"command": ["a"], "with_escalated_permissions": "yes"}',
            'invalid type: string "yes", expected a boolean (with_escalated_permissions)',
        ),
        ("local_shell", '{"type": "exec"}', "missing field `command`"),
        (
            "local_shell",
            '{"command": ["a"], "timeout_ms": "soon"}',
            'invalid type: string "soon", expected a number (timeout_ms)',
        ),
        pytest.param("shell", MANY_WORDS, "more than 100000 words (command)", id="shell-many-words"),
        pytest.param(
            "local_shell",
            '{"command": ["true"], "working_directory": "' + "x" * 4097 + '"}',
            "a path of more than 4096 bytes (working_directory)",
            id="local_shell-long-path",
        ),
        pytest.param("local_shell", MANY_WORDS, "more than 100000 words (command)", id="local_shell-many-words"),
    ],
)
async def test_arguments_that_do_not_fit_are_explained_and_nothing_happens(
    name: str, arguments: str, detail: str
) -> None:
    bench = Bench()

    output = await bench.run_call(call(CALL, arguments, name=name))

    assert output == f"failed to parse function arguments: {detail}"
    assert bench.did == []


async def test_half_a_surrogate_pair_in_the_arguments_is_read_as_a_replacement_character() -> None:
    bench = Bench()

    await bench.run_call(call(CALL, '{"command": ["echo", "\\ud800"]}'))

    assert bench.command.argv == ("echo", "�")


async def test_a_working_directory_that_is_no_text_is_shown_as_far_as_it_can_be() -> None:
    bench = Bench(ends=CommandNotStarted("/caf\udce9 is gone"), cwd="/caf\udce9")

    output = await bench.call(command=["pwd"])

    assert output == "execution error: /caf? is gone"
    assert bench.command.cwd == "/caf\udce9"
    assert bench.did[1] == Appended(
        (ExecCommandBegin(call_id=CALL, command=("pwd",), cwd="/caf?", parsed_cmd=(unknown("pwd"),)),)
    )


# --- approvals, patches, environment ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (
            RejectedByPolicy(why="no sandbox is available: none"),
            "exec command rejected: no sandbox is available: none",
        ),
        (RejectedByUser(), "exec command rejected by user"),
        (RejectedByUser(reason="not \ud800today"), "exec command rejected by user: not ?today"),
    ],
)
async def test_the_model_reads_why_a_command_must_not_run_and_there_are_no_events(
    verdict: Verdict, expected: str
) -> None:
    bench = Bench(verdict=verdict)

    assert await bench.call(command=["ls"]) == expected
    assert bench.did == [RunCommand(call_id=CALL, argv=("ls",), cwd="/project", search_path="/bin")]


@pytest.mark.parametrize("policy", [None, POLICY, SandboxPolicy(network=True)])
async def test_a_command_is_run_under_the_policy_that_was_granted(policy: SandboxPolicy | None) -> None:
    bench = Bench(verdict=Granted(policy=policy), sandbox_mode="read-only")

    await bench.call(command=["ls"])

    assert bench.command.policy == policy


async def test_a_patch_is_applied_and_not_run() -> None:
    patch = "*** Begin Patch\n*** Delete File: a\n*** End Patch\n"
    bench = Bench()

    output = await bench.call(command=["apply_patch", patch], workdir="sub")

    assert output == "patched"
    assert bench.did == [Patch(CALL, patch, "/project/sub")]


@pytest.mark.parametrize(
    ("verdict", "mark"),
    [
        (Granted(policy=SandboxPolicy()), {"CODEX_SANDBOX_NETWORK_DISABLED": "1"}),
        (Granted(policy=SandboxPolicy(network=True)), {}),
        (Granted(by_person=True), {}),
    ],
)
async def test_a_variable_of_a_command_without_network_says_so(verdict: Granted, mark: dict[str, str]) -> None:
    bench = Bench(verdict=verdict, sandbox_mode="read-only")

    await bench.call(command=["env"])

    assert bench.command.env == {"PATH": "/bin", **mark}


async def test_git_in_a_command_without_approval_runs_nothing_of_the_repository() -> None:
    bench = Bench(verdict=Granted(policy=POLICY, known_safe=True))

    await bench.call(command=["git", "status"])

    assert bench.command.env == with_restricted_git({"PATH": "/bin", "CODEX_SANDBOX_NETWORK_DISABLED": "1"})


# --- in the sandbox ---------------------------------------------------------------------------------

SAYS: list[tuple[OutputStream, bytes]] = [("stdout", b"out\n"), ("stderr", b"a: Permission denied\n")]
DENIED = "sandbox denied exec error, exit code: 1, stdout: out\n, stderr: a: Permission denied\n"
BEGIN = ExecCommandBegin(call_id=CALL, command=("make",), cwd="/project", parsed_cmd=(unknown("make"),))
DENIED_END = ExecCommandEnd(call_id=CALL, stdout="", stderr="a: Permission denied\n", exit_code=-1, duration=ZERO)


@pytest.mark.parametrize("policy", ["never", "on-request"])
async def test_a_command_that_fails_in_the_sandbox_was_denied_by_the_sandbox(policy: str) -> None:
    bench = Bench(says=SAYS, ends=CommandResult(exit_code=1, seconds=2.0), verdict=CONFINED, approval_policy=policy)

    output = await bench.call(command=["make"])

    assert output == f"failed in sandbox {SANDBOX} with execution error: {DENIED}"
    assert bench.transcript.payloads[-1] == DENIED_END
    assert bench.transcript.payloads[-2] == CommandOutput(
        call_id=CALL,
        streams=(stored_stream("stdout", b"out\n"), stored_stream("stderr", b"a: Permission denied\n", item="i2")),
    )


@pytest.mark.parametrize(
    ("verdict", "exit_code"),
    [
        (CONFINED, 127),
        (CONFINED, 0),
        (Granted(policy=POLICY, known_safe=True), 1),
        (Granted(policy=POLICY, ask_again=True), 127),
        (Granted(by_person=True), 1),
    ],
)
async def test_the_sandbox_is_not_blamed_for_what_happens_without_it_too(verdict: Granted, exit_code: int) -> None:
    bench = Bench(
        says=[("stdout", b"out\n")], ends=CommandResult(exit_code=exit_code, seconds=2.0), verdict=verdict
    )

    output = await bench.call(command=["make"])

    assert output == f'{{"output":"out\\n","metadata":{{"exit_code":{exit_code},"duration_seconds":2.0}}}}'
    assert (bench.end.exit_code, bench.end.stdout, bench.end.duration.secs) == (exit_code, "out\n", 2)


async def test_the_text_of_a_denied_command_is_truncated_like_output() -> None:
    bench = Bench(says=[("stderr", b"x" * 60_000)], ends=CommandResult(exit_code=9, seconds=0), verdict=CONFINED)

    output = await bench.call(command=["noisy"])

    half = "x" * 5120
    stderr = f"{half}\n[... 0 lines, 49760 bytes truncated ...]\n{half}"
    assert output == (
        f"failed in sandbox {SANDBOX} with execution error: "
        f"sandbox denied exec error, exit code: 9, stdout: , stderr: {stderr}"
    )
    assert bench.end.stderr == half


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (CommandResult(timed_out=True, seconds=0.3), "command timed out after 300 milliseconds"),
        (
            CommandResult(signal=9, seconds=0.3),
            f"failed in sandbox {SANDBOX} with execution error: command was killed by a signal",
        ),
        (SandboxUnavailable("/project is not what it was"), "execution error: /project is not what it was"),
    ],
)
async def test_a_command_that_did_not_run_to_its_end_is_not_run_again(
    ends: CommandResult | CommandNotStarted, expected: str
) -> None:
    bench = Bench(ends=ends, verdict=Granted(policy=POLICY, ask_again=True), approval_policy="on-failure")

    assert await bench.call(command=["make"], timeout=300) == expected
    assert [type(entry) for entry in bench.did] == [RunCommand, Appended, Command, Appended]
    assert bench.command.policy == POLICY


async def test_a_command_that_times_out_in_the_sandbox_names_the_sandbox() -> None:
    bench = Bench(ends=CommandResult(timed_out=True, seconds=0.3), verdict=CONFINED, approval_policy="never")

    assert await bench.call(command=["make"]) == (
        f"failed in sandbox {SANDBOX} with execution error: command timed out"
    )


def failing(then: Verdict, *, then_ends: CommandResult = OK) -> Bench:
    return Bench(
        says=SAYS,
        ends=CommandResult(exit_code=1, seconds=2.0),
        verdict=Granted(policy=POLICY, ask_again=True),
        then=then,
        then_ends=then_ends,
        approval_policy="on-failure",
        sandbox_mode="read-only",
    )


ACTION = RunCommand(call_id=CALL, argv=("make",), cwd="/project", search_path="/bin")
FAILED = [
    ACTION,
    Appended((BEGIN,)),
    Command(
        argv=("make",),
        cwd="/project",
        env={"PATH": "/bin", "CODEX_SANDBOX_NETWORK_DISABLED": "1"},
        timeout_seconds=10.0,
        policy=POLICY,
    ),
    *(OutputShown(CALL, stream, data) for stream, data in SAYS),
    Appended(
        (
            CommandOutput(
                call_id=CALL,
                streams=(
                    stored_stream("stdout", b"out\n"),
                    stored_stream("stderr", b"a: Permission denied\n", item="i2"),
                ),
            ),
            DENIED_END,
        )
    ),
    Appended((BackgroundEvent(message=f"Execution failed: {DENIED}"),)),
    msgspec.structs.replace(ACTION, has_failed=True),
]


@pytest.mark.parametrize("exit_code", [0, 1])
async def test_a_command_that_fails_in_the_sandbox_runs_again_without_it_when_that_is_allowed(
    exit_code: int,
) -> None:
    bench = failing(Granted(by_person=True), then_ends=CommandResult(exit_code=exit_code, seconds=1.0))

    output = await bench.call(command=["make"])

    assert output == f'{{"output":"","metadata":{{"exit_code":{exit_code},"duration_seconds":1.0}}}}'
    assert bench.did == [
        *FAILED,
        Appended((BackgroundEvent(message="retrying command without sandbox"),)),
        Appended((BEGIN,)),
        Command(
            argv=("make",), cwd="/project", env={"PATH": "/bin"}, timeout_seconds=10.0, approved=NOTHING_APPROVED
        ),
        Appended(
            (
                ExecCommandEnd(
                    call_id=CALL, stdout="", stderr="", exit_code=exit_code, duration=Duration(secs=1, nanos=0)
                ),
            )
        ),
    ]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (RejectedByUser(), "exec command rejected by user"),
        (RejectedByUser(reason="no"), "exec command rejected by user: no"),
        (RejectedByPolicy(why="no client is connected"), "exec command rejected: no client is connected"),
    ],
)
async def test_a_command_that_fails_in_the_sandbox_does_not_run_again_when_that_is_denied(
    verdict: Verdict, expected: str
) -> None:
    bench = failing(verdict)

    assert await bench.call(command=["make"]) == expected
    assert bench.did == FAILED


# --- the tool specification ----------------------------------------------------------------------


def types_of(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: schema["type"] for name, schema in parameters["properties"].items()}


@pytest.mark.parametrize(
    ("policy", "mode"),
    [("never", "read-only"), ("untrusted", "workspace-write"), ("on-request", "danger-full-access")],
)
def test_the_shell_is_offered_with_three_arguments(policy: str, mode: str) -> None:
    spec = Bench(approval_policy=policy, sandbox_mode=mode).shell.spec()

    assert spec.name == "shell"
    assert types_of(spec.parameters) == {"command": "array", "workdir": "string", "timeout": "number"}
    assert spec.parameters["properties"]["command"]["items"] == {"type": "string"}
    assert (spec.parameters["required"], spec.parameters["additionalProperties"]) == (["command"], False)
    assert "sandbox" not in spec.description


@pytest.mark.parametrize("mode", ["read-only", "workspace-write"])
def test_on_request_with_a_sandbox_the_model_is_offered_to_ask(mode: str) -> None:
    spec = Bench(approval_policy="on-request", sandbox_mode=mode).shell.spec()

    assert types_of(spec.parameters) == {
        "command": "array",
        "workdir": "string",
        "timeout": "number",
        "with_escalated_permissions": "boolean",
        "justification": "string",
    }
    assert (spec.parameters["required"], spec.parameters["additionalProperties"]) == (["command"], False)
    assert "with_escalated_permissions" in spec.description


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"sandbox_mode": "read-only"},
            "They can read all files except those that the user has hidden. They cannot write files. They cannot "
            "use the network.",
        ),
        (
            {"sandbox_mode": "workspace-write", "environ": {"TMPDIR": "/elsewhere"}},
            "They can read all files except those that the user has hidden. They can write files only below these "
            "directories: /project, /tmp, $TMPDIR. There they cannot change .git or the settings of coding agents. "
            "They cannot use the network.",
        ),
        (
            {"sandbox_mode": "workspace-write", "environ": {}},
            "They can write files only below these directories: /project, /tmp. There",
        ),
        (
            {
                "sandbox_mode": "workspace-write",
                "workspace_write": WorkspaceWrite(
                    writable_roots=("/data",),
                    network_access=True,
                    exclude_slash_tmp=True,
                    exclude_tmpdir_env_var=True,
                ),
            },
            "They can write files only below these directories: /project, /data. There they cannot change .git or "
            "the settings of coding agents. They can use the network.",
        ),
    ],
)
def test_the_offer_says_what_the_sandbox_forbids(changes: dict[str, Any], sentence: str) -> None:
    spec = Bench(approval_policy="on-request", **changes).shell.spec()

    assert sentence in spec.description


def test_the_offer_can_be_sent_whatever_the_working_directory_is_called() -> None:
    spec = Bench(approval_policy="on-request", sandbox_mode="workspace-write", cwd="/caf\udce9").shell.spec()

    assert "/caf?" in msgspec.json.encode(spec).decode()


# --- replaced after the approval -------------------------------------------------------------


async def test_a_command_whose_directory_is_replaced_while_it_starts_needs_another_approval(tmp_path: Path) -> None:
    yes = Granted(by_person=True)
    bench = Bench(
        ends=CommandReplaced("directory"), verdict=yes, then=yes, cwd=str(tmp_path), approval_policy="untrusted"
    )

    output = await bench.call(command=["make"])

    assert output == '{"output":"","metadata":{"exit_code":0,"duration_seconds":0.0}}'
    asked = [entry for entry in bench.did if isinstance(entry, RunCommand)]
    assert [action.changed for action in asked] == [None, "directory"]
    ends = [event for event in bench.transcript.payloads if isinstance(event, ExecCommandEnd)]
    assert [end.stderr for end in ends] == ["the working directory is not the one that was approved", ""]


async def test_a_command_whose_program_is_replaced_at_each_start_is_refused_in_the_end(tmp_path: Path) -> None:
    replaced, yes = CommandReplaced("program"), Granted(by_person=True)
    bench = Bench(
        ends=replaced, then_ends=replaced, verdict=yes, then=yes, cwd=str(tmp_path), approval_policy="untrusted"
    )

    output = await bench.call(command=["make"])

    assert output == (
        "exec command rejected: its program, directory or files were replaced after each of 3 approvals"
    )
    assert len([entry for entry in bench.did if isinstance(entry, RunCommand)]) == 3


async def test_an_approval_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for verdict in (RejectedByUser(), Granted(), Granted(by_person=True)):
        await Bench(verdict=verdict, cwd=str(tmp_path), approval_policy="untrusted").call(command=["make"])

    assert sorted(os.listdir("/proc/self/fd")) == before

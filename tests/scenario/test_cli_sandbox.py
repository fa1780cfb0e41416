"""`parley sandbox`: one command, confined like the agent's commands."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterable
from pathlib import Path

import pytest

from kit.servers.command_line import Outcome, outcome_of
from kit.servers.hangups import hangups
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.kernels import Lack, on_kernel
from kit.system.needs import BUBBLEWRAP, MECHANISMS, SANDBOX
from parley.cli.main import main

WORKSPACE = ("--mode", "workspace-write", "-c", "sandbox_workspace_write.exclude_slash_tmp=true")
"""Options with which the directories beside the working directory are not writable, although tests work in /tmp."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return an empty working directory beside Parley's home."""
    (tmp_path / "home" / ".parley").mkdir(parents=True)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


async def start(
    project: Path, *arguments: str, stdin: int = DEVNULL, without: Iterable[Lack] = (), through: str = ""
) -> Process:
    """Start `parley sandbox` with these arguments. `through` is a bash script that runs the command line."""
    home = str(project.parent / "home")
    return await asyncio.create_subprocess_exec(
        *(("bash", "-c", through, "bash") if through else ()),
        *on_kernel(without, (sys.executable, "-m", "parley", "sandbox", *arguments)),
        env={"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "OPENAI_API_KEY": "sk-never-told"},
        cwd=project,
        stdin=stdin,
        stdout=PIPE,
        stderr=PIPE,
    )


def confined_by(mechanism: str) -> tuple[str, ...]:
    return "-c", f"sandbox.mechanism={mechanism}"


# --- effects -----------------------------------------------------------------------------------


@pytest.mark.promises("sandbox.by-hand")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_output_and_exit_code_of_a_command_are_passed_on(project: Path, mechanism: str) -> None:
    script = "echo out; echo err >&2; cat; exit 7"
    process = await start(project, *confined_by(mechanism), "--", "sh", "-c", script, stdin=PIPE)

    assert await outcome_of(process, b"this is not for the command\n") == Outcome("out\n", "err\n", 7)


@pytest.mark.promises("sandbox.by-hand", "sandbox.writing")
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_command_writes_where_the_mode_lets_it(project: Path, mechanism: str) -> None:
    script = "echo x >inside; echo x >../outside; mkdir .git; cat ../home/.parley/config.toml"
    (project.parent / "home" / ".parley" / "config.toml").write_text("# nobody reads this\n")

    read_only = await outcome_of(await start(project, *confined_by(mechanism), "--", "sh", "-c", script))
    before = sorted(os.listdir(project))
    workspace = await outcome_of(
        await start(project, *confined_by(mechanism), *WORKSPACE, "--", "sh", "-c", script)
    )

    assert (read_only[::2], workspace[::2]) == (("", 1), ("", 1))
    # the file was moved away and has no effect
    after = [name for name in os.listdir(project) if not name.startswith(".refused-")]
    assert (before, after) == ([], ["inside"])
    assert sorted(os.listdir(project.parent)) == ["home", "project"]


@SANDBOX
async def test_a_command_that_is_killed_ends_with_the_number_of_the_signal(project: Path) -> None:
    assert await outcome_of(await start(project, "--", "sh", "-c", "kill -9 $$")) == Outcome("", "", 137)


@pytest.mark.promises("sandbox.by-hand")
@SANDBOX
async def test_a_command_gets_no_key_and_a_variable_says_that_there_is_no_network(project: Path) -> None:
    said = (await outcome_of(await start(project, "env"))).stdout.splitlines()

    assert "CODEX_SANDBOX_NETWORK_DISABLED=1" in said
    assert [line for line in said if "never-told" in line] == []


@SANDBOX
async def test_a_command_reaches_the_network_with_the_option(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reach = f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}))"
        on = await outcome_of(await start(project, *WORKSPACE, "--network", "--", sys.executable, "-c", reach))
        off = await outcome_of(await start(project, *WORKSPACE, "--", sys.executable, "-c", reach))

    assert (on, off.exit_code) == (Outcome("", "", 0), 1)


@SANDBOX
async def test_a_command_runs_in_the_given_directory(project: Path) -> None:
    (project / "below").mkdir()

    assert await outcome_of(await start(project, "--cwd", "below", "pwd")) == Outcome(f"{project}/below\n", "", 0)


@BUBBLEWRAP
async def test_no_more_processes_are_allowed_than_the_user_may_have(project: Path) -> None:
    command = (*confined_by("bubblewrap"), "--", "bash", "-c", "ulimit -u")
    process = await start(project, *command, through='ulimit -u 500; exec "$@"')

    assert await outcome_of(process) == Outcome("500\n", "", 0)


# --- exit codes ------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)]
)
async def test_a_signal_ends_the_command_and_all_it_started(
    project: Path, mechanism: str, number: signal.Signals
) -> None:
    os.mkfifo(project / "held")
    held = os.open(project / "held", os.O_RDONLY | os.O_NONBLOCK)
    script = "exec 3>held; setsid sleep 600 & echo ready; sleep 600"
    with hangups(ignored=False):
        process = await start(project, *confined_by(mechanism), *WORKSPACE, "--", "sh", "-c", script)
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        ready = await process.stdout.readline()

    process.send_signal(number)
    ended = await outcome_of(process)

    try:
        assert (ready, ended) == (b"ready\n", Outcome("", "", 128 + number))
        assert os.read(held, 1) == b""  # no process is left that could write
    finally:
        os.close(held)


@SANDBOX
async def test_a_command_that_is_to_outlive_its_terminal_does(project: Path) -> None:
    os.mkfifo(project / "go")
    with hangups(ignored=True):
        process = await start(project, *WORKSPACE, "--", "sh", "-c", "echo ready; head -c 2 go; exit 3")
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert await process.stdout.readline() == b"ready\n"

    process.send_signal(signal.SIGHUP)
    go = os.open(project / "go", os.O_RDWR)
    try:
        os.write(go, b"on")

        assert await outcome_of(process) == Outcome("on", "", 3)
    finally:
        os.close(go)


@SANDBOX
async def test_a_signal_also_ends_a_command_with_unread_output(project: Path) -> None:
    process = await start(project, "--", "yes")
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert await process.stdout.read(2) == b"y\n"
    process.send_signal(signal.SIGTERM)

    assert (await outcome_of(process))[1:] == ("", 143)


@SANDBOX
async def test_a_command_ends_when_the_reader_of_its_output_has_closed_the_pipe(project: Path) -> None:
    process = await start(project, "--", "yes", through='"$@" | head -n 1; echo "${PIPESTATUS[0]}"')

    assert await outcome_of(process) == Outcome("y\n141\n", "", 0)


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.promises("sandbox.closed")
async def test_where_nothing_confines_nothing_is_run(project: Path) -> None:
    lacks = (Lack.USER_NAMESPACES, Lack.LANDLOCK)
    done = await outcome_of(await start(project, *WORKSPACE, "--", "touch", "made", without=lacks))

    reason = "no sandbox is available on this system: bubblewrap: "
    said = f"the command was not run, because it cannot be confined: {reason}"
    assert (done.stdout, done.exit_code, len(done.stderr.splitlines())) == ("", 125, 1)
    assert done.stderr.startswith(f"parley sandbox: {said}")
    assert done.stderr.endswith("; Landlock: the kernel does not have it\n")
    assert os.listdir(project) == []


@SANDBOX
async def test_a_command_that_cannot_be_confined_is_not_run(project: Path) -> None:
    (project / "elsewhere").mkdir()
    (project / ".git").symlink_to("elsewhere")
    done = await outcome_of(await start(project, *WORKSPACE, "--", "touch", "made"))

    assert (done.stdout, done.stderr.partition(": the command was not run")[0], done.exit_code) == (
        "",
        "parley sandbox",
        125,
    )
    assert done.stderr.startswith("parley sandbox: the command was not run, because it cannot be confined: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (project / "made").exists()


@SANDBOX
async def test_a_program_that_is_not_there_is_not_started(project: Path) -> None:
    said = "parley sandbox: cannot start program no-such-program: No such file or directory (os error 2)\n"

    assert await outcome_of(await start(project, "no-such-program")) == Outcome("", said, 127)


@SANDBOX
async def test_a_directory_that_is_not_there_is_named_and_not_taken_for_the_program(project: Path) -> None:
    gone = project / "gone"
    done = await outcome_of(await start(project, "--cwd", str(gone), "true"))

    assert done == Outcome(
        "", f"parley sandbox: cannot start in directory {gone}: No such file or directory (os error 2)\n", 127
    )


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PARLEY_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ((), "expected a command to run"),
        (("--network",), "expected a command to run"),
        (("--mode",), "argument --mode: expected one argument"),
        (("--fast", "true"), "unknown option '--fast'"),
        (("--network=yes", "true"), "argument --network: ignored explicit argument 'yes'"),
        (("--mode", "all", "true"), "argument --mode: invalid choice: 'all'"),
        (
            ("--network", "--", "true"),
            "--network requires --mode workspace-write, and the mode is read-only",
        ),
        (
            ("-c", "sandbox_mode=danger-full-access", "true"),
            "the settings say danger-full-access, which confines nothing; choose a --mode",
        ),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_usage_error_runs_nothing(line: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(("sandbox", *line))

    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"parley sandbox: {said}")
    assert err.endswith("; see `parley sandbox --help`\n")


@pytest.mark.usefixtures("home")
def test_an_invalid_override_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(("sandbox", "-c", "nonsense", "true"))

    said = "parley sandbox: -c: `nonsense` is not of the form key=value\n"
    assert (code, capsys.readouterr()) == (125, ("", said))


def test_options_after_the_command_belong_to_the_command(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = main(("sandbox", "--cwd", str(home), "no-such-program", "--network", "--help"))

    assert code in (125, 127)
    assert "usage:" not in capfd.readouterr().out


def test_invalid_settings_are_reported_with_their_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "config.toml").write_text('\nsandbox_mode = "open"\n')
    code = main(("sandbox", "true"))

    problem = "`sandbox_mode`: unknown variant `open`, expected one of `read-only`, `workspace-write`, "
    said = f"parley sandbox: {home}/config.toml, line 2: {problem}`danger-full-access`\n"
    assert (code, capsys.readouterr()) == (125, ("", said))


def test_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(("sandbox", "--mode", "read-only", "--help"))

    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out.startswith("usage: parley sandbox ")

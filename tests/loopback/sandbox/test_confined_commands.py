from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest

from kit.builders.sandbox_policies import sandbox_policy
from kit.builders.trees import tree
from kit.clients.shell_turns import nothing_left_of, until_running
from kit.system.commands import PYTHON, TIMEOUT_SECONDS, Ran, marked, open_descriptors
from kit.system.confined_commands import confined
from kit.system.needs import LANDLOCK, MECHANISMS
from parley.config.types import Mechanism
from parley.errors import CommandNotStarted, SandboxUnavailable
from parley.sandbox import Sandboxed

pytestmark = pytest.mark.parametrize("mechanism", MECHANISMS)


INNER_COMMAND = """
import asyncio
from parley.ports.commands import SandboxPolicy, Command
from parley.sandbox import Sandboxed
from parley.tools.commands.executor import Executor

async def main():
    commands = Sandboxed(Executor)
    argv = ("sh", "-c", "echo x > x || echo confined")
    command = Command(argv=argv, cwd=".", env={}, timeout_seconds=60, policy=SandboxPolicy(mechanism="landlock"))
    await commands.run(command, output=lambda stream, data: print(stream, data.decode(), end=""))
    await commands.close()

asyncio.run(main())
"""


# --- files -------------------------------------------------------------------------------


@pytest.mark.promises("sandbox.writing")
async def test_a_command_writes_where_it_may_and_nowhere_else(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    script = "echo x > ../outside/a; echo x > a; mkdir -p b/c; mv a b/c; echo x > /dev/null; ls -R"

    within = sandbox_policy(tmp_path / "inside", mechanism=mechanism)
    result = await confined(sandboxed, within, "sh", "-c", script, cwd=tmp_path / "inside")

    assert (result.exit_code, result.stdout) == (0, b".:\nb\n\n./b:\nc\n\n./b/c:\na\n")
    assert re.fullmatch(rb"sh: 1: cannot create \.\./outside/a: .*\n", result.stderr)
    assert list((tmp_path / "outside").iterdir()) == []
    assert (tmp_path / "inside/b/c/a").read_text() == "x\n"


@pytest.mark.promises("sandbox.writing")
async def test_without_a_root_nothing_is_written(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("as it was")
    (tmp_path / "file").chmod(0o644)
    attempts = "'echo x > new' 'echo x > file' 'rm file' 'chmod 600 file' 'ln file l'"
    script = f'for attempt in {attempts}; do sh -c "$attempt" && exit 3; done; cat file'

    result = await confined(sandboxed, sandbox_policy(mechanism=mechanism), "sh", "-c", script, cwd=tmp_path)

    assert (result.exit_code, result.stdout) == (0, b"as it was")
    assert tree(tmp_path) == {"file": ("-rw-r--r--", b"as it was")}


@pytest.mark.promises("sandbox.modes")
async def test_programs_that_set_or_copy_plain_modes_work(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\n")
    (tmp_path / "program").chmod(0o750)
    script = """
        set -e
        cp -p program copied
        install -m 555 program installed
        mkdir -m 1777 open
        tar -cf packed.tar program && tar -xpf packed.tar -C open
        git init -q repository && git -C repository -c user.name=a -c user.email=a@b commit -q --allow-empty -m x
        git clone -q repository cloned
        stat -c '%a %n' copied installed open open/program cloned/.git/HEAD
    """

    result = await confined(
        sandboxed, sandbox_policy(tmp_path, mechanism=mechanism), "sh", "-c", f"umask 022; {script}", cwd=tmp_path
    )

    found = b"750 copied\n555 installed\n1777 open\n750 open/program\n644 cloned/.git/HEAD\n"
    assert (result.exit_code, result.stdout) == (0, found), result


@pytest.mark.promises("sandbox.modes")
async def test_no_mode_lets_other_users_act_as_the_user(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "file").chmod(0o755)
    (tmp_path / "folder").mkdir(mode=0o755)

    result = await confined(
        sandboxed, sandbox_policy(tmp_path, mechanism=mechanism), "chmod", "6755", "file", "folder", cwd=tmp_path
    )

    refused = b"chmod: changing permissions of '%s': Operation not permitted\n"
    assert result == Ran(exit_code=1, stderr=refused % b"file" + refused % b"folder")
    assert {name: mode for name, (mode, _) in tree(tmp_path).items()} == {
        "file": "-rwxr-xr-x",
        "folder": "drwxr-xr-x",
    }


@LANDLOCK
async def test_an_agent_that_runs_as_a_command_confines_commands_of_its_own(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    within = sandbox_policy(tmp_path, mechanism=mechanism)

    result = await confined(sandboxed, within, sys.executable, "-c", INNER_COMMAND, cwd=tmp_path)

    assert result.stdout.endswith(b"stdout confined\n"), result


@pytest.mark.promises("sandbox.hidden")
async def test_hidden_files_cannot_be_read_and_others_can(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    for name in ("home/.ssh/id", "home/token", "home/notes"):
        (tmp_path / name).write_text("read")
    (tmp_path / "link").symlink_to("home/.ssh")
    hidden = (tmp_path / "link", tmp_path / "home/token")
    script = "cat home/notes; cat home/.ssh/id link/id home/token /proc/self/cwd/home/token 2>/dev/null"

    result = await confined(
        sandboxed, sandbox_policy(hidden=hidden, mechanism=mechanism), "sh", "-c", script, cwd=tmp_path
    )

    assert result == Ran(exit_code=1, stdout=b"read")


@pytest.mark.promises("sandbox.hidden")
async def test_hidden_files_in_a_root_cannot_be_read_moved_or_removed(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    (tmp_path / "a/keys").mkdir(parents=True)
    (tmp_path / "a/keys/id").write_text("secret")
    (tmp_path / "work").mkdir()
    before = tree(tmp_path)
    script = "mv a b; mv a/keys b; rm -rf a b; cat a/keys/id; echo x > work/file && cat work/file"

    within = sandbox_policy(tmp_path, hidden=(tmp_path / "a/keys",), mechanism=mechanism)
    result = await confined(sandboxed, within, "sh", "-c", script, cwd=tmp_path)

    assert (result.exit_code, result.stdout) == (0, b"x\n")
    assert tree(tmp_path) == {**before, "work/file": ("-rw-r--r--", b"x\n")}


@pytest.mark.promises("sandbox.hidden")
async def test_the_target_of_a_hidden_link_is_hidden_from_the_next_command_too(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    home, keys = tmp_path / "home", tmp_path / "keys"
    home.mkdir()
    keys.mkdir()
    (keys / "id").write_text("secret")
    (home / ".ssh").symlink_to("../keys")
    within = sandbox_policy(home, hidden=(home / ".ssh",), mechanism=mechanism)

    first = await confined(sandboxed, within, "rm", ".ssh", cwd=home)
    second = await confined(sandboxed, within, "cat", "../keys/id", cwd=home)

    warning = f"protected files were changed while the command ran, and were restored: {home}/.ssh\n".encode()
    assert first == Ran(exit_code=1, stdout=b"", stderr=warning)
    assert (second.exit_code, second.stdout) == (1, b"")


@pytest.mark.promises("sandbox.replaced")
async def test_a_root_that_was_replaced_is_refused(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    within = sandbox_policy(tmp_path / "root", mechanism=mechanism)
    (tmp_path / "root").rename(tmp_path / "away")
    (tmp_path / "root").symlink_to("away")

    with pytest.raises(SandboxUnavailable) as refused:
        await confined(sandboxed, within, "touch", "root/x", cwd=tmp_path)

    assert refused.value.detail == f"{tmp_path}/root is no longer writable: it was replaced by another directory"
    assert list((tmp_path / "away").iterdir()) == []


async def test_a_working_directory_that_is_hidden_is_refused(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    with pytest.raises(SandboxUnavailable) as refused:
        await confined(sandboxed, sandbox_policy(hidden=(tmp_path,), mechanism=mechanism), "ls", cwd=tmp_path)

    assert refused.value.detail == f"the working directory {tmp_path} is hidden from commands"


@pytest.mark.promises("sandbox.hidden")
async def test_the_error_of_a_hidden_program_does_not_show_whether_it_exists(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    if mechanism == "landlock":
        pytest.skip("under Landlock, a command can list the names of hidden files")
    (tmp_path / "keys/folder").mkdir(parents=True)
    for name, mode in (("keys/program", 0o755), ("keys/text", 0o644), ("visible", 0o755)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    (tmp_path / "keys/link").symlink_to(tmp_path / "visible")
    within = sandbox_policy(hidden=(tmp_path / "keys",), mechanism=mechanism)

    for name in ("program", "text", "folder", "link", "none", "folder/../../visible", "none/../../visible"):
        with pytest.raises(CommandNotStarted) as refused:
            await confined(sandboxed, within, f"keys/{name}", cwd=tmp_path)
        assert (name, refused.value.detail) == (name, "No such file or directory (os error 2)")
    assert await confined(sandboxed, within, "keys/../visible", cwd=tmp_path) == Ran(exit_code=0)


# --- git ---------------------------------------------------------------------------------


@pytest.mark.promises("sandbox.git")
async def test_git_reads_a_repository_and_stays_as_it_is(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    await confined(sandboxed, None, "git", "init", "-q", "-b", "main", cwd=tmp_path, env=env)
    before = tree(tmp_path / ".git")
    within = sandbox_policy(tmp_path, mechanism=mechanism)

    status = await confined(sandboxed, within, "git", "status", "--short", "--branch", cwd=tmp_path, env=env)
    config = await confined(sandboxed, within, "git", "config", "core.hooksPath", "evil", cwd=tmp_path, env=env)

    assert status == Ran(exit_code=0, stdout=b"## No commits yet on main\n")
    assert config.exit_code != 0
    assert config.stderr != b""
    found = tree(tmp_path / ".git")
    assert {path: item for path, item in found.items() if not path.startswith(".refused-")} == before


@pytest.mark.promises("sandbox.git")
async def test_commands_at_the_same_time_in_a_directory_without_git_leave_none(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    within = sandbox_policy(tmp_path, mechanism=mechanism)
    script = "mkdir .git 2>/dev/null; mkdir .git/hooks; touch file.$0"

    results = await asyncio.gather(
        *(confined(sandboxed, within, "sh", "-c", script, str(number), cwd=tmp_path) for number in range(6))
    )

    made = {path for path in tree(tmp_path) if ".refused-" not in path}
    assert made == {f"file.{number}" for number in range(6)}
    assert any(result.stderr for result in results)


@pytest.mark.promises("sandbox.git")
async def test_a_file_that_was_moved_aside_in_its_directory_needs_no_approval(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    if mechanism == "bubblewrap":
        pytest.skip("under bubblewrap, a command cannot add the files")
    agents = tmp_path / ".claude"
    agents.mkdir()
    (agents / "settings.json").write_text("{}")
    within = sandbox_policy(tmp_path, mechanism=mechanism)
    script = "echo x > .claude/new; echo x > .claude/.refused-00000000-own"

    added = await confined(sandboxed, within, "sh", "-c", script, cwd=tmp_path)
    names = sorted(os.listdir(agents))
    written = await confined(sandboxed, within, "sh", "-c", f"echo y > .claude/{names[0]}", cwd=tmp_path)
    later = await confined(sandboxed, within, "true", cwd=tmp_path)

    moved = [re.sub("[0-9a-f]{8}", "X", name, count=1) for name in names]
    assert sorted(moved) == [".refused-X-.refused-00000000-own", ".refused-X-new", "settings.json"]
    assert (added.exit_code, b"could not be restored" in added.stderr) == (1, False)
    assert (written.exit_code, (agents / names[0]).read_text()) == (1, "x\n")  # a moved file is protected as well
    assert later == Ran(exit_code=0)


# --- the environment of a command --------------------------------------------------------------


@pytest.mark.promises("sandbox.environment")
async def test_a_command_has_its_own_environment_alone(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_SECRET", "sk-secret")
    env = {"A": "1", "B": "x=y", "C": "", "D": "\udcff --bind / /"}

    result = await confined(sandboxed, sandbox_policy(mechanism=mechanism), "/usr/bin/env", cwd=tmp_path, env=env)

    lines = sorted(result.stdout.splitlines())
    assert [line for line in lines if not line.startswith(b"PWD=")] == [
        b"A=1",
        b"B=x=y",
        b"C=",
        b"D=\xff --bind / /",
    ]
    assert [line for line in lines if line.startswith(b"PWD=")] in ([], [f"PWD={tmp_path}".encode()])


async def test_a_command_runs_in_its_directory_with_its_files_and_no_other_descriptor(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    script = (
        "import os; print(os.getcwd(), os.read(3, 9), os.read(4, 9), sorted(map(int, os.listdir('/proc/self/fd'))))"
    )

    result = await confined(
        sandboxed, sandbox_policy(mechanism=mechanism), *PYTHON, script, cwd=tmp_path, files=(b"one", b"two")
    )

    assert result == Ran(exit_code=0, stdout=f"{tmp_path} b'one' b'two' [0, 1, 2, 3, 4, 5]\n".encode())


@pytest.mark.promises("sandbox.network")
async def test_no_address_can_be_reached_unless_the_network_is_on(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    script = "import socket, sys; print(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(9))"
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = str(server.getsockname()[1])

        off = await confined(sandboxed, sandbox_policy(mechanism=mechanism), *PYTHON, script, port)
        answering = asyncio.to_thread(_greet, server)
        on, _ = await asyncio.gather(
            confined(sandboxed, sandbox_policy(mechanism=mechanism, network=True), *PYTHON, script, port), answering
        )

    assert (off.exit_code, off.stdout, off.stderr.splitlines()[-1]) == (
        1,
        b"",
        b"PermissionError: [Errno 1] Operation not permitted",
    )
    assert on == Ran(exit_code=0, stdout=b"b'hello'\n")


def _greet(server: socket.socket) -> None:
    server.settimeout(TIMEOUT_SECONDS)
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"hello")


# --- how commands end --------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 1", 1), ("exit 127", 127), ("exit 255", 255)])
async def test_a_command_ends_with_its_own_exit_code(
    sandboxed: Sandboxed, mechanism: Mechanism, script: str, code: int
) -> None:
    assert await confined(sandboxed, sandbox_policy(mechanism=mechanism), "sh", "-c", script) == Ran(exit_code=code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
async def test_a_command_that_is_killed_says_by_what(
    sandboxed: Sandboxed, mechanism: Mechanism, number: signal.Signals
) -> None:
    result = await confined(sandboxed, sandbox_policy(mechanism=mechanism), "sh", "-c", f"kill -{number:d} $$")

    # Like a shell, bubblewrap reports a signal as an exit code above 128.
    assert result == (Ran(exit_code=128 + number) if mechanism == "bubblewrap" else Ran(signal=number))


@pytest.mark.parametrize(
    ("argv", "cwd", "detail"),
    [
        (("no-such-program",), "/", "No such file or directory (os error 2)"),
        (("/etc/passwd",), "/", "Permission denied (os error 13)"),
        (("true",), "/no/such/directory", "No such file or directory (os error 2)"),
        (("true",), "/etc/passwd", "Not a directory (os error 20)"),
        (("true",), "/\0", "the working directory contains a NUL character"),
        (("true\0",), "/", "a word of the command contains a NUL character"),
        ((), "/", "command args are empty"),
    ],
)
async def test_a_program_that_cannot_start_has_the_same_error_as_without_a_sandbox(
    sandboxed: Sandboxed, mechanism: Mechanism, argv: tuple[str, ...], cwd: str, detail: str
) -> None:
    for within in (None, sandbox_policy(mechanism=mechanism)):
        with pytest.raises(CommandNotStarted) as refused:
            await confined(sandboxed, within, *argv, cwd=cwd)

        assert (type(refused.value), refused.value.detail) == (CommandNotStarted, detail)


@pytest.mark.promises("sandbox.nothing-left")
async def test_nothing_is_left_of_a_command_that_took_too_long(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    ignores_sigterm = "trap '' TERM; (setsid sleep 1000 &)"
    script = f"{ignores_sigterm}; mkdir .git; echo evil > .git/config; sleep 1000"
    marker = f"M{os.urandom(4).hex()}"

    result = await confined(
        sandboxed,
        sandbox_policy(tmp_path, mechanism=mechanism),
        *("sh", "-c", script, marker),
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "MARKER": marker},
        timeout_seconds=1.0,
    )

    assert (result.exit_code, result.timed_out) == (None, True)
    assert marked(marker) == []
    assert not (tmp_path / ".git").exists()


@pytest.mark.promises("sandbox.nothing-left")
async def test_nothing_is_left_of_a_command_that_is_cancelled(
    sandboxed: Sandboxed, mechanism: Mechanism, tmp_path: Path
) -> None:
    marker = f"M{os.urandom(4).hex()}"
    await sandboxed.why_unconfined(sandbox_policy(mechanism=mechanism))
    await confined(sandboxed, None, "true")
    descriptors = open_descriptors()
    running = asyncio.create_task(
        confined(
            sandboxed,
            sandbox_policy(tmp_path, mechanism=mechanism),
            *("sh", "-c", "mkdir .git; sleep 1000 & sleep 1000"),
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "MARKER": marker},
        )
    )
    await until_running(marker, 3)

    running.cancel()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await asyncio.wait([running])

    assert running.cancelled()
    await nothing_left_of(marker)
    assert not (tmp_path / ".git").exists()
    assert open_descriptors() == descriptors

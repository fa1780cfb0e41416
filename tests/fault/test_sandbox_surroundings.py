"""The environment and the launcher of a confined command, and programs that could replace them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kit.attacks.confined import MODES, Confined
from kit.system.commands import PATH, PYTHON, Ran
from kit.system.needs import BUBBLEWRAP, MECHANISMS
from parley.config.types import Mechanism

WORKSPACE_WRITE: Final = MODES[1]


@pytest.fixture(scope="module")
def confined() -> Iterator[Confined]:
    with Confined() as confined:
        yield confined


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.mark.promises("sandbox.environment")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_command_has_the_environment_that_it_was_given_and_nothing_of_the_server(
    confined: Confined, workspace: Path, mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    policy = WORKSPACE_WRITE.policy(mechanism, str(workspace))

    result = confined.run(policy, "env", "-0", cwd=str(workspace), env={"PATH": PATH, "A": "b=c\n"})

    found = dict(item.split(b"=", 1) for item in result.stdout.split(b"\0") if item)
    # Bubblewrap sets PWD to the working directory, as a shell does.
    expected = {b"PATH": PATH.encode(), b"A": b"b=c\n", b"PWD": bytes(workspace)}
    assert found == {name: expected[name] for name in expected if name != b"PWD" or mechanism == "bubblewrap"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_command_cannot_read_the_server_s_secrets_anywhere_in_proc(
    confined: Confined, workspace: Path, mechanism: Mechanism
) -> None:
    server = subprocess.Popen(
        [*PYTHON, "import sys; print(flush=True); sys.stdin.read()"],
        env={"OPENAI_API_KEY": "sk-secret"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdout.readline()
    script = "cat /proc/[0-9]*/environ /proc/[0-9]*/task/*/environ 2>/dev/null | grep -c -a sk-secret"
    try:
        result = confined.run(WORKSPACE_WRITE.policy(mechanism, str(workspace)), "sh", "-c", script)
        control = confined.run(None, "sh", "-c", script)
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()

    assert result == Ran(exit_code=1, stdout=b"0\n")
    assert (control.exit_code, control.stdout != b"0\n") == (0, True)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_environment_of_a_command_does_not_work_before_the_sandbox_does(
    confined: Confined, workspace: Path, tmp_path: Path, mechanism: Mechanism
) -> None:
    # The dynamic linker of every program writes to the file that this variable names. If the launcher inherited the
    # variable, the linker would write outside the sandbox.
    env = {"PATH": PATH, "LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(tmp_path / "trace"), "LD_PRELOAD": "/no.so"}

    confined.run(WORKSPACE_WRITE.policy(mechanism, str(workspace)), "true", cwd=str(workspace), env=env)
    confined_traces = list(tmp_path.glob("trace*"))
    confined.run(None, "true", cwd=str(workspace), env=env)

    assert confined_traces == []
    assert list(tmp_path.glob("trace*")) != []  # the control


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_programs_of_the_workspace_do_not_take_the_place_of_the_launcher(
    confined: Confined, workspace: Path, tmp_path: Path, mechanism: Mechanism
) -> None:
    for name in ("bwrap", "prlimit", "python3", "sh"):
        program = workspace / name
        program.write_text(f"#!/bin/sh\necho taken > {tmp_path}/taken\necho taken\n")
        program.chmod(0o755)
    env = {"PATH": f"{workspace}:{PATH}"}

    result = confined.run(
        WORKSPACE_WRITE.policy(mechanism, str(workspace)), "/bin/sh", "-c", "echo own", cwd=str(workspace), env=env
    )
    control = confined.run(None, "bwrap", cwd=str(workspace), env=env)

    assert (result, control) == (Ran(exit_code=0, stdout=b"own\n"), Ran(exit_code=0, stdout=b"taken\n"))


@BUBBLEWRAP
def test_words_of_a_command_are_not_taken_for_words_of_the_launcher(confined: Confined, workspace: Path) -> None:
    policy = WORKSPACE_WRITE.policy("bubblewrap", str(workspace))
    bad = {"PATH": PATH, "--bind": "/", "X": "--cap-add\0ALL"}

    result = confined.run(policy, "printf", "%s\\n", "--bind", "/", "/", "--", cwd=str(workspace))

    assert result == Ran(exit_code=0, stdout=b"--bind\n/\n/\n--\n")
    with pytest.raises(Exception, match="NUL"):
        confined.run(policy, "true", cwd=str(workspace), env=bad)


READS: Final = """
import json, os, sys
found = {}
for name in sys.argv[2:]:
    path = f"/proc/{sys.argv[1]}/{name}"
    try:
        found[name] = "leads on" if os.path.islink(path) and os.readlink(path) else "read"
        if found[name] == "read":
            os.read(os.open(path, os.O_RDONLY), 1)
    except OSError as error:
        found[name] = type(error).__name__
print(json.dumps(found))
"""
CLOSED: Final = (
    *("environ", "auxv", "mem", "maps", "smaps", "pagemap", "stack", "syscall", "io", "timers"),
    *("cwd", "exe", "root", "fd/0", "ns/net"),
)
OPEN_TO_ALL: Final = ("cmdline", "comm", "stat", "status", "limits", "cgroup", "mountinfo")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_command_reads_of_another_process_what_the_documentation_says(
    confined: Confined, workspace: Path, mechanism: Mechanism
) -> None:
    other = subprocess.Popen([*PYTHON, "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with other:
        names = (*CLOSED, *OPEN_TO_ALL)
        argv = (*PYTHON, READS, str(other.pid), *names)
        result = confined.run(WORKSPACE_WRITE.policy(mechanism, str(workspace)), *argv, cwd=str(workspace))
        other.kill()

    found = json.loads(result.stdout)
    if mechanism == "bubblewrap":
        assert found == dict.fromkeys(names, "FileNotFoundError")
    else:
        assert found == dict.fromkeys(CLOSED, "PermissionError") | dict.fromkeys(OPEN_TO_ALL, "read")

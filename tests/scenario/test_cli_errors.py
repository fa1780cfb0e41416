"""Errors of the command line: invalid settings, one file for both outputs, and an old Python."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from pathlib import Path

import pytest

from kit.servers.command_line import Outcome, environ_of, outcome_of, run_parley, start_parley
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.client import connect

pytestmark = pytest.mark.child_process

ROOT = Path(__file__).parents[2]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "conversationsList", "arguments": {}}}


WARNING = re.compile(
    r"\d{4}-\d\d-\d\d \S+ WARNING \S+ \S+/config\.toml, line 1: `mistaken`: unknown setting, ignored"
)


# --- invalid settings ----------------------------------------------------------------------

ID = "67e5"
COMMANDS = [
    ("ls",),
    ("show", ID),
    ("watch", ID),
    ("exec", "hi"),
    ("send", ID, "hi"),
    ("answer",),
    ("interrupt", ID),
    ("rename", ID, "x"),
    ("archive", ID),
    ("delete", ID, "--yes"),
    ("serve",),
    ("serve", "--no-http"),
    ("exec", "hi", "--resident"),
    ("send", ID, "hi", "--resident"),
]
FILES = {
    "earlier error": ('model = 5\n[store]\nurl = "postgresql://a@127.0.0.1:1/db"\n', "line 1: `model`: "),
    "other database": ('[store]\nurl = "mysql://x"\n', "line 2: `store.url`: "),
    "not TOML": ("model = [\n", "line 1: `model`: not valid TOML: "),
}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", FILES)
async def test_a_command_refuses_an_invalid_file_and_creates_nothing(
    tmp_path: Path, kind: str, command: tuple[str, ...]
) -> None:
    text, why = FILES[kind]
    (tmp_path / "config.toml").write_text(text)
    done = await run_parley(tmp_path, *command)

    assert (done.stdout, done.exit_code) == ("", 2)
    assert done.stderr.startswith(f"parley {command[0]}: {tmp_path}/config.toml, {why}")
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["config.toml"]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_a_command_refuses_an_invalid_variable_and_creates_nothing(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    done = await run_parley(tmp_path, *command, variables={"PARLEY_STORE_URL": "foo"})

    assert (done.stdout, done.exit_code) == ("", 2)
    assert done.stderr.startswith(f"parley {command[0]}: PARLEY_STORE_URL: expected a URL ")
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


async def test_a_server_with_an_invalid_file_does_not_open_the_home(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(FILES["earlier error"][0])
    messages = b"".join(json.dumps(one).encode() + b"\n" for one in (INITIALIZE, LIST))
    done = await run_parley(tmp_path, "mcp", stdin=messages)

    answer = json.loads(done.stdout.splitlines()[-1])
    assert f"{tmp_path}/config.toml, line 1: `model`: " in answer["result"]["content"][0]["text"]
    assert not (tmp_path / "parley.db").exists()


@pytest.mark.waits
@pytest.mark.parametrize("command", ["exec", pytest.param("send", marks=pytest.mark.long)])
async def test_settings_that_only_the_server_can_check_give_the_same_exit_code(
    tmp_path: Path, command: str
) -> None:
    created = await run_parley(tmp_path, "exec", "hi", "-c", "model_provider=scripted", "--json")
    conversation = json.loads(created.stdout.splitlines()[0])["conversation_id"]
    operands = ("hi",) if command == "exec" else (conversation, "hi")
    done = await run_parley(tmp_path, command, *operands, "-c", "model_provider=nope")

    prefix = "Failed to load config: " if command == "exec" else ""
    assert done == Outcome("", f"parley {command}: {prefix}Model provider `nope` not found\n", 2)


async def test_a_missing_home_comes_with_advice(tmp_path: Path) -> None:
    done = await run_parley(tmp_path, "ls", variables={"PARLEY_HOME": f"{tmp_path}/missing"})

    why = f"PARLEY_HOME: {tmp_path}/missing: No such file or directory (os error 2)"
    assert done == Outcome("", f"parley ls: {why}; create the directory, for example with `mkdir -p`\n", 2)


@pytest.mark.waits
async def test_an_unreachable_database_is_one_line(tmp_path: Path) -> None:
    done = await run_parley(tmp_path, "ls", variables={"PARLEY_STORE_URL": "postgresql://a@127.0.0.1:1/db"})

    assert (done.stdout, done.exit_code, done.stderr.count("\n")) == ("", 1, 1)
    assert done.stderr.startswith(
        "parley ls: conversations cannot be read or stored: PostgreSQL at 127.0.0.1:1/db "
    )


async def test_the_client_names_the_socket_that_it_cannot_reach(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        async with connect(socket=tmp_path / "missing.sock"):
            pass

    assert str(caught.value) == f"[Errno 2] No such file or directory: '{tmp_path}/missing.sock'"


# --- one file for stdout and stderr --------------------------------------------------------


async def test_serve_writes_both_outputs_to_one_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("mistaken = 1\n")
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "parley", "serve", "--no-http"),
            env=environ_of(tmp_path),
            stdin=DEVNULL,
            stdout=file,
            stderr=STDOUT,
        )
    try:
        await until(lambda: "unknown setting" in output.read_text() and "as process" in output.read_text())
    finally:
        process.terminate()
        await process.wait()

    lines = output.read_text().splitlines()
    assert len(lines) == 2
    assert sum(WARNING.fullmatch(line) is not None for line in lines) == 1
    assert f"serving {tmp_path}/serve.sock, as process {process.pid}" in lines


async def test_mcp_writes_both_outputs_to_one_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("mistaken = 1\n")
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "parley", "mcp"),
            env=environ_of(tmp_path),
            stdin=PIPE,
            stdout=file,
            stderr=STDOUT,
        )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        messages = (json.dumps(one).encode() + b"\n" for one in (INITIALIZE, initialized, LIST))
        await process.communicate(b"".join(messages))

    lines = output.read_text().splitlines()
    assert sum(WARNING.fullmatch(line) is not None for line in lines) == 1
    assert [json.loads(line)["id"] for line in lines if line.startswith("{")] == [1, 2]
    assert len(lines) == 3


@pytest.mark.waits
async def test_exec_writes_both_outputs_to_one_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('mistaken = 1\nmodel_provider = "scripted"\n')
    apart = await run_parley(tmp_path, "exec", "hi")
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "parley", "exec", "hi"),
            env=environ_of(tmp_path),
            cwd=tmp_path,
            stdin=DEVNULL,
            stdout=file,
            stderr=STDOUT,
        )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await process.wait()

    text = output.read_text()
    assert text.endswith(apart.stdout)
    assert sum(WARNING.fullmatch(line) is not None for line in text.splitlines()) == 1
    assert "> hi\n" in text


# --- an old Python -------------------------------------------------------------------------


def test_an_old_python_can_parse_what_reports_its_version() -> None:
    for name in ("__init__.py", "__main__.py", "version.py"):
        ast.parse((ROOT / "src/parley" / name).read_text(), feature_version=(3, 7))


async def test_an_old_python_gets_one_sentence() -> None:
    pretend = (
        "import runpy, sys; sys.version_info = (3, 9, 1, 'final', 0); sys.version = '3.9.1 (old)'; "
        "runpy.run_module('parley', run_name='__main__')"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", pretend, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, err = await process.communicate()

    assert (out, err) == (b"", b"parley: requires Python 3.11 or newer, but this is Python 3.9.1\n")
    assert process.returncode == 1


# --- a full disk ---------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
async def test_an_output_on_a_full_disk_fails_with_one_error(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process = await start_parley(tmp_path, "config", "--json", stdout=full)
    os.close(full)
    outcome = await outcome_of(process)

    assert (outcome.exit_code, outcome.stderr) == (
        1,
        "parley config: cannot write the output: No space left on device (os error 28)\n",
    )

"""MCP Inspector on the command line, as somebody would try a server before putting it into a client.

It comes from npm, once, into a cache outside the repository. Without Node the tests are skipped
and say so.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest

from parley.testing import ScriptedModel
from parley.testing.home import Home

VERSION: Final = "2.12.0"
PACKAGE: Final = "@modelcontextprotocol/inspector"
INSTALL_SECONDS: Final = 90.0
"""Ample for some hundred small packages, and still within the time that a test may take."""
CALL_SECONDS: Final = 20.0


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "parley-test" / "inspector" / VERSION


async def output_of(
    *command: str, env: Mapping[str, str], cwd: Path, seconds: float
) -> tuple[int | None, bytes, bytes]:
    """Exit code, stdout and stderr of a program that is killed when it takes too long."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd
    )
    try:
        async with asyncio.timeout(seconds):
            said, complained = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    return process.returncode, said, complained


async def inspector() -> Path:
    """The program, fetched if need be; skips the test where that is not possible."""
    if shutil.which("node") is None:
        pytest.skip("MCP Inspector was not tried: there is no node")
    program = cache() / "node_modules" / ".bin" / "mcp-inspector"
    if program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"MCP Inspector was not tried: it is not in {cache()}, and there is no npm to fetch it")
    cache().parent.mkdir(parents=True, exist_ok=True)
    # Into a folder of its own first: what stands under its final name is whole.
    with tempfile.TemporaryDirectory(dir=cache().parent) as folder:
        quietly = ("--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev", "--fetch-retries=0")
        install = (npm, "install", "--prefix", folder, *quietly, f"{PACKAGE}@{VERSION}")
        try:
            code, _, complained = await output_of(
                *install, env=os.environ, cwd=Path(folder), seconds=INSTALL_SECONDS
            )
        except TimeoutError:
            pytest.skip(f"MCP Inspector was not tried: npm took more than {INSTALL_SECONDS:g} s to fetch it")
        if code != 0:
            reason = complained.decode(errors="replace").strip()[-500:]
            pytest.skip(f"MCP Inspector was not tried: npm could not fetch it: {reason}")
        try:
            os.rename(folder, cache())
        except OSError:  # somebody else was faster
            if not program.exists():
                raise
        else:
            os.mkdir(folder)  # the block wants to remove it
    return program


async def inspect(home: Home, *arguments: str) -> Any:
    """What the Inspector prints for one request to a fresh server."""
    program = await inspector()
    # A catalog of its own: the one in the user's home is not touched. The Inspector does not hand its
    # environment on to the server, so the home has to be named.
    env = {**home.environ, "MCP_CATALOG_PATH": str(home.path / "catalog.json")}
    passed = ("-e", f"PARLEY_HOME={home.path}")
    code, said, complained = await output_of(
        str(program), "--cli", *passed, *home.command, *arguments, env=env, cwd=home.work, seconds=CALL_SECONDS
    )
    assert code == 0, complained.decode(errors="replace")
    return msgspec.json.decode(said)


async def call(home: Home, tool: str, **arguments: str) -> Any:
    pairs = [word for name, value in arguments.items() for word in ("--tool-arg", f"{name}={value}")]
    return await inspect(home, "--method", "tools/call", "--tool-name", tool, *pairs)


async def test_the_inspector_lists_creates_and_runs_codex(scripted_model: ScriptedModel) -> None:
    home = Home(scripted_model)
    home.open()
    try:
        listed = await inspect(home, "--method", "tools/list", "--strict")
        created = await call(home, "conversationCreate", prompt="hello", model="m", cwd=str(home.work))
        asked = await call(home, "codex", prompt="go", cwd=str(home.work))
    finally:
        home.close()

    assert [tool["name"] for tool in listed["tools"]][:6] == [
        "codex",
        "codex-reply",
        "conversationCreate",
        "conversationSendMessage",
        "conversationStream",
        "conversationsList",
    ]
    conversation = created["structuredContent"]["conversation_id"]
    assert str(UUID(conversation)) == conversation
    assert created == {
        "content": [{"type": "text", "text": f'{{"conversation_id":"{conversation}","model":"m"}}'}],
        "isError": False,
        "structuredContent": {"conversation_id": conversation, "model": "m"},
    }
    session = asked["structuredContent"]["sessionId"]
    assert asked == {
        "content": [{"type": "text", "text": "Done"}],
        "structuredContent": {"sessionId": session, "message": "Done"},
    }
    (request,) = scripted_model.requests
    assert request.body["messages"][-1] == {"role": "user", "content": "go"}

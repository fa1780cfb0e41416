"""The MCP Inspector on the command line, with which a user can try a server before adding the server to a client.

The Inspector comes from npm and is stored once in a cache outside the repository. Without Node, the tests are
skipped with a reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest

from kit.clients.messages import turn_value
from kit.clients.npm import fetched, output_of
from parley.testing import ScriptedModel
from parley.testing.home import Home

VERSION: Final = "2.12.0"
PACKAGE: Final = "@modelcontextprotocol/inspector"
CALL_SECONDS: Final = 90.0


async def inspector() -> Path:
    """Return the path of the program; fetch it if needed, and skip the test if that fails."""
    modules = await fetched("MCP Inspector", "inspector", VERSION, f"{PACKAGE}@{VERSION}")
    return modules / ".bin" / "mcp-inspector"


async def inspect(home: Home, *arguments: str) -> Any:
    """Return the output of the Inspector for one request to a new server."""
    program = await inspector()
    # The test uses its own catalog, so that the catalog in the user's home is not changed. The Inspector does not
    # pass its environment to the server, so the home is given explicitly.
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


@pytest.mark.long
async def test_the_inspector_lists_creates_and_runs_codex(parley_model: ScriptedModel) -> None:
    home = Home(parley_model)
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
        "structuredContent": turn_value(session, "Done"),
    }
    (request,) = parley_model.requests
    assert request.body["messages"][-1] == {"role": "user", "content": "go"}

"""The Python on the pages about the client and about tokens runs as it is shown, against a resident server."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

import parley
from kit.builders.snippets import Snippet, snippets
from kit.servers.in_process_resident import InProcessResident
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.http_choice import HttpChoice
from parley.client import events
from parley.testing import ScriptedModel

pytestmark = pytest.mark.child_process

ADDRESSES = ("http://127.0.0.1:8080/mcp", "http://127.0.0.1:8722/mcp")
"""The addresses of servers on the pages."""


async def run(snippet: Snippet, names: dict[str, Any]) -> None:
    """Run a block, which can use and define `names`."""
    code = compile(snippet.code, str(snippet), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, names)
    else:
        await asyncio.to_thread(eval, code, names)  # the block may run its own event loop


@pytest.mark.parametrize("page", ["docs/client.md", "docs/tokens.md"])
async def test_every_block_of_python_runs(
    page: str,
    parley_model: ScriptedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shown = [one for one in snippets() if (one.page, one.language) == (page, "python")]
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("PARLEY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        InProcessResident(parley_model, tmp_path / "home", http=HttpChoice(creates_token=True)) as resident,
        parley.connect() as client,
    ):
        url, token = str(resident.resident.description["url"]), str(resident.resident.token)
        monkeypatch.setenv("PARLEY_TOKEN", token)
        conversation = await client.create(cwd=str(project))
        names: dict[str, Any] = {"parley": parley, "events": events, "os": os, "uuid": uuid, "token": token}
        for snippet in shown:
            names |= {"client": client, "conversation": conversation}  # an earlier block has closed its own client
            code = snippet.code.replace("/project", str(project))
            for address in ADDRESSES:
                code = code.replace(address, url)
            await run(snippet._replace(code=code), names)

    printed = capfd.readouterr().out
    assert ("Done" if page == "docs/client.md" else "'codex'") in printed

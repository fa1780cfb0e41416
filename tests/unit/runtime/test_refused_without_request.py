"""Actions that are refused without a request, because the request could not show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.builders.approvals_of_turn import approvals_in, gate_of
from kit.builders.tools import NoCommands
from kit.servers.local_server import StandingClock
from parley.config.load import Loader
from parley.config.types import SettingsOverrides
from parley.ports.tools import RejectedByPolicy, RunCommand
from parley.stores.memory import MemoryStore
from parley.wire.ids import CallId


@pytest.mark.parametrize(
    ("argv", "cwd"), [(("touch", "a\0b"), "/project"), (("\0",), "/project"), (("touch", "a"), "/project\0")]
)
async def test_a_command_with_a_nul_character_is_refused_without_an_approval_request(
    tmp_path: Path, argv: tuple[str, ...], cwd: str
) -> None:
    loader = Loader(environ={"PARLEY_HOME": str(tmp_path)}, server_dir=str(tmp_path))
    wanted = SettingsOverrides(cwd=str(tmp_path), approval_policy="untrusted", sandbox="danger-full-access")
    approvals = await approvals_in(MemoryStore(), StandingClock())
    authorize = gate_of(approvals, NoCommands()).for_turn(loader.choose(wanted).settings)

    verdict = await authorize(RunCommand(call_id=CallId("c1"), argv=argv, cwd=cwd))

    assert verdict == RejectedByPolicy(why="it contains a NUL character")
    assert approvals.open is None

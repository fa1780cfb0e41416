"""The official TypeScript client reports no error: no progress after results, no response to cancelled requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.npm import TYPESCRIPT_SDK, fetched, output_of
from parley.testing import HOLD, RecordedRequest, Says, ScriptedModel
from parley.testing.home import Home

SCRIPT: Final = Path(__file__).parents[1] / "kit/clients/typescript_client.mjs"
RUN_SECONDS: Final = 120.0


def reply(request: RecordedRequest) -> Says:
    prompt = request.body["messages"][-1]["content"]
    return Says((HOLD,)) if prompt == "wait" else Says(("Done",))


@pytest.mark.promises("cancel.unanswered", "cancel.answered-send", "codex.progress-before-result")
async def test_it_reports_no_error(parley_model: ScriptedModel, tmp_path: Path) -> None:
    modules = await fetched("The TypeScript client", *TYPESCRIPT_SDK)
    (tmp_path / "node_modules").symlink_to(modules)
    script = tmp_path / SCRIPT.name
    script.write_bytes(SCRIPT.read_bytes())
    parley_model.set_handler(reply)
    home = Home(parley_model)
    home.open()
    try:
        code, said, complained = await output_of(
            "node", str(script), *home.command, env=home.environ, cwd=home.work, seconds=RUN_SECONDS
        )
    finally:
        home.close()

    assert code == 0, complained.decode()
    told: dict[str, Any] = json.loads(said)
    assert told.pop("progress") >= 0
    # A client that is slow may read in one go what was written one after the other: the progress of an earlier
    # event, and the result.
    told["errors"] = [one for one in told["errors"] if "unknown token" not in one or "task_complete" in one]
    assert told == {
        "results": ["Done"] * 5,
        "aborted": told["aborted"],
        "state": "idle",
        "last": {"type": "task_complete", "last_agent_message": "Done"},
        "errors": [],
    }
    assert "enough" in told["aborted"]

"""The official TypeScript client reports no error: no progress after results, no response to cancelled requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from kit.clients.npm import TYPESCRIPT_CLIENT, TYPESCRIPT_SDK, fetched, output_of
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from parley.testing import HOLD, RecordedRequest, Says, ScriptedModel
from parley.testing.home import Home

SCRIPT: Final = Path(__file__).parents[1] / "kit/clients/typescript_client.mjs"
TOUR: Final = SCRIPT.with_name("typescript_tour.mjs")
PACKAGES: Final = {"1": TYPESCRIPT_SDK, "2": TYPESCRIPT_CLIENT, "modern": TYPESCRIPT_CLIENT}
RUN_SECONDS: Final = 120.0


def reply(request: RecordedRequest) -> Says:
    prompt = request.body["messages"][-1]["content"]
    return Says((HOLD,)) if prompt == "wait" else Says(("Done",))


@pytest.mark.long
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
    report: dict[str, Any] = json.loads(said)
    # A slow client may read the progress of an earlier event and the result in one read.
    report["errors"] = [one for one in report["errors"] if "unknown token" not in one or "task_complete" in one]
    assert report == {
        "results": ["Done"] * 5,
        "aborted": report["aborted"],
        "state": "idle",
        "last": {"type": "task_complete", "last_agent_message": "Done"},
        "errors": [],
    }
    assert "enough" in report["aborted"]


def reply_on_tour(request: RecordedRequest) -> Says:
    last = request.body["messages"][-1]
    if last["role"] == "user" and last["content"] == "touch made":
        return Says((sh("c1", "touch made"),))
    return Says(tuple(f"{piece} " for piece in range(20)))


@pytest.mark.promises("http.resume", "modern.stream", "modern.approvals")
@pytest.mark.parametrize(
    ("generation", "transport"),
    [
        pytest.param("1", "http", marks=pytest.mark.long),
        pytest.param("2", "http", marks=pytest.mark.long),
        ("modern", "http"),
        pytest.param("modern", "stdio", marks=pytest.mark.long),
        pytest.param("1", "stdio", marks=pytest.mark.long),
        pytest.param("2", "stdio", marks=pytest.mark.long),
    ],
)
async def test_it_lists_calls_approves_streams_and_resumes(
    parley_model: ScriptedModel, tmp_path: Path, generation: str, transport: str
) -> None:
    modules = await fetched(f"The TypeScript client {generation}.x", *PACKAGES[generation])
    (tmp_path / "node_modules").symlink_to(modules)
    script = tmp_path / TOUR.name
    script.write_bytes(TOUR.read_bytes())
    parley_model.set_handler(reply_on_tour)
    async with HttpServer(parley_model, tmp_path / "home") as server:
        files = server.files
        where = ("http", server.url, server.token) if transport == "http" else ("stdio", *files.command)
        code, said, complained = await output_of(
            *("node", str(script), generation, *where), env=files.environ, cwd=server.work, seconds=RUN_SECONDS
        )

    assert code == 0, complained.decode()
    seen: dict[str, Any] = json.loads(said)
    assert {"codex", "conversationStream", "conversationRead"} <= set(seen["tools"])
    assert len(seen["asked"]) == 1
    assert seen["message"] == "".join(f"{piece} " for piece in range(20))
    assert len(seen["expected"]) > 20
    assert seen["positions"] == seen["expected"]
    if generation == "modern":
        assert (seen["version"], seen["ended"]["state"]) == ("2026-07-28", "deleted")
    assert seen["opened"] > 2  # some streams were interrupted or abandoned, and then resumed
    if transport == "stdio":
        assert seen["errors"] == []

"""Progress notifications during a long call."""

from __future__ import annotations

import asyncio

import pytest

from kit.builders.json import as_json
from parley.testing import HOLD, RawParley, ScriptedModel
from parley.wire.mcp import Progress


@pytest.mark.long
@pytest.mark.promises("codex.progress")
async def test_a_call_that_waits_for_its_model_reports_it_every_15_seconds(parley_model: ScriptedModel) -> None:
    parley_model.says("a", HOLD, "b")
    async with RawParley(parley_model) as parley:
        call = {"name": "codex", "arguments": {"prompt": "go"}, "_meta": {"progressToken": "p"}}
        parley.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        await parley_model.wait_until_held()

        async with asyncio.timeout(90):
            beats = [await _beat(parley), await _beat(parley)]
        parley_model.release()
        answer = await parley.expect(lambda message: message.get("id") == 1)

    assert beats == [
        as_json(Progress(progress_token="p", progress=2, message="working")),
        as_json(Progress(progress_token="p", progress=3, message="working")),
    ]
    assert answer["result"] == {"content": [{"type": "text", "text": "ab"}]}


async def _beat(parley: RawParley) -> object:
    while True:
        try:
            message = await parley.expect(lambda one: one.get("method") == Progress.METHOD)
        except TimeoutError:
            continue  # the timeout is shorter than the interval of the progress notifications
        if message["params"]["message"] == "working":
            return message["params"]

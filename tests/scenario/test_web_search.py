"""Searches of the web by the provider: the tool in requests, the items in the history, and the events."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from kit.clients.codex_calls import EVERY_API, events_in, speaking
from parley.testing import Data, ScriptedModel
from parley.testing.render import Api
from parley.wire.mcp import FULL_VERSION, PLAIN_VERSION

PAGE: Final = {"url": "https://a.example", "title": "A"}
USED: Final = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "cheese"}}
FOUND: Final = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [{"type": "web_search_result", **PAGE, "encrypted_content": "x"}],
}
SEARCHED: Final = {
    "type": "web_search_call",
    "id": "s1",
    "status": "completed",
    "action": {"type": "search", "query": "cheese", "sources": [{"type": "url", "url": "https://a.example"}]},
}
TOOL: Final[dict[Api, Any]] = {
    "responses": {"type": "web_search"},
    "anthropic": {"type": "web_search_20250305", "name": "web_search"},
}


def _searches(api: Api) -> list[Data]:
    if api == "responses":
        return [Data(json.dumps({"type": "response.output_item.done", "item": SEARCHED}))]
    return [
        Data(json.dumps(event))
        for index, block in enumerate((USED, FOUND), 100)
        for event in (
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_stop", "index": index},
        )
    ]


@pytest.mark.promises("model.web-search")
@pytest.mark.parametrize("version", [FULL_VERSION, PLAIN_VERSION])
@pytest.mark.parametrize("api", ["responses", "anthropic"])
async def test_a_search_is_shown_and_goes_back_unchanged(
    parley_model: ScriptedModel, api: Api, version: str
) -> None:
    parley_model.says(*_searches(api), "Cheese is good.")
    async with speaking(parley_model, api=api, version=version, config="web_search = true") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    title = "" if api == "responses" else "A"
    event = {
        "type": "web_search",
        "call_id": "s1",
        "query": "cheese",
        "results": [{"url": "https://a.example", "title": title}],
        "error": None,
    }
    shown = [one for one in events_in(messages) if one["type"] == "web_search"]
    assert shown == ([event] if version == FULL_VERSION else [])
    first, second = (request.body for request in parley_model.requests)
    assert first["tools"][-1] == TOOL[api]
    if api == "responses":
        assert SEARCHED in second["input"]
        assert first["include"] == ["web_search_call.action.sources"]
    else:
        said = second["messages"][1]["content"]
        assert said == [USED, FOUND, {"type": "text", "text": "Cheese is good."}]


@pytest.mark.promises("model.web-search")
@pytest.mark.parametrize("api", EVERY_API)
async def test_without_the_setting_no_request_offers_a_search(parley_model: ScriptedModel, api: Api) -> None:
    async with speaking(parley_model, api=api) as wire:
        wire.codex(1, "go")
        await wire.answer(1)

    assert "web_search" not in json.dumps(parley_model.requests[0].body["tools"])


@pytest.mark.promises("model.web-search")
async def test_a_search_that_failed_is_shown_with_its_error(parley_model: ScriptedModel) -> None:
    failed = {**FOUND, "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}}
    start = {"type": "content_block_start", "index": 100, "content_block": failed}
    parley_model.says(Data(json.dumps(start)), "Sorry.")
    async with speaking(parley_model, api="anthropic", version=FULL_VERSION, config="web_search = true") as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)

    (event,) = (one for one in events_in(messages) if one["type"] == "web_search")
    assert (event["query"], event["results"], event["error"]) == ("", [], "max_uses_exceeded")


@pytest.mark.promises("model.web-search")
async def test_openrouter_searches_and_its_citations_are_shown(parley_model: ScriptedModel) -> None:
    parley_model.dialect = "openrouter"
    citation = {"type": "url_citation", "url_citation": {**PAGE, "start_index": 0, "content": "x"}}
    delta = {"content": "good.", "annotations": [citation, {"type": "other"}, 5]}
    parley_model.says("Cheese is ", Data(json.dumps({"choices": [{"delta": delta}]})))
    config = f"""
    web_search = true
    model_provider = "openrouter"
    [model_providers.openrouter]
    base_url = "{parley_model.base_url}"
    """
    async with speaking(parley_model, version=FULL_VERSION, config=config) as wire:
        wire.codex(1, "go")
        messages = await wire.answer(1)
        wire.reply(2, "again")
        assert await wire.text(2) == "Done"

    first, second = (request.body for request in parley_model.requests)
    assert first["tools"][-1] == {"type": "openrouter:web_search"}
    assert second["messages"][3] == {"role": "assistant", "content": "Cheese is good."}
    shown = [one for one in events_in(messages) if one["type"] in ("web_search", "agent_message")]
    assert [one["type"] for one in shown] == ["agent_message", "web_search"]
    assert (shown[1]["query"], shown[1]["results"]) == ("", [PAGE])

"""Resources for clients whose role is below admin."""

from __future__ import annotations

from typing import Any

import pytest

from kit.servers.local_server import LocalClient, LocalServer
from parley.server.context import Principal, Role

LIST = "parley://conversations"


async def result(client: LocalClient, method: str, **params: Any) -> Any:
    answer = await client.answer_to(client.request(method, params))
    return answer.get("result") or answer["error"]["code"]


@pytest.mark.promises("resources.access")
async def test_a_principal_that_is_bound_to_a_conversation_finds_no_other(home: str) -> None:
    async with LocalServer(home) as server:
        mine, other = await server.create(), await server.create()
        client = await server.client(principal=Principal(name="guest", role=Role.OBSERVER, conversation=mine.id))
        listed = await result(client, "resources/list")
        overview = await result(client, "resources/read", uri=LIST)

        assert [one["uri"] for one in listed["resources"]] == [LIST, "parley://attention", f"{LIST}/{mine.id}"]
        assert mine.id in overview["contents"][0]["text"]
        assert other.id not in overview["contents"][0]["text"]
        for suffix in ("", "/json", "/diff"):
            assert "contents" in await result(client, "resources/read", uri=f"{LIST}/{mine.id}{suffix}")
            assert await result(client, "resources/read", uri=f"{LIST}/{other.id}{suffix}") == -32002

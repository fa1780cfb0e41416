"""`conversationSearch`: messages of all conversations that a client may see, page by page.

Tests `parley.server.tools.search`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kit.clients.http_client import HttpClient
from kit.clients.messages import failed
from kit.clients.reading import until_state
from kit.clients.wire_client import WireClient, speaking
from kit.servers.http_server import HttpServer
from parley.ports.store import SearchPage, SearchQuery
from parley.testing import ParleyProcess, ScriptedModel
from parley.wire.mcp import FULL_VERSION


async def search(client: WireClient, text: str, **arguments: Any) -> Any:
    return await client.value_of(client.call("conversationSearch", text=text, **arguments))


async def talk(client: WireClient, conversation: str, text: str, answer: str) -> None:
    client.model.says(answer)
    await client.say(conversation, text)
    await client.over(conversation)


@pytest.mark.promises("search.result", "search.pages")
async def test_messages_of_the_user_and_the_agent_are_found_the_newest_first(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        first, second = await client.create(), await client.create()
        await talk(client, first, "Where is the Needle?", "In the haystack")
        await talk(client, second, "And the hay?", "Around the NEEDLE, of course")
        await talk(client, first, "Thanks", "You are welcome")
        whole = await search(client, "needle")
        pages = [await search(client, "needle", limit=1)]
        while "next_cursor" in pages[-1]:
            pages.append(await search(client, "needle", limit=1, cursor=pages[-1]["next_cursor"]))

        newest, oldest = whole["messages"]
        assert newest == {
            "conversation_id": second,
            "title": "And the hay?",
            "seq": newest["seq"],
            "type": "agent_message",
            "at": newest["at"],
            "snippet": "Around the NEEDLE, of course",
            "start": 11,
            "end": 17,
        }
        assert oldest == {
            "conversation_id": first,
            "title": "Where is the Needle?",
            "seq": oldest["seq"],
            "type": "user_message",
            "at": oldest["at"],
            "snippet": "Where is the Needle?",
            "start": 13,
            "end": 19,
        }
        assert "next_cursor" not in whole
        assert [one for page in pages for one in page["messages"]] == whole["messages"]
        read = client.call("conversationRead", conversation_id=first, after=oldest["seq"] - 1, limit=1)
        [event] = (await client.value_of(read))["events"]
        assert (event["seq"], event["msg"]["type"]) == (oldest["seq"], "user_message")


@pytest.mark.promises("search.scope")
async def test_archived_and_other_conversations_are_left_out(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        first, second = await client.create(), await client.create()
        for conversation in (first, second):
            await talk(client, conversation, "needle", "Done")
        one = await search(client, "needle", conversation_id=first)
        await client.value_of(client.call("conversationArchive", conversation_id=first))
        listed = await search(client, "needle")
        archived = await search(client, "needle", conversation_id=first)

        assert [hit["conversation_id"] for hit in one["messages"]] == [first]
        assert [hit["conversation_id"] for hit in listed["messages"]] == [second]
        assert archived == one


@pytest.mark.promises("search.scope", "roles.bound")
async def test_a_client_with_one_conversation_finds_nothing_in_others(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        admin = await server.client()
        own, other = await admin.create(), await admin.create()
        for conversation in (own, other):
            await admin.say(conversation, "needle")
            await until_state(admin, conversation, "idle")
        bound = await server.client(token=await server.create_token("guest", "observer", conversation=own))
        everything = await admin.call("conversationSearch", text="needle", limit=1)

        assert await ids_of(admin) == [other, own]
        assert await ids_of(bound) == [own]
        assert await ids_of(bound, cursor=everything["next_cursor"]) in ([], [own])
        with pytest.raises(AssertionError, match="unknown_conversation"):
            await ids_of(bound, conversation_id=other)


@pytest.mark.promises("http.limits")
async def test_each_token_runs_two_searches_at_a_time(
    parley_model: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, waiting, go_on = list[str](), asyncio.Semaphore(0), asyncio.Semaphore(0)
    async with HttpServer(parley_model, tmp_path / "home") as server:
        context = server.server.core.context
        search, limit_of = context.conversations.search, context.searches.of

        async def held(query: SearchQuery) -> SearchPage:
            running.append(query.text)
            await go_on.acquire()
            return await search(query)

        def observed(principal: str) -> asyncio.Semaphore:
            waiting.release()
            return limit_of(principal)

        monkeypatch.setattr(context.conversations, "search", held)
        monkeypatch.setattr(context.searches, "of", observed)
        first, same = await server.client(), await server.client()
        other = await server.client(token=await server.create_token("other", "observer"))
        searches = [
            asyncio.ensure_future(client.call("conversationSearch", text=text))
            for client, text in ((first, "a"), (same, "a"), (first, "a"), (same, "a"), (other, "b"))
        ]
        for _ in searches:
            await waiting.acquire()
        begun = sorted(running)
        for _ in searches:
            go_on.release()
        found = await asyncio.gather(*searches)

    assert begun == ["a", "a", "b"]
    assert (sorted(running), found) == (["a"] * 4 + ["b"], [{"messages": []}] * 5)


async def ids_of(client: HttpClient, **arguments: Any) -> list[str]:
    page = await client.call("conversationSearch", text="needle", **arguments)
    return [one["conversation_id"] for one in page["messages"]]


@pytest.mark.promises("search.pages")
async def test_bad_searches_are_refused(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        for cursor in ("x", "", base64.urlsafe_b64encode(b"99999999999999999999").decode()):
            request = client.call("conversationSearch", text="a", cursor=cursor)
            assert await client.read() == failed(
                request,
                "Failed to parse arguments for conversationSearch: cursor was not issued by this server",
                code="bad_cursor",
            )
        for text in ("", "x" * 201):
            request = client.call("conversationSearch", text=text)
            answer = await client.read()
            assert answer["result"]["structuredContent"]["code"] == "bad_arguments"
    async with speaking(parley_model) as client:
        request = client.call("conversationSearch", text="a")
        answer = await client.read()
        assert answer["result"]["content"][0]["text"] == "Unknown tool 'conversationSearch'"


@pytest.mark.promises("search.result")
async def test_the_python_client_searches(parley_process: Callable[..., Awaitable[ParleyProcess]]) -> None:
    server = await parley_process()
    conversation = await server.create()
    await (await conversation.send("Where is the needle?")).result()
    page = await server.client.search("NEEDLE", limit=5)
    nothing = await server.client.search("hay", conversation=conversation.id)

    assert [one.snippet[one.start : one.end] for one in page.messages] == ["needle"]
    assert nothing.messages == ()

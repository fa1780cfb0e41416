"""`conversationsList`: latest activity first, page by page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kit.builders.records import settings_chosen
from kit.clients.messages import answered, refused
from kit.clients.wire_client import WireClient, speaking
from parley.conversation.log import Log
from parley.ports.store import Summary
from parley.stores.sqlite.store import SqliteStore
from parley.testing import HOLD, ScriptedModel
from parley.wire.ids import ConversationId
from parley.wire.mcp import FULL_VERSION


async def named(client: WireClient, text: str) -> str:
    """Create a conversation with one message, whose turn is over."""
    conversation = await client.create()
    await client.say(conversation, text)
    await client.over(conversation)
    return conversation


async def page(client: WireClient, **arguments: Any) -> Any:
    return await client.value_of(client.call("conversationsList", **arguments))


def entry(conversation: str, title: str) -> Any:
    return {"conversation_id": conversation, "title": title}


async def test_without_conversations_the_list_is_empty(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        request = client.call("conversationsList")
        listed = await client.read()
        nulls = client.call("conversationsList", limit=None, cursor=None, state=None)  # the same as no cursor

        assert listed == answered(request, {"conversations": []})
        assert await client.read() == answered(nulls, {"conversations": []})


async def test_the_latest_activity_comes_first(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        one = await named(client, "one")
        two = await named(client, "two")
        silent = await client.create()
        before = client.call("conversationsList")
        listed_before = await client.read()
        await client.say(one, "more")
        await client.over(one)
        after = client.call("conversationsList")
        listed_after = await client.read()

        assert listed_before == answered(
            before, {"conversations": [entry(silent, ""), entry(two, "two"), entry(one, "one")]}
        )
        assert listed_after == answered(
            after, {"conversations": [entry(one, "one"), entry(silent, ""), entry(two, "two")]}
        )


@pytest.mark.promises("list.pages")
async def test_pages_follow_each_other_to_the_end(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversations = [await client.create() for _ in range(7)]
        first = await page(client, limit=3)
        second = await page(client, limit=3, cursor=first["next_cursor"])
        third = await page(client, limit=3, cursor=second["next_cursor"])
        whole = await page(client, limit=7)

        latest_first = [entry(conversation, "") for conversation in reversed(conversations)]
        assert first == {"conversations": latest_first[:3], "next_cursor": first["next_cursor"]}
        assert second == {"conversations": latest_first[3:6], "next_cursor": second["next_cursor"]}
        assert third == {"conversations": latest_first[6:]}
        assert whole == {"conversations": latest_first}


@pytest.mark.promises("list.pages")
async def test_fifty_conversations_are_listed_by_default(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversations = [await client.create() for _ in range(53)]
        first = await page(client)
        second = await page(client, cursor=first["next_cursor"])
        more = await page(client, limit=60)

        latest_first = [entry(conversation, "") for conversation in reversed(conversations)]
        assert first == {"conversations": latest_first[:50], "next_cursor": first["next_cursor"]}
        assert second == {"conversations": latest_first[50:]}
        assert more == {"conversations": latest_first}


@pytest.mark.promises("list.pages")
async def test_a_conversation_that_becomes_active_between_two_pages_is_listed_once(
    parley_model: ScriptedModel,
) -> None:
    async with speaking(parley_model) as client:
        conversations = [await client.create() for _ in range(6)]
        first = await page(client, limit=3)
        await client.say(conversations[0], "I am back")  # the conversation was on the second page
        await client.over(conversations[0])
        await client.say(conversations[5], "so am I")  # the conversation was on the first page
        await client.over(conversations[5])
        added = await client.create()
        second = await page(client, limit=3, cursor=first["next_cursor"])

        assert first["conversations"] == [entry(one, "") for one in reversed(conversations[3:])]
        assert second == {"conversations": [entry(conversations[2], ""), entry(conversations[1], "")]}
        assert added not in [one["conversation_id"] for one in second["conversations"]]


@pytest.mark.promises("list.result")
async def test_a_title_is_the_first_line_of_the_first_message(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        for text, title in (
            ("Fix the parser", "Fix the parser"),
            ("First line\nsecond line", "First line"),
            ("\n\n  Behind blank lines  \nand more", "Behind blank lines"),
            ("x" * 79 + "äöü", "x" * 79 + "ä"),
            ("\x1b[31mRed\x07\0\u2028alert", "[31mRed   alert"),
            (" ", ""),
        ):
            conversation = await named(client, text)

            assert (await page(client, limit=1))["conversations"] == [entry(conversation, title)]


async def test_the_title_is_all_the_text_of_the_first_message_and_stays(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        content = [{"type": "text", "text": "Fix "}, {"type": "text", "text": "it\nnow"}]
        request = client.call("conversationSendMessage", conversation_id=conversation, content=content)
        assert await client.value_of(request) == {"status": "ok"}
        await client.over(conversation)
        await client.say(conversation, "Second")
        await client.over(conversation)

        assert await page(client) == {"conversations": [entry(conversation, "Fix it")]}


async def test_a_codex_session_is_listed_like_any_other(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        created = await client.create()
        call = client.call("codex", prompt="Do it")
        configured, *_ = await client.until_answer(call)

        session = configured["params"]["msg"]["session_id"]
        assert await page(client) == {"conversations": [entry(session, "Do it"), entry(created, "")]}


@pytest.mark.promises("versions.full")
async def test_lists_have_more_fields_at_the_newest_version(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model, version=FULL_VERSION) as client:
        parley_model.says("Wait", HOLD)
        conversation = await client.create()
        await client.say(conversation, "Go")
        await parley_model.wait_until_held()
        running = await page(client)
        status = await client.value_of(client.call("conversationStatus", conversation_id=conversation))
        parley_model.release()
        await client.over(conversation)
        idle = await page(client)
        status_after = await client.value_of(client.call("conversationStatus", conversation_id=conversation))

        def listed(state: str, updated_at: str) -> Any:
            ended = state == "idle"
            more: dict[str, Any] = {"updated_at": updated_at, "cwd": str(client.raw.work), "state": state}
            more |= {"unread": ended, "failed": False}
            return {"conversations": [{**entry(conversation, "Go"), **more}]}

        assert running == listed("running", status["updated_at"])
        assert idle == listed("idle", status_after["updated_at"])


async def test_a_cursor_that_is_not_ours_is_refused(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        await client.create()
        for cursor in ("", "nonsense", "WzFd", "bnVsbA==", "äöü", "W251bGwsIngiXQ=="):
            request = client.call("conversationsList", cursor=cursor)

            assert await client.read() == refused(
                request, "Failed to parse arguments for conversationsList: cursor was not issued by this server"
            )


@pytest.mark.promises("list.pages")
async def test_a_limit_of_none_or_far_too_many_is_refused(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        for limit in (0, 10_001, 2**63 - 1, 10**30):
            request = client.call("conversationsList", limit=limit)

            assert await client.read() == refused(
                request,
                "Failed to parse arguments for conversationsList: "
                f"invalid value: integer `{limit}`, expected an integer, at least 1 and at most 10000 (limit)",
            )
        assert await page(client, limit=10_000) == {"conversations": []}


@pytest.mark.promises("list.clock")
async def test_the_newest_is_listed_first_also_after_the_clock_was_set_back(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    store = SqliteStore(str(home))
    tomorrow = ConversationId(str(uuid4()))
    summary = Summary(title="Tomorrow", cwd="/", model="m", state="idle", updated_at=time.time() + 86_400)
    log = Log()
    log.append((settings_chosen(),), at=summary.updated_at)
    await store.create(tomorrow, log.entries, summary)
    await store.close()

    async with speaking(parley_model, home=home) as client:
        first = await client.create()
        second = await named(client, "second")
        async with speaking(parley_model, home=home) as other:
            third = await named(other, "third")
            created = [one["conversation_id"] for one in (await page(client))["conversations"]]
        await client.say(tomorrow, "again")
        await client.over(tomorrow)
        after = [one["conversation_id"] for one in (await page(client))["conversations"]]

    assert created == [third, second, first, tomorrow]
    assert after == [tomorrow, third, second, first]

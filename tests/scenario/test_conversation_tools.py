"""Tools for whole conversations: rename, list, archive, fork, delete."""

from __future__ import annotations

from typing import Any, Final
from uuid import uuid4

import pytest

from kit.clients.messages import answered, failed
from kit.clients.wire_client import WireClient, speaking
from parley.client.errors import ToolFailed
from parley.testing import HOLD, ParleyProcess, ScriptedModel
from parley.wire.mcp import FULL_VERSION
from parley.wire.notifications import StreamDisconnected

OK: Final = {"status": "ok"}
LATER: Final = ("conversationRename", "conversationDelete", "conversationArchive", "conversationFork")


async def value(client: WireClient, tool: str, **arguments: Any) -> Any:
    return await client.value_of(client.call(tool, **arguments))


async def titles(client: WireClient, **arguments: Any) -> list[str]:
    found = await value(client, "conversationsList", **arguments)
    return [one["title"] for one in found["conversations"]]


async def events(client: WireClient, conversation: str) -> list[Any]:
    page = await value(client, "conversationRead", conversation_id=conversation)
    return [(one["seq"], one["msg"]) for one in page["events"]]


def said_by_user(model: ScriptedModel) -> list[str]:
    """Return the user's messages in the last model request, without the messages that the server adds."""
    messages = [one for one in model.requests[-1].body["messages"] if one["role"] == "user"]
    return [one["content"] for one in messages if not str(one["content"]).startswith("<")]


async def test_none_of_them_knows_a_conversation_that_does_not_exist(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        for tool in LATER:
            more = {"title": "x"} if tool == "conversationRename" else {}
            request = client.call(tool, conversation_id=str(uuid4()), **more)

            assert await client.read() == failed(request, "Conversation does not exist"), tool


# --- names -------------------------------------------------------------------------------


@pytest.mark.promises("rename.result")
async def test_a_title_that_was_given_stays_whatever_is_said(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create_with_turns("Fix the parser")
        assert await value(client, "conversationRename", conversation_id=conversation, title="Parser") == OK
        renamed = await titles(client)
        await client.say(conversation, "And now?")
        await client.over(conversation)

        assert (renamed, await titles(client)) == (["Parser"], ["Parser"])
        assert (await value(client, "conversationStatus", conversation_id=conversation))["title"] == "Parser"


@pytest.mark.promises("rename.result")
async def test_a_title_can_be_given_while_a_turn_runs(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        parley_model.says("Wait", HOLD, "!")
        await client.say(conversation, "go")
        await parley_model.wait_until_held()
        title = "Patience\nis a virtue"
        assert await value(client, "conversationRename", conversation_id=conversation, title=title) == OK
        parley_model.release()
        await client.over(conversation)

        assert await titles(client) == ["Patience is a virtue"]


async def test_a_title_that_is_too_long_changes_nothing(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create_with_turns("one")
        request = client.call("conversationRename", conversation_id=conversation, title="x" * 1001)
        answer = await client.read()

        assert answer == failed(
            request,
            "Failed to parse arguments for conversationRename: "
            f'invalid value: string "{"x" * 100}…", expected a string of at most 1000 characters (title)',
        )
        assert await titles(client) == ["one"]


# --- finding -----------------------------------------------------------------------------


@pytest.mark.promises("list.filters")
async def test_a_list_has_what_all_filters_apply_to(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        parley_model.says("Es wird Größe 100%_\\ sein")
        await client.create_with_turns("Measure")
        parley_model.says("Nothing")
        await client.create_with_turns("größe", "message")
        elsewhere = str(client.work / "deeper")
        answer = await value(client, "conversationCreate", prompt="", model="scripted-model", cwd=elsewhere)
        parley_model.says("Wait", HOLD)
        await client.say(answer["conversation_id"], "running elsewhere")
        await parley_model.wait_until_held()

        here = str(client.work)
        assert await titles(client, text="GRÖSSE") == ["größe", "Measure"]
        assert await titles(client, text="GRÖßE") == ["größe", "Measure"]
        assert await titles(client, text="100%_\\") == ["Measure"]
        assert await titles(client, text="type") == []
        assert await titles(client, cwd=here) == ["größe", "Measure"]
        assert await titles(client, cwd=elsewhere) == ["running elsewhere"]
        assert await titles(client, state="running") == ["running elsewhere"]
        assert await titles(client, state="idle", cwd=elsewhere) == []
        assert await titles(client, state="asking") == []
        parley_model.release()


@pytest.mark.promises("archive.result", "list.filters")
async def test_archived_conversations_are_listed_separately_and_work_as_before(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        kept, away = await client.create_with_turns("kept"), await client.create_with_turns("away")
        assert await value(client, "conversationArchive", conversation_id=away, archived=True) == OK
        assert await value(client, "conversationArchive", conversation_id=away) == OK
        assert (await titles(client), await titles(client, archived=True)) == (["kept"], ["away"])
        await client.say(away, "still there?")
        await client.over(away)
        assert await titles(client) == ["kept"]
        assert await value(client, "conversationArchive", conversation_id=away, archived=False) == OK

        assert (await titles(client), await titles(client, archived=True)) == (["away", "kept"], [])
        assert kept != away


# --- removing ----------------------------------------------------------------------------


@pytest.mark.promises("delete.result")
async def test_a_deleted_conversation_is_deleted_for_all_clients(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation, other = await client.create_with_turns("secret"), await client.create_with_turns("other")
        await client.until_answer(client.stream(conversation))
        assert (await client.read())["method"] == "notifications/initial_state"
        request = client.call("conversationDelete", conversation_id=conversation)
        received = sorted(await client.take(2), key=lambda message: "method" in message)

        assert received == [
            answered(request, OK),
            {
                "jsonrpc": "2.0",
                "method": StreamDisconnected.METHOD,
                "params": {"_meta": {"conversationId": conversation}, "reason": "Conversation deleted"},
            },
        ]
        assert await titles(client) == ["other"]
        request = client.call("conversationRead", conversation_id=conversation)
        assert await client.read() == failed(request, "Conversation does not exist")
        await client.say(other, "go on")
        await client.over(other)


@pytest.mark.promises("delete.result")
async def test_a_conversation_with_a_running_turn_cannot_be_deleted(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create()
        parley_model.says("Wait", HOLD)
        await client.say(conversation, "go")
        await parley_model.wait_until_held()
        request = client.call("conversationDelete", conversation_id=conversation)
        assert await client.read() == failed(request, "A turn is running")
        parley_model.release()
        await client.over(conversation)

        assert await value(client, "conversationDelete", conversation_id=conversation) == OK
        assert await titles(client) == []


# --- copying -----------------------------------------------------------------------------


@pytest.mark.promises("fork.result")
async def test_a_fork_continues_from_a_message_and_leaves_the_other_alone(parley_model: ScriptedModel) -> None:
    first, second = str(uuid4()), str(uuid4())
    async with speaking(parley_model, version=FULL_VERSION) as client:
        conversation = await client.create()
        for name, text in ((first, "one"), (second, "two")):
            await client.value_of(client.message(conversation, text, message_id=name))
            await client.over(conversation)
        before = await events(client, conversation)
        whole = (await value(client, "conversationFork", conversation_id=conversation))["conversation_id"]
        arguments = {"conversation_id": conversation, "at_message_id": first}
        part = (await value(client, "conversationFork", **arguments))["conversation_id"]

        forked = await events(client, part)
        assert await events(client, whole) == before
        assert 0 < len(forked) < len(before)
        assert forked == before[: len(forked)]
        await client.say(part, "three")
        await client.over(part)
        assert said_by_user(parley_model) == ["one", "three"]
        assert await events(client, conversation) == before
        assert await events(client, whole) == before


@pytest.mark.promises("fork.failure")
async def test_a_fork_needs_a_message_whose_turn_is_over(parley_model: ScriptedModel) -> None:
    async with speaking(parley_model) as client:
        conversation = await client.create_with_turns("one")
        arguments = {"conversation_id": conversation, "at_message_id": str(uuid4())}
        request = client.call("conversationFork", **arguments)
        assert await client.read() == failed(request, "Message does not exist")
        parley_model.says("Wait", HOLD)
        await client.say(conversation, "two")
        await parley_model.wait_until_held()
        request = client.call("conversationFork", conversation_id=conversation)

        assert await client.read() == failed(request, "A turn is running")
        assert await titles(client) == ["one"]
        parley_model.release()


# --- by the Python client ----------------------------------------------------------------


async def test_the_python_client_has_them_all(parley_model: ScriptedModel) -> None:
    async with ParleyProcess(parley_model) as parley:
        conversation = await parley.create()
        async with conversation.stream() as stream:
            sent = await conversation.send("one")
            await stream.turn()
        await conversation.rename("First")
        forked = await conversation.fork(at_message_id=sent.message_id)
        await conversation.archive()
        listed = [
            await parley.client.list(text="ONE", cwd=str(parley.work), state="idle", archived=here)
            for here in (False, True)
        ]
        assert [[one.conversation_id for one in page.conversations] for page in listed] == [
            [forked.id],
            [conversation.id],
        ]
        await conversation.archive(archived=False)
        await conversation.delete()
        remaining = (await parley.client.list()).conversations

        assert [one.conversation_id for one in remaining] == [forked.id]
        with pytest.raises(ToolFailed, match="Conversation does not exist"):
            await conversation.status()

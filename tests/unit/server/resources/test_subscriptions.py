"""Clients are notified when resources change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kit.builders.entries import FIRST
from kit.servers.local_server import LocalClient, LocalServer
from kit.servers.slow_store import SlowStore
from parley.errors import StoreFailed
from parley.ports.store import ConversationPage, Query
from parley.server.context import Principal, Role
from parley.server.resources.subscriptions import MAX_SUBSCRIPTIONS
from parley.stores.memory import MemoryStore
from parley.wire.ids import ConversationId
from parley.wire.resources import ResourceListChanged, ResourceUpdated

LIST, ATTENTION = "parley://conversations", "parley://attention"
UPDATED, LIST_CHANGED = ResourceUpdated.METHOD, ResourceListChanged.METHOD


async def result(client: LocalClient, method: str, **params: Any) -> Any:
    answer = await client.answer_to(client.request(method, params))
    return answer["result"] if "result" in answer else answer["error"]["data"]["code"]


async def subscribe(client: LocalClient, *uris: str) -> None:
    for uri in uris:
        assert await result(client, "resources/subscribe", uri=uri) == {}


def updates(client: LocalClient) -> list[str]:
    return [one["params"]["uri"] for one in client.messages if one.get("method") == UPDATED]


async def turn(server: LocalServer, client: LocalClient, conversation: ConversationId) -> None:
    """Run a complete turn."""
    await client.say(conversation, 0)
    await server.settle_down()
    assert server.entry_types(conversation)[-1] == "turn_ended"


@pytest.mark.promises("resources.subscribe", "resources.coalesced")
async def test_a_turn_is_one_notification_at_once_and_one_later(home: str) -> None:
    async with LocalServer(home) as server:
        client, conversation = await server.client(), await server.create()
        uri = f"{LIST}/{conversation.id}"
        await subscribe(client, uri, uri, f"{uri}/diff")
        assert updates(client) == []

        await turn(server, client, conversation.id)
        assert updates(client) == [uri]

        await client.wait_for_message(UPDATED, 2)
        await turn(server, client, conversation.id)
        assert updates(client) == [uri, uri]


@pytest.mark.promises("resources.coalesced")
async def test_a_client_that_does_not_read_gets_one_notification_when_it_reads_again(home: str) -> None:
    async with LocalServer(home) as server:
        client, other, conversation = await server.client(), await server.client(), await server.create()
        uri = f"{LIST}/{conversation.id}"
        await subscribe(client, uri)
        client.outbox.writable = False
        await turn(server, other, conversation.id)
        await turn(server, other, conversation.id)
        assert updates(client) == []

        client.outbox.read_on()
        await server.settle_down()

        assert updates(client) == [uri]


@pytest.mark.promises("resources.subscribe", "resources.left")
async def test_the_list_changes_with_each_conversation_and_a_deletion_is_notified(home: str) -> None:
    async with LocalServer(home) as server:
        first, second = await server.client(), await server.client()
        await subscribe(first, LIST)
        conversation = await server.create()
        assert updates(first) == [LIST]
        uri = f"{LIST}/{conversation.id}"
        await subscribe(second, uri, LIST)
        assert await second.value_of(second.call("conversationDelete", conversation_id=conversation.id))

        assert sorted(updates(second)) == [LIST, uri]


@pytest.mark.promises("resources.subscribe", "resources.attention")
async def test_a_mark_is_notified_to_the_principal_that_made_it_alone(home: str) -> None:
    async with LocalServer(home) as server:
        others = [Principal(name="phone", role=Role.OBSERVER, token_id=one) for one in ("a", "b")]
        client, first, second = await server.client(), *[await server.client(principal=one) for one in others]
        conversation = await server.create()
        await server.after(1.0)  # turns that end at time 0 count as read
        await turn(server, client, conversation.id)
        for one in (client, first, second):
            await subscribe(one, ATTENTION)
        again = await server.client(principal=others[0])
        mark = again.call("conversationMarkRead", conversation_id=conversation.id, seq=conversation.log.durable)
        assert await again.value_of(mark) == {"status": "ok"}

        assert [updates(one) for one in (client, first, second)] == [[], [ATTENTION], []]
        contents = [await result(one, "resources/read", uri=ATTENTION) for one in (client, first, second)]
        listed = [conversation.id in one["contents"][0]["text"] for one in contents]
        assert listed == [True, False, True]


@pytest.mark.promises("resources.list-changed")
async def test_a_client_that_listed_resources_is_notified_when_the_list_changes(home: str) -> None:
    async with LocalServer(home) as server:
        client, other = await server.client(), await server.client()
        conversation = await server.create()
        assert (await result(client, "resources/list"))["resources"]
        watching = len(server.conversations._deps.activity._watchers)
        await result(client, "resources/list")
        assert len(server.conversations._deps.activity._watchers) == watching == 1
        assert client.number_of(LIST_CHANGED) == 0

        await other.value_of(other.call("conversationRename", conversation_id=conversation.id, title="x"))

        assert (client.number_of(LIST_CHANGED), other.number_of(LIST_CHANGED)) == (1, 0)


@pytest.mark.promises("resources.unsubscribe", "resources.left")
async def test_nothing_follows_the_end_of_a_subscription_or_of_the_client(home: str) -> None:
    async with LocalServer(home) as server:
        client, gone = await server.client(), await server.client()
        conversation = await server.create()
        uri = f"{LIST}/{conversation.id}"
        for one in (client, gone):
            await subscribe(one, uri, LIST)
            await result(one, "resources/list")
        assert await result(client, "resources/unsubscribe", uri=uri) == {}
        assert await result(client, "resources/unsubscribe", uri=uri) == {}
        gone.leave()
        assert await result(client, "resources/unsubscribe", uri=LIST) == {}

        await turn(server, client, conversation.id)

        assert (updates(client), updates(gone)) == ([], [])
        assert not conversation.is_watched
        assert gone.connection.session._connection.on_leave == {}
        client.leave()
        assert not server.conversations._deps.activity.is_watched


@pytest.mark.promises("resources.access")
async def test_a_bound_principal_hears_of_its_conversation_alone(home: str) -> None:
    async with LocalServer(home) as server:
        mine, other = await server.create(), await server.create()
        guest = Principal(name="guest", role=Role.OBSERVER, conversation=mine.id)
        bound, client = await server.client(principal=guest), await server.client()
        await subscribe(bound, LIST)
        assert await result(bound, "resources/subscribe", uri=f"{LIST}/{other.id}") == "unknown_resource"

        await turn(server, client, other.id)
        assert updates(bound) == []
        await turn(server, client, mine.id)
        assert updates(bound) == [LIST]


@pytest.mark.promises("resources.left")
async def test_one_client_has_a_limited_number_of_subscriptions(home: str) -> None:
    async with LocalServer(home) as server:
        client, conversation = await server.client(), await server.create()
        subscriptions = [f"{LIST}/{(await server.create()).id}" for _ in range(MAX_SUBSCRIPTIONS)]
        await subscribe(client, *subscriptions)

        uri = f"{LIST}/{conversation.id}"
        assert await result(client, "resources/subscribe", uri=uri) == "too_many_subscriptions"
        await result(client, "resources/unsubscribe", uri=subscriptions[0])
        await subscribe(client, uri)


@pytest.mark.promises("resources.coalesced")
async def test_a_client_that_connects_again_is_notified_of_everything(home: str) -> None:
    async with LocalServer(home) as server:
        client, conversation = await server.client(), await server.create()
        uri = f"{LIST}/{conversation.id}"
        await subscribe(client, uri, LIST)
        await result(client, "resources/list")

        client.connection.restart_streams({})

        assert sorted(updates(client)) == [LIST, uri]
        assert client.number_of(LIST_CHANGED) == 1


class UnsearchableStore(MemoryStore):
    """A store that fails the first search."""

    has_failed = False

    async def find(self, query: Query) -> ConversationPage:
        if query.limit == 1 and not self.has_failed:
            self.has_failed = True
            raise StoreFailed("no")
        return await super().find(query)


@pytest.mark.promises("resources.list-changed")
async def test_a_list_that_could_not_be_watched_is_watched_from_the_next_request_on(home: str) -> None:
    async with LocalServer(home, store=UnsearchableStore()) as server:
        client = await server.client()
        assert await result(client, "resources/list") == "store_failed"
        assert not client.connection.subscriptions.has_listed
        await result(client, "resources/list")

        await server.create()

        assert client.number_of(LIST_CHANGED) == 1


@pytest.mark.promises("resources.list-changed")
async def test_an_unknown_conversation_changes_no_list(home: str) -> None:
    async with LocalServer(home) as server:
        client = await server.client()
        await result(client, "resources/list")

        await client.answer_to(client.call("conversationStatus", conversation_id=FIRST))

        assert client.number_of(LIST_CHANGED) == 0


class SlowlyReadStore(SlowStore):
    """A store that reads conversations when `may_read` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_read = asyncio.Event()

    async def read(self, *args: Any, **options: Any) -> Any:
        await self.may_read.wait()
        return await super().read(*args, **options)


@pytest.mark.promises("resources.left")
async def test_a_subscription_that_begins_after_its_client_has_left_is_not_counted(home: str) -> None:
    store = SlowlyReadStore()
    async with LocalServer(home, store=store) as server:
        conversation_id = (await server.create()).id
    async with LocalServer(home, store=store) as server:
        client = await server.client()
        client.request("resources/subscribe", {"uri": f"{LIST}/{conversation_id}"})
        await server.settle_down()
        assert sum(server.context.subscribed.values()) == 1
        client.leave()
        store.may_read.set()
        await server.settle_down()

        assert sum(server.context.subscribed.values()) == 0

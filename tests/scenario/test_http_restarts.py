"""HTTP sessions after a restart of the server (`parley.server.http.session_state`): they need no `initialize`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kit.clients.http_client import HttpClient
from kit.clients.http_events import last_id_of, logged, until_idle, until_seen
from kit.clients.requests import ping, pong, request
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.servers.resident_process import ResidentProcess
from kit.system.commands import PATIENCE_SECONDS
from parley.app.http_choice import HttpChoice
from parley.server.http.session_state import session_digest
from parley.server.http.sessions import USE_SECONDS
from parley.testing import HOLD, ScriptedModel

TOKEN = "t" * 32


class Restarted:
    """A server that can be started again on the same home, and clients that go with it."""

    def __init__(self, model: ScriptedModel, home: Path) -> None:
        self._model, self._home = model, home

    def __call__(self, config: str = "", token: str = TOKEN) -> HttpServer:
        return HttpServer(self._model, self._home, config=config, choice=HttpChoice(token=token))


@pytest.fixture
def serving(parley_model: ScriptedModel, tmp_path: Path) -> Restarted:
    return Restarted(parley_model, tmp_path / "home")


@pytest_asyncio.fixture
async def client() -> AsyncIterator[HttpClient]:
    """A client that outlives its server."""
    async with HttpClient("", token=TOKEN, capabilities={"elicitation": {}}) as client:
        yield client


async def begin(client: HttpClient, server: HttpServer) -> None:
    client.url = server.url
    await client.initialize()


@pytest.mark.promises("http.restart")
async def test_streams_go_on_after_a_restart_with_every_event_once(
    serving: Restarted, client: HttpClient, parley_model: ScriptedModel
) -> None:
    async with serving() as server:
        await begin(client, server)
        conversations = [await client.create() for _ in range(2)]
        for conversation in conversations:
            await client.call("conversationStream", conversation_id=conversation)
        parley_model.says("Before.")
        async with client.stream() as stream:
            await client.say(conversations[0], "one")
            await stream.hears("task_complete")
            before = list(stream.events)
        parley_model.says("Missed.")
        await client.say(conversations[1], "two")
        await until_idle(client, conversations[1])
    async with serving() as server:
        client.url = server.url
        parley_model.says("After.")
        async with client.stream(Last_Event_ID=last_id_of(before)) as stream:
            await client.say(conversations[0], "three")
            for conversation in conversations:
                await until_idle(client, conversation)
                await until_seen(stream, before, conversation, await logged(client, conversation))

    assert not [one for one in (*before, *stream.events) if "disconnected" in str(one.message.get("method"))]


@pytest.mark.promises("http.restart")
async def test_subscriptions_go_on_after_a_restart(serving: Restarted, client: HttpClient) -> None:
    async with serving() as server:
        await begin(client, server)
        conversations = [await client.create() for _ in range(3)]
        uris = [f"parley://conversations/{conversation}" for conversation in conversations]
        for uri in uris:
            await client.post(request(1, "resources/subscribe", {"uri": uri}))
        await client.post(request(2, "resources/unsubscribe", {"uri": uris[1]}))
        await client.post(request(3, "resources/list"))
        await client.call("conversationDelete", conversation_id=conversations[2])
    async with serving() as server:
        client.url = server.url
        async with client.stream() as stream:
            await stream.hears("notifications/resources/list_changed")  # a new stream is told of everything
            stream.events.clear()
            await client.call("conversationRename", conversation_id=conversations[0], title="New")
            told = [await stream.hears("notifications/resources/updated")]
            told.append(await stream.hears("notifications/resources/list_changed"))

    assert told[0]["params"]["uri"] == uris[0]
    assert {one.message["params"].get("uri", uris[0]) for one in stream.events} == {uris[0]}


@pytest.mark.promises("http.restart")
@pytest.mark.child_process
async def test_a_session_goes_on_after_the_server_was_killed(
    client: HttpClient, parley_model: ScriptedModel, tmp_path: Path
) -> None:
    env = {"PARLEY_SERVE_TOKEN": TOKEN}
    parley_model.says("The first half, ", HOLD)
    async with ResidentProcess(parley_model, tmp_path / "home", env=env) as resident:
        client.url = resident.description["url"]
        await client.initialize()
        conversation = await client.create()
        await client.call("conversationStream", conversation_id=conversation)
        async with client.stream() as stream:
            await client.say(conversation, "go")
            await stream.hears("agent_message_delta")
            before = list(stream.events)
        resident.process.kill()
        await resident.process.wait()
    async with ResidentProcess(parley_model, tmp_path / "home", env=env) as resident:
        client.url = resident.description["url"]
        async with client.stream(Last_Event_ID=last_id_of(before)) as stream:
            await until_idle(client, conversation)
            await until_seen(stream, before, conversation, await logged(client, conversation))


@pytest.mark.promises("http.restart")
async def test_a_call_and_its_approval_go_on_after_a_restart(
    serving: Restarted, client: HttpClient, parley_model: ScriptedModel
) -> None:
    parley_model.says(sh("c1", "touch made"))
    async with serving() as server:
        await begin(client, server)
        async with client.codex("go", cwd=str(server.work), **{"approval-policy": "untrusted"}) as stream:
            asked = await stream.hears("elicitation/create")
            last_id = last_id_of(stream.events)
    parley_model.says("Done.")
    async with serving() as server:
        client.url = server.url
        async with client.stream(Last_Event_ID=last_id) as stream:
            again = await stream.hears("elicitation/create")
            late = await client.post({"jsonrpc": "2.0", "id": asked["id"], "result": {"decision": "denied"}})
            await client.post({"jsonrpc": "2.0", "id": again["id"], "result": {"decision": "approved"}})
            answer = (await stream.rest())[-1]
        was_made = (server.work / "made").exists()

    assert asked["id"] != again["id"]  # an answer to the first one must not count for another question
    assert (late.status, was_made) == (202, True)
    assert answer["result"]["content"][0]["text"] == "Done."


@pytest.mark.promises("http.restart", "http.session")
async def test_a_deleted_or_foreign_session_does_not_come_back(serving: Restarted, client: HttpClient) -> None:
    async with serving() as server:
        await begin(client, server)
        deleted = client.session_id
        assert (await client.send("DELETE")).status == 204
        client.session_id = None
        await client.initialize()
    async with serving(token="u" * 32) as server:
        stranger = await server.client(token="u" * 32)
        stranger.session_id = client.session_id

        assert (await stranger.post(ping(1))).status == 404
    async with serving() as server:
        client.url = server.url
        own = await client.post(ping(1))
        client.session_id = deleted

        assert (own.status, (await client.post(ping(1))).status) == (200, 404)


@pytest.mark.promises("http.restart")
async def test_a_session_that_has_expired_does_not_come_back(serving: Restarted, client: HttpClient) -> None:
    async with serving() as server:
        await begin(client, server)
        assert client.session_id is not None
    async with serving() as server:
        client.url = server.url
        found = await server.server.store.session(session_digest(client.session_id))
        assert found is not None
        server.service.sessions._wall_clock = lambda: found.used_at + 30 * 60 + USE_SECONDS + 1
        late = await client.post(ping(1))
        server.service.sessions._wall_clock = lambda: found.used_at + 30 * 60
        in_time = await client.post(ping(1))

    assert (late.status, in_time.status, in_time.json) == (404, 200, pong(1))


@pytest.mark.promises("http.restart")
async def test_requests_that_come_together_after_a_restart_find_one_session(
    serving: Restarted, client: HttpClient
) -> None:
    async with serving() as server:
        await begin(client, server)
    async with serving() as server:
        client.url = server.url
        replies = await asyncio.gather(*(client.post(ping(number)) for number in range(8)))

        assert [reply.json for reply in replies] == [pong(number) for number in range(8)]
        assert len(server.service.sessions) == 1


async def test_the_use_of_a_session_is_stored_now_and_then(serving: Restarted, client: HttpClient) -> None:
    async with serving() as server:
        await begin(client, server)
        assert client.session_id is not None
        sessions, store, digest = server.service.sessions, server.server.store, session_digest(client.session_id)
        first = await store.session(digest)
        assert first is not None
        later = first.used_at + USE_SECONDS
        sessions._wall_clock = lambda: later
        await client.post(ping(1))
        await sessions._store_uses()
        used = await store.session(digest)
        assert used is not None
        assert first.used_at < later - PATIENCE_SECONDS < used.used_at <= later
        much_later = later + 31 * 60 + 2 * USE_SECONDS
        sessions._wall_clock = lambda: much_later
        sessions._sessions[client.session_id].stored_at = much_later
        await sessions._store_uses()

        assert await store.session(digest) is None

"""HTTP sessions after a restart of the server (`parley.server.http.session_state`): they need no `initialize`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import pytest
import pytest_asyncio
from msgspec.structs import replace

from kit.clients.http_client import HttpClient
from kit.clients.http_events import last_id_of, logged, until_seen
from kit.clients.reading import until_state
from kit.clients.requests import ping, pong, request, tool
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.servers.resident_process import ResidentProcess
from kit.system.commands import TIMEOUT_SECONDS
from parley.app.http_choice import HttpChoice
from parley.errors import OwnerUnresponsive, ShuttingDown, StoreFailed, Unreadable
from parley.ports.store import StoredSession
from parley.runtime.conversation import Conversation
from parley.server.http import session_state
from parley.server.http.session_state import SessionState, decode_state, encode_state, session_digest
from parley.server.http.sessions import USE_SECONDS
from parley.testing import HOLD, ScriptedModel
from parley.wire.ids import ConversationId

TOKEN = "t" * 32


class Restarted:
    """A server that can be restarted on the same home, and its clients."""

    def __init__(self, model: ScriptedModel, home: Path) -> None:
        self._model, self._home = model, home

    def __call__(self, config: str = "", token: str = TOKEN) -> HttpServer:
        return HttpServer(self._model, self._home, config=config, choice=HttpChoice(token=token))


@pytest.fixture
def serving(parley_model: ScriptedModel, tmp_path: Path) -> Restarted:
    return Restarted(parley_model, tmp_path / "home")


@pytest_asyncio.fixture
async def client() -> AsyncIterator[HttpClient]:
    """Yield a client that outlives its server."""
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
            await stream.wait_for_message("task_complete")
            before = list(stream.events)
        parley_model.says("Missed.")
        await client.say(conversations[1], "two")
        await until_state(client, conversations[1], "idle")
    async with serving() as server:
        client.url = server.url
        parley_model.says("After.")
        async with client.stream(Last_Event_ID=last_id_of(before)) as stream:
            await client.say(conversations[0], "three")
            for conversation in conversations:
                await until_state(client, conversation, "idle")
                await until_seen(stream, before, conversation, await logged(client, conversation))

    assert not [one for one in (*before, *stream.events) if "disconnected" in str(one.message.get("method"))]


@pytest.mark.promises("http.restart")
async def test_a_restored_session_is_not_told_that_its_streams_ended_with_the_server(
    serving: Restarted, client: HttpClient, parley_model: ScriptedModel
) -> None:
    parley_model.says("Before.")
    async with serving() as server:
        await begin(client, server)
        conversation = await client.create()
        await client.call("conversationStream", conversation_id=conversation)
        async with client.stream() as stream:
            await client.say(conversation, "one")
            await stream.wait_for_message("task_complete")
            before = list(stream.events)
    async with AsyncExitStack() as running:
        client.url = (await running.enter_async_context(serving())).url
        async with client.stream(Last_Event_ID=last_id_of(before)) as stream:
            await until_state(client, conversation, "idle")  # the session is restored
            await running.aclose()
            rest = await stream.rest()

    assert rest == []


class Failing:
    """Makes `find` fail for one conversation."""

    def __init__(self, server: HttpServer, conversation: str) -> None:
        self._conversations, self._conversation = server.server.core.context.conversations, conversation
        self._find = self._conversations.find
        self.error: Exception | None = StoreFailed("the disk is busy")
        self.is_asked, self.goes_on = asyncio.Event(), asyncio.Event()

    def __enter__(self) -> Self:
        self._conversations.find = self  # type: ignore[method-assign]  # a disk cannot be made to fail at this moment
        return self

    def __exit__(self, *_: object) -> None:
        self._conversations.find = self._find  # type: ignore[method-assign]  # restores the method

    async def __call__(self, conversation_id: ConversationId) -> Conversation:
        if conversation_id == self._conversation:
            self.is_asked.set()
            await self.goes_on.wait()
            if self.error is not None:
                raise self.error
        return await self._find(conversation_id)


async def with_two_streams(client: HttpClient, server: HttpServer) -> tuple[list[str], StoredSession]:
    """Begin a session with two streams. Return its conversations and its stored state."""
    await begin(client, server)
    conversations = [await client.create() for _ in range(2)]
    for conversation in conversations:
        await client.call("conversationStream", conversation_id=conversation)
    assert client.session_id is not None
    stored = await server.server.store.session(session_digest(client.session_id))
    assert stored is not None
    return conversations, stored


@pytest.mark.promises("http.restart")
@pytest.mark.parametrize(
    "error", [StoreFailed("the disk is busy"), OwnerUnresponsive("process 7"), ShuttingDown()], ids=lambda e: e.code
)
async def test_a_session_that_cannot_be_restored_now_keeps_all_its_streams(
    serving: Restarted, client: HttpClient, parley_model: ScriptedModel, error: Exception
) -> None:
    async with serving() as server:
        conversations, stored = await with_two_streams(client, server)
    async with serving() as server:
        client.url = server.url
        with Failing(server, conversations[1]) as failing:
            failing.error = error
            failing.goes_on.set()
            refused = await client.post(ping(1))
        kept = await server.server.store.session(stored.digest)

        assert (refused.status, refused.headers["Retry-After"]) == (503, "30")
        assert refused.json["error"]["data"]["code"] == "session_not_restored"
        assert kept == stored
        assert len(server.service.sessions) == 0

        async with client.stream() as stream:
            for conversation in conversations:
                parley_model.says("Now.")
                await client.say(conversation, "go")
                await until_state(client, conversation, "idle")
                await until_seen(stream, [], conversation, await logged(client, conversation))


@pytest.mark.promises("http.restart")
async def test_a_session_is_not_stored_while_it_is_restored(serving: Restarted, client: HttpClient) -> None:
    """A kill at this moment must leave the stored session complete."""
    async with serving() as server:
        conversations, stored = await with_two_streams(client, server)
    async with serving() as server:
        client.url = server.url
        with Failing(server, conversations[1]) as failing:
            failing.error = None
            request = asyncio.ensure_future(client.post(ping(1)))
            await failing.is_asked.wait()
            await server.service.sessions._store_uses()

            assert await server.server.store.session(stored.digest) == stored
            failing.goes_on.set()
            assert (await request).json == pong(1)


@pytest.mark.promises("http.restart")
async def test_a_session_whose_token_is_revoked_while_it_is_restored_has_ended(
    serving: Restarted, client: HttpClient
) -> None:
    async with serving() as server:
        client.token = await server.create_token("gone", "admin")
        conversations, stored = await with_two_streams(client, server)
    async with serving() as server:
        client.url = server.url
        with Failing(server, conversations[1]) as failing:
            failing.error = None
            request = asyncio.ensure_future(client.post(ping(1)))
            await failing.is_asked.wait()
            await server.revoke_token("gone")
            failing.goes_on.set()
            refused = await request
        sessions, clients = len(server.service.sessions), len(server.server.core.clients)
        again = await client.post(ping(2))
    async with serving() as server:
        kept = await server.server.store.session(stored.digest)

    assert (refused.status, refused.json["error"]["data"]["code"]) == (404, "unknown_session")
    assert (sessions, clients, again.status, kept) == (0, 0, 401, None)


@pytest.mark.promises("http.restart")
async def test_streams_of_conversations_that_are_gone_do_not_hold_a_session_up(
    serving: Restarted, client: HttpClient
) -> None:
    async with serving() as server:
        conversations, _ = await with_two_streams(client, server)
    async with serving() as server:
        client.url = server.url
        with Failing(server, conversations[0]) as failing:
            failing.error = Unreadable(conversations[0], "a damaged page")
            failing.goes_on.set()

            assert (await client.post(ping(1))).json == pong(1)


async def fail(self: object, what: object, **more: object) -> None:
    raise StoreFailed("the disk is busy")


async def stored_state(client: HttpClient, server: HttpServer) -> SessionState:
    """Return the state that is stored for the session of a client."""
    stored = await server.server.store.session(session_digest(client.session_id or ""))
    state = None if stored is None else decode_state(stored.data)
    assert state is not None
    return state


async def stored_streams(client: HttpClient, server: HttpServer) -> list[str]:
    """Return the conversations of the streams that are stored for the session of a client."""
    return [stream.conversation for stream in (await stored_state(client, server)).streams]


@pytest.mark.promises("http.restart")
async def test_a_stream_whose_session_cannot_be_saved_is_not_opened(
    serving: Restarted, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as server:
        await begin(client, server)
        conversation = await client.create()
        open_stream = tool(1, "conversationStream", {"conversation_id": conversation})
        with monkeypatch.context() as patched:
            patched.setattr(type(server.server.store), "save_session", fail)
            failed = (await client.post(open_stream)).json["result"]
        sessions = server.service.sessions
        opened = sessions._sessions[client.session_id or ""].client.streams
        stored = await stored_streams(client, server)
        again = (await client.post(open_stream)).json["result"]

        assert (failed["isError"], failed["structuredContent"]["code"]) == (True, "session_not_saved")
        assert "the disk is busy" in failed["content"][0]["text"]
        assert (opened, stored) == ((), [])
        assert (again.get("isError", False), await stored_streams(client, server)) == (False, [conversation])


@pytest.mark.promises("http.restart")
async def test_a_refused_stream_leaves_the_stored_session_and_its_other_streams_as_they_were(
    serving: Restarted, client: HttpClient, monkeypatch: pytest.MonkeyPatch, parley_model: ScriptedModel
) -> None:
    async with AsyncExitStack() as longer:
        async with serving() as server:
            conversations, _ = await with_two_streams(client, server)
            third = await client.create()
            stream = await longer.enter_async_context(client.stream())
            for _ in conversations:
                await stream.wait_for_message("notifications/initial_state")
            monkeypatch.setattr(session_state, "MAX_STATE_BYTES", 1200)
            refused = (await client.post(tool("x" * 1024, "conversationStream", {"conversation_id": third}))).json
        at_the_end = await stream.rest()
    async with serving() as server:
        client.url = server.url
        parley_model.says("After.")
        async with client.stream(Last_Event_ID=last_id_of(stream.events)) as resumed:
            await client.say(conversations[0], "go")
            await resumed.wait_for_message("task_complete")

    assert refused["result"]["structuredContent"]["code"] == "session_not_saved"
    assert at_the_end == []  # not `notifications/stream_disconnected`
    assert not [one for one in resumed.events if "disconnected" in str(one.message.get("method"))]


@pytest.mark.promises("http.restart")
async def test_a_stream_is_stored_before_its_call_is_answered(
    serving: Restarted, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    async with serving() as server:
        await begin(client, server)
        conversation = await client.create()
        session, save = server.service.sessions._sessions[client.session_id or ""], server.server.store.save_session

        async def observed(stored: StoredSession, *, replacing: bytes | None) -> bool:
            seen.append(session.client.has_stream(conversation))
            return await save(stored, replacing=replacing)

        monkeypatch.setattr(server.server.store, "save_session", observed)
        await client.call("conversationStream", conversation_id=conversation)

        assert seen == [False]  # the second save would store the same
        assert session.client.has_stream(conversation)


@pytest.mark.promises("http.restart")
async def test_the_end_of_a_stream_that_cannot_be_saved_is_reported_and_can_be_repeated(
    serving: Restarted, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as server:
        await begin(client, server)
        conversation = await client.create()
        await client.post(tool(7, "conversationStream", {"conversation_id": conversation}))
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        with monkeypatch.context() as patched:
            patched.setattr(type(server.server.store), "save_session", fail)
            refused = await client.post(cancel)
        again = await client.post(cancel)

        assert (refused.status, refused.json["error"]["data"]["code"]) == (503, "stream_end_not_saved")
        assert (again.status, await stored_streams(client, server)) == (202, [])


@pytest.mark.promises("http.restart", "http.session")
async def test_a_session_that_cannot_be_removed_continues(
    serving: Restarted, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as server:
        await begin(client, server)
        with monkeypatch.context() as patched:
            patched.setattr(type(server.server.store), "remove_sessions", fail)
            refused = await client.send("DELETE")
        alive = await client.post(ping(1))
        removed = await client.send("DELETE")
        stored = await server.server.store.session(session_digest(client.session_id or ""))

    assert (refused.status, refused.json["error"]["data"]["code"]) == (503, "session_not_removed")
    assert (alive.json, removed.status, stored) == (pong(1), 204, None)


@pytest.mark.promises("http.restart", "http.resume")
async def test_streams_that_the_stored_session_lacks_are_reported(
    serving: Restarted, client: HttpClient, parley_model: ScriptedModel
) -> None:
    async with serving() as server:
        conversations, stored = await with_two_streams(client, server)
        async with client.stream() as stream:
            for _ in conversations:
                await stream.wait_for_message("notifications/initial_state")
            before = list(stream.events)
    async with serving() as server:
        state = decode_state(stored.data)
        assert state is not None
        data = encode_state(replace(state, streams=state.streams[:1]))
        assert data is not None
        assert await server.server.store.save_session(replace(stored, data=data), replacing=stored.data)
        client.url = server.url
        async with client.stream(Last_Event_ID=last_id_of(before)) as stream:
            lost = (await stream.wait_for_message("notifications/stream_disconnected"))["params"]
            parley_model.says("Now.")
            await client.say(conversations[0], "go")
            await stream.wait_for_message("task_complete")
            later = last_id_of(stream.events)
            disconnects = [one for one in stream.events if "disconnected" in str(one.message.get("method"))]
        async with client.stream(Last_Event_ID=later) as stream:  # this id names the first stream alone
            parley_model.says("Again.")
            await client.say(conversations[0], "go")
            await stream.wait_for_message("task_complete")
            repeated = [one for one in stream.events if "disconnected" in str(one.message.get("method"))]

    assert (lost["_meta"]["conversationId"], lost["code"]) == (conversations[1], "not_open")
    assert (len(disconnects), repeated) == (1, [])


@pytest.mark.promises("http.restart")
async def test_a_client_learns_that_the_conversation_of_a_stored_stream_is_gone(
    serving: Restarted, client: HttpClient
) -> None:
    async with serving() as server:
        conversations, stored = await with_two_streams(client, server)
        await client.call("conversationDelete", conversation_id=conversations[0])
    async with serving() as server:
        changed = await server.server.store.session(stored.digest)
        assert changed is not None
        assert await server.server.store.save_session(stored, replacing=changed.data)
        client.url = server.url
        async with client.stream() as stream:
            lost = (await stream.wait_for_message("notifications/stream_disconnected"))["params"]

    assert (lost["_meta"]["conversationId"], lost["code"]) == (conversations[0], "deleted")


@pytest.mark.waits
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
            # for a new stream, the list counts as changed
            await stream.wait_for_message("notifications/resources/list_changed")
            stream.events.clear()
            await client.call("conversationRename", conversation_id=conversations[0], title="New")
            updates = [await stream.wait_for_message("notifications/resources/updated")]
            updates.append(await stream.wait_for_message("notifications/resources/list_changed"))

    assert updates[0]["params"]["uri"] == uris[0]
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
            await stream.wait_for_message("agent_message_delta")
            before = list(stream.events)
        resident.process.kill()
        await resident.process.wait()
    async with ResidentProcess(parley_model, tmp_path / "home", env=env) as resident:
        client.url = resident.description["url"]
        async with client.stream(Last_Event_ID=last_id_of(before)) as stream:
            await until_state(client, conversation, "idle")
            await until_seen(stream, before, conversation, await logged(client, conversation))


@pytest.mark.promises("http.restart")
async def test_a_call_and_its_approval_go_on_after_a_restart(
    serving: Restarted, client: HttpClient, parley_model: ScriptedModel
) -> None:
    parley_model.says(sh("c1", "touch made"))
    async with serving() as server:
        await begin(client, server)
        async with client.codex("go", cwd=str(server.work), **{"approval-policy": "untrusted"}) as stream:
            asked = await stream.wait_for_message("elicitation/create")
            last_id = last_id_of(stream.events)
    parley_model.says("Done.")
    async with serving() as server:
        client.url = server.url
        async with client.stream(Last_Event_ID=last_id) as stream:
            again = await stream.wait_for_message("elicitation/create")
            late = await client.post({"jsonrpc": "2.0", "id": asked["id"], "result": {"decision": "denied"}})
            await client.post({"jsonrpc": "2.0", "id": again["id"], "result": {"decision": "approved"}})
            answer = (await stream.rest())[-1]
        was_made = (server.work / "made").exists()

    assert asked["id"] != again["id"]  # an answer to the first request must not count for another approval
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
        assert first.used_at < later - TIMEOUT_SECONDS < used.used_at <= later
        much_later = later + 31 * 60 + 2 * USE_SECONDS
        sessions._wall_clock = lambda: much_later
        sessions._sessions[client.session_id].stored_at = much_later
        await sessions._store_uses()

        assert await store.session(digest) is None


@pytest.mark.promises("http.restart")
async def test_two_servers_of_one_session_keep_the_streams_that_the_other_has_opened(
    serving: Restarted, client: HttpClient
) -> None:
    async with serving() as one, serving() as two:
        await begin(client, one)
        conversations = [await client.create() for _ in range(4)]
        client.url = two.url
        assert (await client.post(ping(1))).json == pong(1)  # both servers now have the session
        await client.call("conversationStream", conversation_id=conversations[0])
        client.url = one.url
        opened = await client.post(tool(9, "conversationStream", {"conversation_id": conversations[1]}))
        client.url = two.url
        await client.call("conversationStream", conversation_id=conversations[2])
        both = await stored_streams(client, two)
        numbers = {stream.number for stream in (await stored_state(client, two)).streams}
        client.url = one.url
        ended = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
        await client.post(ended)
        rest = await stored_streams(client, two)
        await client.send("DELETE")
        client.url = two.url
        await client.post(tool(10, "conversationStream", {"conversation_id": conversations[3]}))
        gone = await client.post(ping(2))
        stored = await two.server.store.session(session_digest(client.session_id or ""))

    assert not opened.json["result"].get("isError")
    assert sorted(both) == sorted(conversations[:3])
    assert len(numbers) == 3
    assert sorted(rest) == sorted([conversations[0], conversations[2]])
    assert (gone.status, stored) == (404, None)

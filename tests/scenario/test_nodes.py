"""Nodes that share a database: a client of one node uses the conversations that run on another node
(`parley.app.node_membership`, `parley.peers.nodes`, `parley.server.http.node_endpoint`,
`parley.transports.websocket`, `parley.common.node_challenge`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from kit.clients.http_client import HttpClient, SseEvent
from kit.clients.http_events import last_id_of, logged, until_seen
from kit.clients.reading import until_state
from kit.clients.requests import ping, pong, request, tool
from kit.clients.shared_home import ASKS, DelayedAnswer, events_until, is_, log_of, stored_events, turn_in
from kit.clients.shell_turns import sh
from kit.servers.node_process import NODE_TOKEN, NodeProcess, link_headers
from kit.servers.postgres import NEEDS_POSTGRES, Databases
from kit.servers.resident_process import outcome_of, parley, start_parley
from kit.system.certificates import make_certificate
from kit.system.commands import TIMEOUT_SECONDS
from parley.client import connect
from parley.errors import NoLink
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.transports.websocket import WebSocketDialer
from parley.wire.events import AgentMessageDelta, ErrorEvent, ExecCommandEnd, TaskComplete
from parley.wire.nodes import NODE_VERSIONS

pytestmark = [NEEDS_POSTGRES, pytest.mark.child_process]


@pytest_asyncio.fixture
async def nodes(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> AsyncIterator[tuple[NodeProcess, NodeProcess]]:
    async with AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(NodeProcess(parley_model, tmp_path, name, databases.url()))
            for name in "ab"
        ]
        yield a, b


@pytest.mark.promises("nodes.any-node")
async def test_a_client_of_one_node_streams_answers_and_sends_in_a_conversation_of_another(
    nodes: tuple[NodeProcess, NodeProcess], parley_model: ScriptedModel, tmp_path: Path
) -> None:
    a, b = nodes
    parley_model.says("Let me ", HOLD, "run it.", sh("c1", "touch ran"))
    parley_model.says("Done", HOLD)
    parley_model.says("Also done")
    answer = DelayedAnswer()
    async with asyncio.timeout(TIMEOUT_SECONDS), a.client() as one, b.client(on_approval=answer) as two:
        here = await one.create(cwd=tmp_path, model=MODEL, **ASKS)
        there = two.conversation(here.id)
        async with here.stream() as first, there.stream() as second:
            await here.send("go")
            await parley_model.wait_until_held()
            seen = await events_until(second, is_(AgentMessageDelta))
            status = await there.status()
            parley_model.release()
            await answer.asked()
            answer.answer("approved")
            await parley_model.wait_until_held()
            await there.send("and this")
            parley_model.release()
            local, remote = await turn_in(first), await turn_in(second)
        pages = await log_of(here), await log_of(there)

    assert isinstance(seen[-1], AgentMessageDelta)
    assert seen[-1].delta == "Let me "
    assert status.owner is not None
    assert pages[0] == pages[1]
    assert stored_events(remote) == stored_events(local)[-len(stored_events(remote)) :]
    assert [event.exit_code for event in pages[0] if isinstance(event, ExecCommandEnd)] == [0]
    assert isinstance(pages[0][-1], TaskComplete)


@pytest.mark.promises("nodes.any-node", "http.resume")
async def test_calls_of_one_session_can_go_to_different_nodes_and_its_stream_moves_between_them(
    nodes: tuple[NodeProcess, NodeProcess], parley_model: ScriptedModel, tmp_path: Path
) -> None:
    """While the stream is at one node, the calls go to the other one."""
    a, b = nodes
    for number in range(4):
        parley_model.says(f"answer {number}")
    words = ("token", "create", "ada", "--role", "admin", "--json")
    code, out, errors = await parley(*words, env=a.environ)
    assert code == 0, errors
    client = HttpClient(a.description["url"], token=json.loads(out)["token"])
    events: list[SseEvent] = []
    async with asyncio.timeout(TIMEOUT_SECONDS), client:
        await client.initialize()
        conversation = await client.create(cwd=str(tmp_path))
        await client.call("conversationStream", conversation_id=conversation)
        for number, node in enumerate((a, b, b, a)):
            client.url = node.description["url"]
            async with client.stream(Last_Event_ID=last_id_of(events)) as reader:
                client.url = (b if node is a else a).description["url"]
                await client.say(conversation, f"question {number}")
                await until_state(client, conversation, "idle")
                await until_seen(reader, events, conversation, await logged(client, conversation))
                events += reader.events


@pytest_asyncio.fixture
async def client(nodes: tuple[NodeProcess, NodeProcess]) -> AsyncIterator[HttpClient]:
    """Yield a client whose session is in the memory of both nodes. The client uses the first node."""
    a, b = nodes
    code, out, errors = await parley("token", "create", "ada", "--role", "admin", "--json", env=a.environ)
    assert code == 0, errors
    async with HttpClient(a.description["url"], token=json.loads(out)["token"]) as client:
        await client.initialize()
        async with on_node(client, b):
            assert (await client.post(ping(1))).json == pong(1)
        yield client


@asynccontextmanager
async def on_node(client: HttpClient, node: NodeProcess) -> AsyncIterator[None]:
    """Send the requests of the client to the node."""
    before, client.url = client.url, node.description["url"]
    try:
        yield
    finally:
        client.url = before


@pytest.mark.promises("nodes.any-node", "http.session")
async def test_a_session_that_is_deleted_on_one_node_ends_on_the_others(
    nodes: tuple[NodeProcess, NodeProcess], client: HttpClient
) -> None:
    _, b = nodes
    async with asyncio.timeout(TIMEOUT_SECONDS), on_node(client, b), client.stream() as reader:
        async with on_node(client, nodes[0]):
            deleted = await client.send("DELETE")
        later = await client.post(ping(2))
        rest = await reader.rest()

    assert (deleted.status, later.status, rest) == (204, 404, [])


@pytest.mark.promises("nodes.any-node", "http.session")
async def test_an_idle_get_stream_ends_when_its_session_is_deleted_on_another_node(
    nodes: tuple[NodeProcess, NodeProcess], client: HttpClient
) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async with on_node(client, nodes[1]), client.stream() as reader:
            async with on_node(client, nodes[0]):
                await client.send("DELETE")
            rest = await reader.rest()

    assert rest == []


@pytest.mark.promises("nodes.any-node", "http.stream")
async def test_streams_and_subscriptions_of_one_node_continue_on_the_others(
    nodes: tuple[NodeProcess, NodeProcess], client: HttpClient, tmp_path: Path
) -> None:
    _, b = nodes
    async with asyncio.timeout(TIMEOUT_SECONDS):
        conversations = [await client.create(cwd=str(tmp_path)) for _ in range(2)]
        streams = [
            tool(10 + i, "conversationStream", {"conversation_id": one}) for i, one in enumerate(conversations)
        ]
        await client.post(streams[0])
        uri = f"parley://conversations/{conversations[1]}"
        await client.post(request(12, "resources/subscribe", {"uri": uri}))
        async with on_node(client, b), client.stream() as reader:
            first = await reader.wait_for_message("notifications/initial_state")
            async with on_node(client, nodes[0]):
                await client.post(streams[1])  # while the GET stream is at the other node
            second = await reader.wait_for_message("notifications/initial_state")
            updated = asyncio.ensure_future(reader.wait_for_message("notifications/resources/updated"))
            await client.say(conversations[1], "hello")
            notified = await updated
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 10}}
            cancelled = await client.post(cancel)
        async with client.stream() as reader:
            left = await reader.wait_for_message("notifications/initial_state")
            pinged = await client.post(ping(3))
            await asyncio.sleep(0.2)
        states = [one for one in reader.events if one.message.get("method") == "notifications/initial_state"]

    shown = [one["params"]["_meta"]["conversationId"] for one in (first, second, left)]
    assert shown == [conversations[0], conversations[1], conversations[1]]
    assert notified["params"]["uri"] == uri
    assert (cancelled.status, pinged.json, len(states)) == (202, pong(3), 1)


@pytest.mark.promises("nodes.any-node", "http.stream")
async def test_streams_that_are_opened_on_two_nodes_at_the_same_time_are_on_both(
    nodes: tuple[NodeProcess, NodeProcess], client: HttpClient, tmp_path: Path
) -> None:
    shown = []
    async with asyncio.timeout(TIMEOUT_SECONDS):
        conversations = [await client.create(cwd=str(tmp_path)) for _ in range(4)]
        opening = []
        for number, conversation in enumerate(conversations):
            async with on_node(client, nodes[number % 2]):
                opening.append(
                    asyncio.ensure_future(client.call("conversationStream", conversation_id=conversation))
                )
                await asyncio.sleep(0)  # the request reads the URL of the node
        await asyncio.gather(*opening)
        for node in nodes:
            async with on_node(client, node), client.stream() as reader:
                states = [await reader.wait_for_message("notifications/initial_state") for _ in conversations]
            shown.append({one["params"]["_meta"]["conversationId"] for one in states})

    assert shown == [set(conversations)] * 2


@pytest.mark.fresh_process  # OpenSSL reads SSL_CERT_FILE only once
@pytest.mark.promises("nodes.any-node")
async def test_nodes_connect_to_each_other_with_tls(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    cert, key = await make_certificate(tmp_path)
    arguments = ("--host", "localhost", "--tls-cert", str(cert), "--tls-key", str(key))
    env = {"SSL_CERT_FILE": str(cert)}
    parley_model.says("Let me ", HOLD, "finish.")
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        NodeProcess(parley_model, tmp_path, "a", databases.url(), arguments=arguments, env=env) as a,
        NodeProcess(parley_model, tmp_path, "b", databases.url(), arguments=arguments, env=env) as b,
        connect(a.socket()) as one,
        connect(b.socket()) as two,
    ):
        here = await one.create(cwd=tmp_path, model=MODEL)
        await here.send("go")
        await parley_model.wait_until_held()
        async with two.conversation(here.id).stream() as stream:
            seen = await events_until(stream, is_(AgentMessageDelta))
            parley_model.release()
            await turn_in(stream)

    assert {urlsplit(node.description["url"]).scheme for node in (a, b)} == {"https"}
    assert isinstance(seen[-1], AgentMessageDelta)
    assert seen[-1].delta == "Let me "


@pytest.mark.promises("nodes.any-node")
async def test_a_client_of_one_node_interrupts_a_turn_of_another(
    nodes: tuple[NodeProcess, NodeProcess], parley_model: ScriptedModel, tmp_path: Path
) -> None:
    a, b = nodes
    parley_model.says("Endless", HOLD)
    async with asyncio.timeout(TIMEOUT_SECONDS), a.client() as one, b.client() as two:
        here = await one.create(cwd=tmp_path, model=MODEL)
        await here.send("go")
        await parley_model.wait_until_held()
        async with here.stream() as stream:
            await two.conversation(here.id).interrupt()
            events = await events_until(stream, is_(ErrorEvent))

    assert isinstance(events[-1], ErrorEvent)
    assert events[-1].reason == "interrupted"


@pytest.mark.promises("nodes.node-lost")
async def test_when_a_node_is_killed_another_node_continues_its_conversations(
    nodes: tuple[NodeProcess, NodeProcess], parley_model: ScriptedModel, tmp_path: Path
) -> None:
    a, b = nodes
    parley_model.says("Cut off", HOLD)
    parley_model.says("Here again")
    async with asyncio.timeout(TIMEOUT_SECONDS), a.client(reconnect_seconds=0) as one, b.client() as two:
        conversation_id = (await one.create(cwd=tmp_path, model=MODEL)).id
        await one.conversation(conversation_id).send("go")
        await parley_model.wait_until_held()
        there = two.conversation(conversation_id)
        async with there.stream() as stream:
            await events_until(stream, is_(AgentMessageDelta))
            a.process.send_signal(signal.SIGKILL)
            events = await events_until(stream, is_(ErrorEvent))
            result = await (await there.send("go on")).result()

    assert isinstance(events[-1], ErrorEvent)
    assert "Turn interrupted" in events[-1].message
    assert result.text == "Here again"


@pytest.mark.promises("nodes.stop")
async def test_other_nodes_follow_the_turns_of_a_node_that_is_stopping(
    nodes: tuple[NodeProcess, NodeProcess], parley_model: ScriptedModel, tmp_path: Path
) -> None:
    a, b = nodes
    parley_model.says("Let me ", HOLD, "finish.")
    parley_model.says("Elsewhere")
    async with asyncio.timeout(TIMEOUT_SECONDS), a.client(reconnect_seconds=0) as one, b.client() as two:
        here = await one.create(cwd=tmp_path, model=MODEL)
        await here.send("go")
        await parley_model.wait_until_held()
        a.process.send_signal(signal.SIGTERM)
        while await status_without_session(a) != 503:  # noqa: ASYNC110 - the node gets the signal soon
            await asyncio.sleep(0.01)
        there = two.conversation(here.id)
        async with there.stream() as stream:
            await events_until(stream, is_(AgentMessageDelta))
            parley_model.release()
            events = await events_until(stream, is_(TaskComplete))
        code = await a.process.wait()
        result = await (await there.send("go on")).result()

    assert isinstance(events[-1], TaskComplete)
    assert events[-1].last_agent_message == "Let me finish."
    assert code == 0
    assert result.text == "Elsewhere"


async def status_without_session(node: NodeProcess) -> int:
    """Return the HTTP status of a request that belongs to no session."""
    headers = {"Authorization": f"Bearer {node.description['token']}", "Accept": "text/event-stream"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(node.description["url"]) as answer,
    ):
        return answer.status


@pytest.mark.promises("nodes.stop")
async def test_a_turn_that_waits_for_an_approval_continues_on_another_node(
    nodes: tuple[NodeProcess, NodeProcess], parley_model: ScriptedModel, tmp_path: Path
) -> None:
    a, b = nodes
    parley_model.says(sh("c1", "touch ran"))
    parley_model.says("Done")
    answer = DelayedAnswer()
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        a.client(reconnect_seconds=0) as one,
        b.client(on_approval=answer) as two,
    ):
        here = await one.create(cwd=tmp_path, model=MODEL, **ASKS)
        there = two.conversation(here.id)
        async with there.stream() as stream:
            await here.send("go")
            await answer.asked()
            a.process.send_signal(signal.SIGTERM)
            await a.process.wait()
            answer.answer("approved")
            events = await events_until(stream, is_(TaskComplete))

    assert [event.exit_code for event in events if isinstance(event, ExecCommandEnd)] == [0]


@pytest.mark.promises("nodes.token")
async def test_a_link_needs_the_token_of_the_nodes_and_a_known_version(
    nodes: tuple[NodeProcess, NodeProcess],
) -> None:
    a, _ = nodes
    url = a.description["url"].removesuffix("/mcp") + "/node"

    async def status(token: str, *protocols: str) -> int | None:
        async with aiohttp.ClientSession() as session:
            headers = await link_headers(session, url, *protocols, token=token)
            try:
                async with session.ws_connect(url, protocols=protocols, headers=headers):
                    pass
                async with session.ws_connect(url, protocols=protocols, headers=headers):
                    return 0  # the proof was valid twice
            except aiohttp.WSServerHandshakeError as error:
                return error.status

    async with asyncio.timeout(TIMEOUT_SECONDS):
        wrong = await status("x" * 40, *NODE_VERSIONS)
        of_client = await status(a.description["token"], *NODE_VERSIONS)
        async with aiohttp.ClientSession() as session:
            asks = {"Authorization": "Parley-Node caller=1", "Sec-WebSocket-Protocol": "parley-node.0"}
            async with session.get(url, headers=asks) as answer:
                unknown = answer.status
            bearer = {"Authorization": f"Bearer {NODE_TOKEN}"}
            async with session.get(url, headers=bearer) as answer:
                as_bearer = answer.status
            headers = await link_headers(session, url)
            async with session.ws_connect(url, protocols=NODE_VERSIONS, headers=headers) as link:
                accepted = link.protocol
        replayed = await status(NODE_TOKEN, "parley-node.99", *NODE_VERSIONS)
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {NODE_TOKEN}"}
            async with session.post(a.description["url"], headers=headers, data=b"{}") as answer:
                as_client = answer.status

    assert (accepted, unknown, as_bearer, as_client) == (NODE_VERSIONS[0], 426, 401, 401)
    assert (wrong, of_client) == (401, 401)
    assert replayed == 401
    assert "refused the link of a node at 127.0.0.1: its token is wrong" in a.stderr_text()
    assert NODE_TOKEN not in a.stderr_text()


@pytest.mark.promises("nodes.token")
async def test_a_server_with_another_address_gets_nothing_that_opens_a_link(
    nodes: tuple[NodeProcess, NodeProcess],
) -> None:
    """The server passes the question of a node on to another node, and returns the answer."""
    a, _ = nodes
    real = a.description["url"].removesuffix("/mcp") + "/node"
    seen: list[dict[str, str]] = []

    async def pass_on(request: web.BaseRequest) -> web.Response:
        seen.append(dict(request.headers))
        async with session.get(real, headers={**request.headers, "Host": urlsplit(real).netloc}) as answer:
            shown = answer.headers["WWW-Authenticate"]
        return web.Response(status=answer.status, headers={"WWW-Authenticate": shown})

    dialer = WebSocketDialer()
    async with asyncio.timeout(TIMEOUT_SECONDS), aiohttp.ClientSession() as session:
        async with RawTestServer(pass_on) as impostor:
            with pytest.raises(NoLink, match="has announced another URL"):
                await dialer.dial(str(impostor.make_url("")), token=NODE_TOKEN, versions=NODE_VERSIONS, seconds=30)
        channel, version = await dialer.dial(
            real.removesuffix("/node"), token=NODE_TOKEN, versions=NODE_VERSIONS, seconds=30
        )
        channel.close()
        await dialer.close()

    assert version == NODE_VERSIONS[0]
    assert len(seen) == 1
    assert NODE_TOKEN not in str(seen)
    assert "proof" not in seen[0]["Authorization"]


@pytest.mark.promises("nodes.token")
@pytest.mark.parametrize("sent", [b"not json\n", b'{"jsonrpc":"2.0","id":1,"method":', "a text message", b"\xff\n"])
async def test_a_broken_message_ends_its_link_and_changes_nothing(
    nodes: tuple[NodeProcess, NodeProcess], sent: bytes | str
) -> None:
    a, _ = nodes
    url = a.description["url"].removesuffix("/mcp") + "/node"
    async with asyncio.timeout(TIMEOUT_SECONDS), aiohttp.ClientSession() as session:
        headers = await link_headers(session, url)
        async with session.ws_connect(url, protocols=NODE_VERSIONS, headers=headers) as link:
            if isinstance(sent, str):
                await link.send_str(sent)
            else:
                await link.send_bytes(sent + b"\n")
            ended = await link.receive()
        headers = await link_headers(session, url)
        async with session.ws_connect(url, protocols=NODE_VERSIONS, headers=headers) as link:
            ask = b'{"jsonrpc":"2.0","id":1,"method":"parley/follow","params":{"conversation_id":"x","after":0}}\n'
            await link.send_bytes(ask)
            answer = await link.receive_bytes()
        async with a.client() as client:
            listed = await client.list()

    assert ended.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
    assert b"-32001" in answer
    assert not listed.conversations
    assert "closed the connection of another" in a.stderr_text()


@pytest.mark.promises("http.exposure")
async def test_a_node_in_a_container_starts_before_there_is_a_token(
    parley_model: ScriptedModel, tmp_path: Path, databases: Databases
) -> None:
    """The first token is created in the running container, so each node must start without one."""
    async with NodeProcess(parley_model, tmp_path, "a", databases.url()) as other:
        environ = {**other.environ, "PARLEY_HOME": str(tmp_path)}
    options = ("--host", "0.0.0.0", "-c", "serve.public_url=http://parley.example", "-c", "node.id=b")
    node = await start_parley("serve", *options, "-c", "workspace.mode=shared", env=environ)
    assert node.stdout is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        serving = (await node.stdout.readline()).decode()
    created = await parley("token", "create", "ada", "--role", "admin", "--json", env=environ)
    stopped = await parley("serve", "--stop", env=environ)
    ended = await outcome_of(node)

    assert serving.startswith("serving http://parley.example/mcp"), ended
    assert (created[0], stopped[0]) == (0, 0), (created, stopped)


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("{url}_missing", id="missing"),
        pytest.param("postgresql://parley@127.0.0.1:1/parley", id="unreachable", marks=pytest.mark.long),
    ],
)
async def test_a_node_that_cannot_use_its_database_does_not_start_and_says_why_once(
    url: str, tmp_path: Path, databases: Databases
) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "PARLEY_HOME": str(tmp_path),
        "PARLEY_STORE_URL": url.format(url=databases.url()),
        "PARLEY_NODE_TOKEN": NODE_TOKEN,
    }
    code, out, errors = await parley("serve", env=environ, cwd=tmp_path)

    is_missing = "{url}" in url
    *waiting, reason = errors.splitlines()
    assert (code, out) == (1, ""), errors
    assert len(waiting) == (0 if is_missing else 1)  # a node waits until it can reach the database, and says so
    assert reason.startswith("parley serve: ")
    assert ("does not exist" if is_missing else "cannot be reached") in reason
    assert not (tmp_path / "serve.sock").exists()

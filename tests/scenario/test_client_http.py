"""The Python client over HTTP: its connection, its errors, and lost connections."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from aiohttp import web

from kit.clients.reading import positions, until_end, written
from kit.clients.shared_home import ASKS, events_until, is_
from kit.clients.shell_turns import sh
from kit.servers.command_line import run_parley
from kit.servers.cutting_port import CuttingPort
from kit.servers.http_server import HttpServer
from kit.system.certificates import make_certificate
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.waiting import until
from parley.client import (
    Approval,
    CallCancelled,
    CallLost,
    Client,
    Conversation,
    Disconnected,
    RemoteServer,
    RequestFailed,
    ResidentSocket,
    ServerRefused,
    ServerUnreachable,
    Stream,
    StreamEvent,
    UnreadableResult,
    connect,
    events,
)
from parley.testing import HOLD, ScriptedModel
from parley.testing.home import MODEL
from parley.wire.events import AgentMessageDelta, ExecApprovalRequest, TaskComplete


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server, asyncio.timeout(TIMEOUT_SECONDS):
        yield server


@pytest_asyncio.fixture
async def port(server: HttpServer) -> AsyncIterator[CuttingPort]:
    async with CuttingPort(server.url) as port:
        yield port


async def created(client: Client, server: HttpServer) -> Conversation:
    return await client.create(cwd=server.work, model=MODEL)


async def deltas(stream: Stream, number: int) -> list[StreamEvent]:
    """Return the events up to and including this number of deltas."""
    seen = []
    async for event in stream.detailed():
        seen.append(event)
        number -= isinstance(event.msg, AgentMessageDelta)
        if not number:
            break
    return seen


# --- connecting ----------------------------------------------------------------------------


async def test_a_message_of_several_megabytes_arrives(server: HttpServer, parley_model: ScriptedModel) -> None:
    async with connect(url=server.url, token=server.token) as client:
        conversation = await created(client, server)
        await (await conversation.send("x" * 3_000_000)).result()

    assert parley_model.requests[0].body["messages"][-1]["content"] == "x" * 3_000_000


async def test_a_client_creates_sends_streams_and_lists(server: HttpServer, parley_model: ScriptedModel) -> None:
    parley_model.says("One, ", "two.")
    async with connect(url=server.url, token=server.token) as client:
        conversation = await created(client, server)
        async with conversation.stream() as stream:
            turn = await conversation.send("go")
            seen = await until_end(stream)
        text = (await turn.result()).text
        listed = await client.list()
        await client.ping()

    assert text == "One, two."
    assert list(written(seen).values()) == ["One, two."]
    assert [one.conversation_id for one in listed.conversations] == [conversation.id]
    assert len(server.service.sessions) == 0  # the client has ended its session


async def test_many_streams_and_calls_at_the_same_time(server: HttpServer) -> None:
    async def one(client: Client) -> str:
        conversation = await created(client, server)
        async with conversation.stream() as stream:
            turn = await conversation.send("go")
            seen = await until_end(stream)
            assert positions(seen) == sorted(positions(seen))
        return (await turn.result()).text

    async with connect(url=server.url, token=server.token) as client:
        assert await asyncio.gather(*(one(client) for _ in range(20))) == ["Done"] * 20


async def test_an_approval_is_answered_and_a_call_is_cancelled(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    async def approve(approval: Approval) -> None:
        await approval.approve()

    parley_model.says(sh("c1", "touch made-by-command"))
    parley_model.says("Done.")
    async with connect(url=server.url, token=server.token, on_approval=approve) as client:
        conversation = await client.create(cwd=server.work, model=MODEL, **ASKS)
        result = await (await conversation.send("go")).result()
        parley_model.says("Never ", HOLD)
        heard: list[object] = []
        call = client.codex("go", cwd=str(server.work), model=MODEL, on_event=heard.append)
        await until(lambda: any(isinstance(event, events.AgentMessageDelta) for event in heard))
        await call.cancel()
        with pytest.raises(CallCancelled):
            await call
        page = await client.list(state="idle")

    assert result.text == "Done."
    assert "made-by-command" in os.listdir(server.work)
    assert page.conversations


async def test_connect_takes_one_kind_of_server(tmp_path: Path) -> None:
    for wrong in ({"socket": tmp_path, "url": "http://127.0.0.1/mcp"}, {"token": "t"}):
        with pytest.raises(TypeError):
            async with connect(**wrong):
                pass
    with pytest.raises(TypeError):
        async with connect(ResidentSocket(), url="http://127.0.0.1/mcp"):
            pass
    with pytest.raises(ValueError, match="token"):
        RemoteServer("http://127.0.0.1/mcp", token="a\nb")


# --- errors ----------------------------------------------------------------------------------


async def refusal(url: str, token: str | None) -> Exception:
    with pytest.raises((OSError, RequestFailed)) as error:
        async with asyncio.timeout(TIMEOUT_SECONDS), connect(url=url, token=token):
            pass
    assert "s3cret" not in str(error.value)
    return error.value


async def test_a_wrong_token_a_wrong_path_and_a_wrong_host_are_named(server: HttpServer) -> None:
    unauthorized = await refusal(server.url, "s3cret")
    nobody = await refusal(server.url, None)
    elsewhere = await refusal(server.url.replace("/mcp", "/other"), server.token)
    async with CuttingPort(server.url, keeps_host=True) as port:
        misnamed = await refusal(port.url, server.token)

    assert isinstance(unauthorized, ServerRefused)
    assert str(unauthorized) == f"{server.url} requires a token, or rejected the given token (401)"
    assert str(nobody) == str(unauthorized)
    assert str(elsewhere) == f"there is no MCP server at {server.url.replace('/mcp', '/other')} (404)"
    assert str(misnamed) == (
        f"{port.url} refused the host name of the URL (403); use the URL that the server prints"
    )


async def test_no_server_at_the_url_is_an_error_with_its_reason() -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://user:s3cret@127.0.0.1:{taken.getsockname()[1]}/mcp"
        error = await refusal(url, None)

    assert isinstance(error, ServerUnreachable)
    assert str(error).endswith("/mcp: Connection refused (os error 111)")


async def test_a_certificate_that_is_not_trusted_is_an_error_that_says_so(tmp_path: Path) -> None:
    cert, key = await make_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    tls = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with tls:
        port = tls.sockets[0].getsockname()[1]
        error = await refusal(f"https://localhost:{port}/mcp", "s3cret")
        plain = await refusal(f"http://127.0.0.1:{port}/mcp", "s3cret")

    assert isinstance(error, ServerUnreachable)
    assert error.detail == "the certificate is not trusted: self-signed certificate"
    assert isinstance(plain, ServerUnreachable)
    assert plain.detail == "the connection was closed before a response arrived"


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1/mcp", "http://", ""])
async def test_an_invalid_url_is_an_error(url: str) -> None:
    assert isinstance(await refusal(url, "s3cret"), ServerUnreachable)


async def test_a_redirect_is_not_followed_and_the_token_stays_here() -> None:
    seen: list[str | None] = []

    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=500)

    async def page(request: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    app = web.Application()
    app.router.add_post("/mcp", redirect)
    app.router.add_post("/elsewhere", elsewhere)
    app.router.add_post("/page", page)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        error, unreadable = await refusal(f"{url}/mcp", "s3cret"), await refusal(f"{url}/page", "s3cret")
    finally:
        await runner.cleanup()

    assert isinstance(error, ServerRefused)
    assert "Redirect to /elsewhere not followed" in str(error)
    assert seen == []
    assert f"is {url}/page the URL of an MCP server?" in str(unreadable)


@asynccontextmanager
async def stand_in(results: Mapping[str, Any]) -> AsyncIterator[str]:
    """Run a server that answers each tool call with the result in `results`, and yield its URL. The answer to any
    other tool call never ends.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        if message["method"] == "initialize":
            info = {"name": "stand-in", "version": "1"}
            result: Any = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
        elif (tool := message["params"]["name"]) in results:
            result = {"content": [], "structuredContent": results[tool]}
        else:
            endless = web.StreamResponse(headers={"Content-Type": "application/json"})
            await endless.prepare(request)
            with suppress(ConnectionError):
                while True:
                    await endless.write(b" " * 65536)
            return endless
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    app = web.Application()
    app.router.add_route("POST", "/mcp", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


async def test_an_invalid_result_is_an_error_of_the_call() -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        stand_in({"conversationsList": {"conversations": 1}, "conversationStream": ["\x1b[31m"]}) as url,
        connect(url=url) as client,
    ):
        with pytest.raises(UnreadableResult, match="conversationsList: the result of the server cannot be read"):
            await client.list()
        with pytest.raises(UnreadableResult):
            async with client.conversation(str(uuid4())).stream():
                pass


async def test_an_answer_that_never_ends_is_an_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.client.remote_server._Receiver.limit", 1_000_000)
    async with asyncio.timeout(TIMEOUT_SECONDS), stand_in({}) as url, connect(url=url) as client:
        with pytest.raises(RequestFailed, match="has more than 1000000 bytes"):
            await client.list()


async def test_the_list_has_one_line_for_each_conversation(tmp_path: Path) -> None:
    listed = {"conversation_id": "1", "title": "a\n\x1b[2Jb", "cwd": "/", "updated_at": "2026-01-01T00:00:00Z"}
    async with stand_in({"conversationsList": {"conversations": [listed]}}) as url:
        done = await run_parley(tmp_path, "ls", "--url", url)
    async with stand_in({"conversationsList": {"conversations": [{**listed, "title": None}]}}) as url:
        failed = await run_parley(tmp_path, "ls", "--url", url)

    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 1)
    assert (failed.exit_code, failed.stdout, len(failed.stderr.splitlines())) == (1, "", 1)


async def test_a_proxy_does_not_get_the_token() -> None:
    seen: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        env = {"http_proxy": address, "https_proxy": address}
        for url in ("https://parley.invalid/mcp", "http://127.0.0.1:1/mcp", "http://localhost:1/mcp"):
            with pytest.raises(ServerUnreachable):
                async with connect(RemoteServer(url, token="s3cret", env=env)):
                    pass

    (head,) = seen  # requests to this computer use no proxy
    assert head.startswith(b"CONNECT parley.invalid:443 ")
    assert b"s3cret" not in head


# --- connections that are cut ------------------------------------------------------------------


async def test_a_text_goes_on_where_its_stream_was_cut(
    server: HttpServer, port: CuttingPort, parley_model: ScriptedModel
) -> None:
    parley_model.says("One, ", "two, ", HOLD, "three, ", HOLD, "four.")
    async with connect(url=port.url, token=server.token) as client:
        conversation = await created(client, server)
        async with conversation.stream() as stream:
            turn = await conversation.send("go")
            seen = await deltas(stream, 2)
            port.cut()
            parley_model.release()
            seen += await deltas(stream, 1)
            port.cut()
            await parley_model.wait_until_held()
            parley_model.release()
            seen += await until_end(stream)
            text = (await turn.result()).text
        log = await conversation.read()

    assert text == "One, two, three, four."
    (shown,) = written(seen).values()
    assert shown in ("One, two, three, ", text)  # the last piece may have arrived before the stream continued
    assert positions(seen) == [event.seq for event in log.events]
    assert len(server.service.sessions) == 0  # there was one session, and it has ended


@pytest.mark.parametrize("every", [2000, 5000])
async def test_streams_that_are_cut_again_and_again_have_every_event_once(
    server: HttpServer, parley_model: ScriptedModel, every: int
) -> None:
    texts = [f"piece {number}, " for number in range(60)]
    parley_model.says(*texts)
    async with (
        CuttingPort(server.url, every=every) as port,
        connect(url=port.url, token=server.token, timeout_seconds=TIMEOUT_SECONDS) as client,
        connect(url=server.url, token=server.token) as other,
    ):
        conversation = await created(other, server)
        async with client.conversation(conversation.id).stream() as stream:
            await conversation.send("go")
            seen = await until_end(stream)
        log = await conversation.read()

    assert seen[-1].msg == TaskComplete(last_agent_message="".join(texts))
    assert positions(seen) == [event.seq for event in log.events]
    assert all("".join(texts).startswith(text) for text in written(seen).values())
    assert port.cuts


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 40))])
async def test_at_any_cuts_every_conversation_has_every_event_and_every_word_once(
    server: HttpServer,
    port: CuttingPort,
    parley_model: ScriptedModel,
    seed: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chance = random.Random(seed)

    async def cut() -> None:
        for _ in range(100):
            await asyncio.sleep(chance.random() * 0.05)
            port.cut()

    async def one(client: Client, conversation: Conversation) -> None:
        seen: list[StreamEvent] = []
        async with client.conversation(conversation.id).stream() as stream:
            for _ in range(2):
                await client.conversation(conversation.id).send("go")
                seen += await until_end(stream)
        written(seen)
        assert positions(seen) == [event.seq for event in (await conversation.read(limit=1000)).events]

    async with (
        connect(url=server.url, token=server.token) as other,
        connect(url=port.url, token=server.token) as client,
    ):
        conversations = [await created(other, server) for _ in range(4)]
        for _ in range(2 * len(conversations)):
            parley_model.says(*(f"{number} " for number in range(chance.randrange(200))), "end")
        cutting = asyncio.create_task(cut())
        await asyncio.gather(*(one(client, conversation) for conversation in conversations))
        cutting.cancel()
        await asyncio.wait([cutting])

    assert [record.getMessage() for record in caplog.records] == []


async def test_a_codex_call_that_is_cut_is_joined_again(
    server: HttpServer, port: CuttingPort, parley_model: ScriptedModel
) -> None:
    parley_model.says("One, ", HOLD, "two.")
    heard: list[object] = []
    async with connect(url=port.url, token=server.token) as client:
        call = client.codex("go", cwd=str(server.work), model=MODEL, on_event=heard.append)
        await until(lambda: any(isinstance(event, events.AgentMessageDelta) for event in heard))
        port.cut()
        parley_model.release()
        result = await call

    assert [part.text for part in result.content] == ["One, two."]
    assert sum(isinstance(event, events.TaskComplete) for event in heard) == 1
    assert len(parley_model.requests) == 1


async def test_an_approval_is_requested_once_although_its_stream_was_cut(
    server: HttpServer, port: CuttingPort, parley_model: ScriptedModel
) -> None:
    asked: asyncio.Queue[Approval] = asyncio.Queue()
    parley_model.says(sh("c1", "touch made-by-command"))
    parley_model.says("Done.")
    async with connect(url=port.url, token=server.token, on_approval=asked.put) as client:
        conversation = await client.create(cwd=server.work, model=MODEL, **ASKS)
        async with conversation.stream() as stream:
            await conversation.send("go")
            await events_until(stream, is_(ExecApprovalRequest))
            approval = await asked.get()
            port.cut()
            await client.list()  # sent again if its connection was cut
            await approval.approve()
            await until_end(stream)

    assert asked.empty()
    assert "made-by-command" in os.listdir(server.work)


async def test_a_session_that_the_server_has_forgotten_is_begun_again(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    parley_model.says("One, ", HOLD, "two.")
    async with connect(url=server.url, token=server.token) as client:
        conversation = await created(client, server)
        async with conversation.stream() as stream:
            await conversation.send("go")
            seen = await deltas(stream, 1)
            await server.service.sessions.close()
            parley_model.release()
            seen += await until_end(stream)
        log = await conversation.read()
        assert len(server.service.sessions) == 1

    assert positions(seen) == [event.seq for event in log.events]


async def test_a_call_in_flight_is_lost_and_a_message_is_sent_again(
    server: HttpServer, port: CuttingPort, parley_model: ScriptedModel
) -> None:
    parley_model.says("Done.")
    async with connect(url=port.url, token=server.token) as client:
        conversation = await created(client, server)
        port.refuses = True
        port.cut()
        renaming = asyncio.create_task(conversation.rename("new"))
        sending = asyncio.create_task(conversation.send("go"))
        with pytest.raises(CallLost):
            await renaming
        port.refuses = False
        text = (await (await sending).result()).text

    assert text == "Done."
    assert len(parley_model.requests) == 1


async def test_a_client_reconnects_after_several_refused_attempts(
    server: HttpServer, port: CuttingPort, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "parley.client")
    async with connect(url=port.url, token=server.token) as client:
        conversation = await created(client, server)
        await port.stop_listening()
        listing = asyncio.create_task(client.list())
        await until(lambda: sum("Connection refused" in message for message in caplog.messages) >= 3)
        await port.listen_again()
        listed = await listing

    assert [one.conversation_id for one in listed.conversations] == [conversation.id]


async def test_a_client_gives_up_after_its_time(server: HttpServer, port: CuttingPort) -> None:
    async with connect(url=port.url, token=server.token, reconnect_seconds=0.2) as client:
        conversation = await created(client, server)
        async with conversation.stream() as stream:
            port.refuses = True
            port.cut()
            with pytest.raises(Disconnected):
                await stream.turn()
        with pytest.raises(Disconnected):
            await client.list()


@asynccontextmanager
async def hostile(mode: str) -> AsyncIterator[str]:
    """Run a server that completes each handshake, and yield its URL.

    In the mode `ids`, it sends the ids of requests as strings. In the mode `notes`, many messages precede each
    result. In the mode `gone`, each session has ended.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await stream.prepare(request)
            await asyncio.Event().wait()
        asked = json.loads(await request.read() or b"{}")
        if "id" not in asked:
            return web.Response(status=202)
        if asked["method"] == "initialize":
            server = {"name": "hostile", "version": "1"}
            greeting = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": server}
            message = {"jsonrpc": "2.0", "id": asked["id"], "result": greeting}
            return web.json_response(message, headers={"Mcp-Session-Id": "session"})
        if mode == "gone":
            return web.Response(status=404)
        given = str(asked["id"]) if mode == "ids" else asked["id"]
        result = {"content": [], "structuredContent": {"conversations": []}}
        note = {"level": "error", "logger": "parley.store", "data": {"message": "again " * 1000}}
        messages = [{"jsonrpc": "2.0", "method": "notifications/message", "params": note}] * 100
        messages = [*(messages if mode == "notes" else ()), {"jsonrpc": "2.0", "id": given, "result": result}]
        body = "".join(f"data: {json.dumps(one)}\n\n" for one in messages)
        return web.Response(text=body, content_type="text/event-stream")

    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


async def test_a_result_for_a_string_instead_of_a_number_is_an_error() -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), hostile("ids") as url, connect(url=url, token="t") as client:
        with pytest.raises(RequestFailed, match="the response cannot be read"):
            await client.list()


async def test_a_server_that_only_completes_handshakes_is_given_up() -> None:
    async with (
        asyncio.timeout(TIMEOUT_SECONDS),
        hostile("gone") as url,
        connect(url=url, token="t", reconnect_seconds=1) as client,
    ):
        with pytest.raises(Disconnected):
            await client.list(timeout_seconds=TIMEOUT_SECONDS)


async def test_few_of_many_messages_about_the_database_are_printed(tmp_path: Path) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), hostile("notes") as url:
        listed = await run_parley(tmp_path, "ls", "--url", url, variables={"PARLEY_TOKEN": "t"})

    assert listed.exit_code == 0
    assert listed.stderr.count("again again") <= 10 * 1000
    assert len(listed.stderr.splitlines()) == 10

"""Attacks on the HTTP endpoint with raw bytes.

The attacks use wrong hosts and origins, guessed tokens, slow and large requests, and too many connections. After
each attack, the server serves its clients as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import socket
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from aiohttp.web_protocol import RequestHandler

from kit.clients.http_client import HttpClient, raw_exchange
from kit.clients.requests import initialize, ping, pong, request, tool
from kit.clients.shell_turns import sh
from kit.servers.http_server import HttpServer
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.frozen_time import frozen_time
from kit.system.waiting import until
from parley.app.http_choice import HttpChoice
from parley.testing import RecordedRequest, Reply, Says, ScriptedModel
from parley.transports.http.connection import Connection
from parley.transports.http.exchange import HttpExchange
from parley.transports.http.listener import HttpListener, HttpListenerOptions
from parley.wire.http import HttpAnswer
from parley.wire.ids import ConversationId

LISTEN = {"notifications": {"resourcesListChanged": True}}
SECRET = "a token that must not be repeated anywhere"


@pytest_asyncio.fixture
async def server(parley_model: ScriptedModel, tmp_path: Path) -> AsyncIterator[HttpServer]:
    async with HttpServer(parley_model, tmp_path / "home") as server:
        yield server
        client = await server.client()
        assert (await client.post(ping("after"))).json == pong("after")


def head(
    server: HttpServer, *lines: str, method: str = "POST", target: str = "/mcp", token: str | None = None
) -> bytes:
    """Return the head of a request with the usual headers.

    A header in `lines` replaces the usual header of the same name.
    """
    usual = {
        "Host": f"127.0.0.1:{urlsplit(server.url).port}",
        "Authorization": f"Bearer {token or server.token}",
        "Content-Type": "application/json",
        "Connection": "close",
    }
    given = {line.partition(":")[0].strip().lower() for line in lines}
    kept = [f"{name}: {value}" for name, value in usual.items() if name.lower() not in given]
    sent = [line for line in lines if not line.endswith(": -")]  # `Host: -` omits the header
    return "\r\n".join([f"{method} {target} HTTP/1.1", *kept, *sent, "", ""]).encode()


def with_body(server: HttpServer, *lines: str, body: bytes = b"", **options: str) -> bytes:
    return head(server, f"Content-Length: {len(body)}", *lines, **options) + body


HELLO = json.dumps(initialize(1, version="2025-11-25")).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


async def status_of(server: HttpServer, data: bytes) -> int:
    return status(await raw_exchange(server.url, data))


# --- hosts and origins -------------------------------------------------------------------------


HOSTS_AND_ORIGINS: list[tuple[tuple[str, ...], int]] = [
    ((), 200),
    (("Host: localhost",), 200),
    (("Host: LOCALHOST",), 200),
    (("Host: [::1]",), 200),
    (("Host: -",), 400),
    (("Host: 127.0.0.1", "Host: 127.0.0.1"), 400),
    (("Host: evil.example",), 403),
    (("Host: localhost.evil.example",), 403),
    (("Host: 127.0.0.1.evil.example",), 403),
    (("Host: 127.0.0.1:1",), 403),
    (("Host: 127.0.0.1@evil.example",), 403),
    (("Host: 127.1",), 403),
    (("Host: 2130706433",), 403),
    (("Host: ",), 403),
    (("Origin: http://localhost",), 403),
    (("Origin: null",), 403),
    (("Origin: http://evil.example",), 403),
    (("Origin: http://localhost.evil.example",), 403),
    (("Sec-Fetch-Site: cross-site",), 403),
    (("Sec-Fetch-Site: none",), 200),
    (("Sec-Fetch-Site: same-origin",), 200),
    (("Sec-Fetch-Site: same-site",), 403),
    (("Sec-Fetch-Site: cross-site, none",), 403),
    (("Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"), 403),
]


@pytest.mark.promises("http.host")
async def test_a_request_for_another_host_or_from_a_web_page_is_refused(server: HttpServer) -> None:
    found = [
        (lines, await status_of(server, with_body(server, *lines, body=HELLO))) for lines, _ in HOSTS_AND_ORIGINS
    ]

    assert found == HOSTS_AND_ORIGINS


@pytest.mark.promises("http.host")
async def test_the_origin_is_checked_for_every_method_and_no_page_is_allowed_anything(server: HttpServer) -> None:
    for method in ("GET", "DELETE", "OPTIONS", "PUT", "HEAD", "TRACE", "PROPFIND"):
        answer = await raw_exchange(server.url, head(server, "Origin: http://evil.example", method=method))

        assert (method, status(answer)) == (method, 403)
        assert b"access-control" not in answer.lower()


@pytest.mark.promises("http.origins")
async def test_a_page_of_a_configured_origin_may_send_requests_and_no_other(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    config = '[serve]\norigins = ["https://app.example", "http://localhost:3000"]\n'
    page = ("Origin: https://app.example", "Sec-Fetch-Site: cross-site")
    others = (
        ("Origin: https://app.example:443",),
        ("Origin: https://app.example.evil.example",),
        ("Origin: http://app.example",),
        ("Origin: http://localhost",),
        ("Origin: null",),
        ("Origin: https://app.example", "Origin: https://app.example"),
        ("Sec-Fetch-Site: cross-site",),
    )
    async with HttpServer(parley_model, tmp_path / "home", config=config) as server:
        begun = await raw_exchange(server.url, with_body(server, *page, body=HELLO))
        preflight = await raw_exchange(server.url, head(server, *page, "Authorization: -", method="OPTIONS"))
        refused = [await raw_exchange(server.url, with_body(server, *lines, body=HELLO)) for lines in others]
        asked = await raw_exchange(server.url, head(server, *others[1], method="OPTIONS"))
        stranger = await status_of(server, with_body(server, *page, "Authorization: -", body=HELLO))

    for answer, expected in ((begun, 200), (preflight, 204)):
        lines = answer.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
        assert status(answer) == expected
        assert b"access-control-allow-origin: https://app.example" in lines
        assert b"vary: origin" in lines
        assert b"*" not in answer.partition(b"\r\n\r\n")[0]
    assert b"mcp-session-id" in preflight.lower()
    assert b"credentials" not in preflight.lower()
    for answer in (*refused, asked):
        assert (status(answer), b"access-control" in answer.lower()) == (403, False)
    assert stranger == 401


@pytest.mark.promises("http.host")
@pytest.mark.parametrize("target", ["http://evil/mcp", "http://127.0.0.1/mcp", "https://evil:1/mcp"])
async def test_a_target_that_is_not_a_path_is_refused(server: HttpServer, target: str) -> None:
    assert await status_of(server, with_body(server, body=HELLO, target=target)) == 400


@pytest.mark.promises("http.host")
async def test_options_is_refused_and_other_methods_are_not_allowed(server: HttpServer) -> None:
    asked = "Access-Control-Request-Method: POST"

    assert await status_of(server, head(server, asked, method="OPTIONS")) == 403
    assert await status_of(server, head(server, method="PUT")) == 405


@pytest.mark.promises("http.content-type")
async def test_only_plain_json_is_read(server: HttpServer) -> None:
    expected = {
        "Content-Type: application/json; charset=utf-8": 200,
        "Content-Type: text/plain": 415,
        "Content-Type: application/x-www-form-urlencoded": 415,
        "Content-Type: multipart/form-data; boundary=application/json": 415,
        "Content-Type: -": 415,
        "Content-Encoding: gzip": 415,
    }

    assert {line: await status_of(server, with_body(server, line, body=HELLO)) for line in expected} == expected


# --- tokens --------------------------------------------------------------------------------


@pytest.mark.promises("http.token")
async def test_nothing_is_answered_without_a_token(server: HttpServer) -> None:
    bodies: set[tuple[bool, bytes]] = set()
    targets = ("/mcp", "/other", "/metrics", f"/mcp?token={server.token}", f"/mcp?access_token={server.token}")
    for method, target in product(("GET", "POST", "DELETE", "PUT", "HEAD"), targets):
        answer = await raw_exchange(server.url, head(server, "Authorization: -", method=method, target=target))
        first, _, body = answer.partition(b"\r\n\r\n")

        assert (method, target, status(answer)) == (method, target, 401)
        bodies.add((method == "HEAD", body))
        assert b"www-authenticate: bearer\r\n" in first.lower() + b"\r\n"
        server.service._authenticator._failures.clear()  # further requests would be answered late
    (refused,) = {body for is_head, body in bodies if not is_head}
    wrong = await raw_exchange(server.url, head(server, token="x" * 43, method="GET"))

    assert json.loads(refused)["error"]["data"] == {"code": "unauthorized"}
    assert (True, b"") in bodies
    assert wrong.partition(b"\r\n\r\n")[2] == refused


@pytest.mark.promises("http.token")
@pytest.mark.parametrize(
    "value", ["Bearer", "Bearer ", "Bearer wrong", "Basic {token}", "{token}", "Bearer {token}x", "Bearer {half}"]
)
async def test_a_wrong_token_is_refused(server: HttpServer, value: str) -> None:
    given = value.format(token=server.token, half=server.token[:-1])

    assert await status_of(server, with_body(server, f"Authorization: {given}", body=HELLO)) == 401


@pytest.mark.promises("http.token")
async def test_two_tokens_are_refused(server: HttpServer) -> None:
    lines = [f"Authorization: Bearer {server.token}"] * 2

    assert await status_of(server, with_body(server, *lines, body=HELLO)) == 401


@pytest.mark.promises("http.token")
async def test_many_guesses_do_not_affect_the_right_token(server: HttpServer) -> None:
    client = await server.client()
    guesses = [status_of(server, with_body(server, body=HELLO, token=f"guess{n}")) for n in range(30)]
    refused, pinged = await asyncio.gather(asyncio.gather(*guesses), client.post(ping(1)))

    assert (pinged.json, set(refused)) == (pong(1), {401})


ONE_BYTE_CHUNKS = b"1\r\nx\r\n" * 100_000


@pytest.mark.promises("http.token")
@pytest.mark.parametrize("line", ["Authorization: Bearer wrong", "Host: evil.example"])
async def test_the_body_of_a_stranger_is_not_parsed(
    server: HttpServer, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = 0

    def counted(connection: Connection, data: bytes) -> None:
        nonlocal parsed
        parsed += len(data)
        feed(connection, data)

    feed = RequestHandler.data_received
    monkeypatch.setattr(RequestHandler, "data_received", counted)
    for _ in range(12):  # the server delays the last answers
        begin = head(server, line, "Transfer-Encoding: chunked", "Connection: keep-alive")
        parsed = 0
        answer = await raw_exchange(server.url, begin + ONE_BYTE_CHUNKS)

        assert status(answer) in (401, 403)
        assert b"connection: close" in answer.lower()
        assert parsed == len(begin)


@pytest.mark.promises("http.token")
async def test_a_second_request_of_a_stranger_is_not_read(server: HttpServer) -> None:
    guess = head(server, "Connection: keep-alive", method="GET", token="x" * 32)
    answer = await raw_exchange(server.url, guess + with_body(server, body=HELLO))

    assert (status(answer), answer.count(b"HTTP/1.1")) == (401, 1)


@pytest.mark.promises("http.errors")
async def test_refused_requests_do_not_fill_the_log(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        await raw_exchange(server.url, b"GET\r\n\r\n")
        await raw_exchange(server.url, head(server)[:-2] + b"X: %b\r\n" % (b"a" * 40_000))

    lines = [record.getMessage() for record in caplog.records if record.name.startswith(("parley", "aiohttp"))]
    assert len(lines) == 2


@pytest.mark.promises("http.session")
async def test_a_session_is_of_its_token_alone(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with HttpServer(
        parley_model, tmp_path / "home", choice=HttpChoice(creates_token=True, token=SECRET)
    ) as server:
        from parley.server.context import Principal, Role

        server.service._authenticator.add("t" * 32, Principal(name="other", role=Role.ADMIN))
        mine, theirs = await server.client(), await server.stranger(token="t" * 32)
        theirs.session_id = mine.session_id
        stolen = [(await theirs.post(ping(1))).status, (await theirs.send("GET")).status]
        deleted = await theirs.send("DELETE")

        assert (stolen, deleted.status) == ([404, 404], 404)
        assert (await mine.post(ping(1))).json == pong(1)


@pytest.mark.promises("http.errors")
async def test_no_answer_and_no_log_repeats_a_token_or_a_body(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    quoted = json.dumps(SECRET).encode()
    sent = [
        with_body(server, f"Authorization: Bearer {SECRET}", body=HELLO),
        with_body(server, f"X-Bad\x01Header: {SECRET}", body=HELLO),
        with_body(server, target=f"/{SECRET.replace(' ', '-')}", body=HELLO),
        with_body(server, body=quoted),
        with_body(server, body=b'{"id":1,"method":' + quoted),
        with_body(server, f"Mcp-Session-Id: {SECRET}", body=json.dumps(ping(1)).encode()),
        with_body(server, f"MCP-Protocol-Version: {SECRET}", body=json.dumps(ping(1)).encode()),
        f"{SECRET}\r\n\r\n".encode(),
    ]
    answers = b"".join([await raw_exchange(server.url, data) for data in sent])

    assert SECRET.encode() not in answers
    assert SECRET.replace(" ", "-").encode() not in answers
    logged = "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith(("parley", "aiohttp"))
    )
    assert SECRET not in logged
    assert server.token not in logged
    assert b"Traceback" not in answers


# --- requests that the server cannot read ------------------------------------------------------


NOT_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET /mcp HTTP/9.9\r\n\r\n",
    b"\x00" * 1000 + b"\r\n\r\n",
    b"GET /mcp HTTP/1.1\r\nHost : x\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.mark.promises("http.errors")
async def test_what_is_not_http_is_refused_without_content(server: HttpServer) -> None:
    for data in NOT_HTTP:
        answer = await raw_exchange(server.url, data, ends=True)

        assert (data, status(answer)) in [(data, code) for code in (0, 400, 401, 403)]
        assert not answer or b"X-Content-Type-Options: nosniff" in answer
        assert answer.partition(b"\r\n\r\n")[2] == b""


# --- sizes ---------------------------------------------------------------------------------


@pytest.mark.promises("http.limits")
async def test_large_headers_are_refused_before_they_are_complete(server: HttpServer) -> None:
    endless = head(server)[:-2] + b"".join(b"X-%d: %b\r\n" % (n, b"a" * 4000) for n in range(20))
    many = head(server, *(f"X-{n}: a" for n in range(3000)))
    long_one = head(server, f"X-Long: {'a' * 30_000}")

    assert await raw_exchange(server.url, endless) == b""
    assert await status_of(server, many) in (0, 400, 431)
    assert await status_of(server, long_one) in (0, 400, 431)


@pytest.mark.waits
@pytest.mark.promises("http.limits")
async def test_a_body_has_a_limit_whatever_its_length_says(parley_model: ScriptedModel, tmp_path: Path) -> None:
    config = "[serve]\nmax_body_bytes = 100000\nmax_unauthenticated_body_bytes = 1000\n"
    async with HttpServer(parley_model, tmp_path / "home", config=config) as server:
        large = HELLO[:-1] + b" " * 100_000 + b"}"
        chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(large), large)

        refused = await raw_exchange(server.url, with_body(server, body=large))
        assert status(refused) == 413
        assert b"larger than 100000 bytes (serve.max_body_bytes)" in refused
        assert await status_of(server, head(server, "Content-Length: 99999999999")) == 413
        assert await status_of(server, head(server, "Transfer-Encoding: chunked") + chunk) == 413
        assert await status_of(server, with_body(server, body=HELLO)) == 200
        assert await status_of(server, head(server, "Content-Length: 999999", token="x" * 32) + b"x" * 999) == 401


@pytest.mark.promises("http.errors")
@pytest.mark.parametrize("coding", ["gzip, chunked", "identity, chunked", "GZIP,CHUNKED"])
async def test_a_body_with_another_transfer_coding_is_refused(server: HttpServer, coding: str) -> None:
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HELLO), HELLO)
    begin = head(server, f"Transfer-Encoding: {coding}", "Connection: keep-alive")
    answer = await raw_exchange(server.url, begin + body)
    plain = await raw_exchange(server.url, head(server, "Transfer-Encoding: Chunked") + body)

    assert (status(answer), status(plain)) == (501, 200)
    assert b"connection: close" in answer.lower()


@pytest.mark.promises("http.limits")
async def test_a_compressed_body_is_not_expanded(server: HttpServer) -> None:
    import gzip

    bomb = gzip.compress(b" " * 10_000_000)

    assert await status_of(server, with_body(server, "Content-Encoding: gzip", body=bomb)) == 415


@pytest.mark.promises("http.limits")
async def test_a_client_that_sends_too_often_gets_a_time_to_wait(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config="[serve]\nrequests_per_second = 1\n") as server:
        client = await server.client()
        replies = [await client.post(ping(n)) for n in range(40)]

    refused = [reply for reply in replies if reply.status == 429]
    assert replies[0].status == 200
    assert {reply.headers["Retry-After"] for reply in refused} == {"1"}


@pytest.mark.promises("http.arrays", "http.limits")
async def test_each_message_of_an_array_counts(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config="[serve]\nrequests_per_second = 100\n") as server:
        client = await server.client(version="2025-03-26")
        # the rate allows 1000 messages, and the clock stands still
        server.service._endpoint._rate._now = lambda: 0.0
        server.service._endpoint._rate._allowed.clear()
        replies = [await client.post([ping(n) for n in range(400)]) for _ in range(3)]

    assert [reply.status for reply in replies] == [200, 200, 429]
    assert replies[2].headers["Retry-After"] == "1"


@pytest.mark.promises("http.limits")
async def test_an_array_of_calls_starts_few_commands_at_a_time(parley_model: ScriptedModel, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    two_begun = f"[ $(grep -c begin {journal}) -ge 2 ]"
    script = f"echo begin >> {journal}; until {two_begun}; do sleep 0.01; done; sleep 0.1; echo end >> {journal}"

    def reply(request: RecordedRequest) -> Reply:
        is_first = request.body["messages"][-1]["role"] == "user"
        return Says((sh("c1", script),)) if is_first else Says(("Done.",))

    parley_model.set_handler(reply)
    settings = {"sandbox": "danger-full-access", "approval-policy": "never", "cwd": str(tmp_path)}
    async with HttpServer(parley_model, tmp_path / "home", config="[serve]\nmax_commands = 2\n") as server:
        client = await server.client(version="2025-03-26")
        calls = [tool(number, "codex", {"prompt": "go", **settings}) for number in range(6)]
        async with client.stream_post(calls) as stream:
            answers = [message for message in await stream.rest() if "id" in message and "result" in message]
    lines = journal.read_text().split()
    running = [lines[:count].count("begin") - lines[:count].count("end") for count in range(len(lines) + 1)]

    assert [one["result"]["content"][0]["text"] for one in answers] == ["Done."] * 6
    assert (lines.count("end"), max(running)) == (6, 2)


@pytest.mark.promises("http.limits")
async def test_sessions_have_a_limit_and_an_idle_one_of_the_same_client_makes_room(
    parley_model: ScriptedModel, tmp_path: Path
) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config="[serve]\nmax_sessions = 2\n") as server:
        first, second = await server.client(), await server.client()
        async with second.stream():
            third = await server.client()
            gone = await first.post(ping(1))
            async with third.stream():
                fourth = await server.stranger()
                refused = await fourth.initialize()

    assert (gone.status, refused.status, refused.headers["Retry-After"]) == (404, 503, "30")


# --- one token -----------------------------------------------------------------------------


@pytest.mark.promises("http.limits")
async def test_one_token_takes_at_most_half_of_the_sessions(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config="[serve]\nmax_sessions = 4\n") as server:
        token = await server.create_token("watcher", "observer")
        first, second = await server.client(token=token), await server.client(token=token)
        async with first.stream(), second.stream():
            refused = await (await server.stranger(token=token)).initialize()
            other = await (await server.stranger()).initialize()

    assert (refused.status, other.status) == (503, 200)


@pytest.mark.promises("http.limits")
async def test_one_token_takes_at_most_half_of_the_connections(parley_model: ScriptedModel, tmp_path: Path) -> None:
    async with HttpServer(parley_model, tmp_path / "home", config="[serve]\nmax_connections = 8\n") as server:
        watcher = await server.modern_client(token=await server.create_token("watcher", "observer"))
        async with contextlib.AsyncExitStack() as streams:
            for _ in range(4):
                stream = await streams.enter_async_context(watcher.stream_of("subscriptions/listen", LISTEN))
                await stream.next()
            refused = await watcher.ask("server/discover")
            other = await (await server.modern_client()).ask("server/discover")

    assert (refused.status, refused.headers["Retry-After"], other.status) == (503, "30", 200)


@pytest.mark.promises("http.limits", "resources.left")
async def test_the_subscriptions_of_one_token_have_a_limit(server: HttpServer) -> None:
    watcher = await server.modern_client(token=await server.create_token("watcher", "observer"))
    wanted = {"notifications": {"resourceSubscriptions": [f"parley://{number}" for number in range(1000)]}}
    async with contextlib.AsyncExitStack() as streams:
        for _ in range(5):
            stream = await streams.enter_async_context(watcher.stream_of("subscriptions/listen", wanted))
            await stream.next()
        refused = await watcher.ask("subscriptions/listen", wanted)
        other = await (await server.client()).post(request(1, "resources/subscribe", {"uri": "parley://attention"}))
    await until(lambda: server.service.client_count == 1)
    async with watcher.stream_of("subscriptions/listen", wanted) as stream:
        again = await stream.next()

    error = refused.json["error"]
    assert error["data"]["code"] == "too_many_subscriptions"
    assert error["message"] == "all clients of one principal together may subscribe to 5000 resources"
    assert "result" in other.json
    assert again is not None
    assert "method" in again.message


def address_space_bytes() -> int:
    """Return the size of the address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.waits
@pytest.mark.promises("http.limits")
async def test_bodies_that_arrive_together_need_memory_together(server: HttpServer) -> None:
    begun = head(server, "Content-Length: 60000000") + b"{"
    parts, limits = urlsplit(server.url), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes() + 600_000_000, limits[1]))
    try:
        connections = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(2)]
        for _, writer in connections:
            writer.write(begun)
        answers = [asyncio.ensure_future(reader.read()) for reader, _ in connections]
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        for _, writer in connections:
            writer.close()
        await asyncio.wait(waiting)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)

    assert [status(await one) for one in done] == [413]


# --- time and connections ------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listener(**options: float) -> AsyncIterator[str]:
    """Run a listener with short deadlines, whose endpoint reads the body."""

    async def endpoint(request: HttpExchange) -> HttpAnswer:
        if request.header("Authorization"):
            request.mark_authenticated()
        try:
            body = await request.body(1000, lambda size: None)
        except Exception as error:
            return HttpAnswer(status=408, body=type(error).__name__.encode())
        return HttpAnswer(status=200, body=body)

    serving = HttpListener(endpoint, HttpListenerOptions(**options))  # type: ignore[arg-type] # numbers
    port = serving.listen("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await serving.close(1)


async def test_a_connection_at_the_moment_of_the_end_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with listener() as url:
        client = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
        await asyncio.sleep(
            0
        )  # the event loop learns of the connection in the iteration in which the listener ends
    await asyncio.sleep(0)
    client.close()

    assert caplog.messages == []


@pytest.mark.promises("http.limits")
@pytest.mark.parametrize(
    "data",
    [b"", b"P", b"POST /mcp HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT"],
    ids=["nothing", "one byte", "half of the headers", "half of the second request"],
)
async def test_a_connection_without_a_complete_request_is_closed(data: bytes) -> None:
    is_first_complete = b"\r\n\r\n" in data
    async with listener(header_seconds=1, idle_seconds=1) as url:
        parts = urlsplit(url)
        with frozen_time():
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(data)
            answer = await reader.readuntil(b"\r\n\r\n") if is_first_complete else b""
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS)
        writer.close()

    assert status(answer) == (200 if is_first_complete else 0)


@pytest.mark.promises("http.limits")
async def test_headers_that_come_byte_by_byte_do_not_extend_the_deadline() -> None:
    async with listener(header_seconds=0.5, idle_seconds=60) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"GET / HTTP/1.1\r\nX: ")

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"a")
                    await writer.drain()
                    await asyncio.sleep(0.02)

        slow = asyncio.create_task(trickle())
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS) == b""
        slow.cancel()
        writer.close()


@pytest.mark.waits
@pytest.mark.promises("http.errors")
async def test_a_body_that_ends_early_or_is_badly_chunked_affects_no_other_request() -> None:
    begin = b"POST / HTTP/1.1\r\nHost: x\r\n"
    async with listener(body_seconds=0.2, idle_seconds=0.2) as url:
        await raw_exchange(url, begin + b"Content-Length: 500\r\n\r\nhalf", ends=True)
        answer = await raw_exchange(url, begin + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhalf")
        with frozen_time():
            other = await raw_exchange(url, begin + b"Content-Length: 4\r\nConnection: close\r\n\r\nfull")

    assert status(answer) in (0, 400, 408)
    assert other.endswith(b"full")


@pytest.mark.waits
@pytest.mark.promises("http.limits")
async def test_a_slow_body_is_given_up() -> None:
    async with listener(body_seconds=0.2, idle_seconds=0.2) as url:
        answer = await raw_exchange(url, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")

    assert status(answer) == 408
    assert answer.endswith(b"BodyUnreadable")


@pytest.mark.promises("http.limits")
async def test_idle_connections_of_strangers_make_room_for_clients() -> None:
    async with listener(max_connections=20, header_seconds=3600, idle_seconds=3600) as url:
        parts = urlsplit(url)
        idle = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(200)]
        answer = await raw_exchange(
            url, b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: x\r\nConnection: close\r\n\r\n"
        )
        for _, writer in idle:
            writer.close()

    assert status(answer) == 200


@pytest.mark.promises("http.limits")
async def test_authenticated_connections_are_kept_and_further_ones_refused() -> None:
    async with listener(max_connections=10, header_seconds=3600, idle_seconds=3600) as url:
        parts = urlsplit(url)
        request = b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: x\r\n\r\n"
        known = []
        for _ in range(10):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(request)
            await reader.readuntil(b"\r\n\r\n")
            known.append((reader, writer))
        refused = await raw_exchange(url, request)
        for reader, writer in known:
            writer.write(request)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()

    assert refused == b""


@pytest.mark.promises("http.slow")
async def test_a_client_that_reads_nothing_uses_little_memory(
    server: HttpServer, parley_model: ScriptedModel
) -> None:
    client = await server.client()
    conversation = await client.create()
    await client.call("conversationStream", conversation_id=conversation)
    parts = urlsplit(server.url)
    unread = socket.create_connection((str(parts.hostname), parts.port or 0))
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lines = [f"Mcp-Session-Id: {client.session_id}", "Accept: text/event-stream"]
    unread.sendall(head(server, *lines, method="GET"))
    (out,) = (one.out for one in server.server.core.clients)
    await until(lambda: out.streams == 1)  # type: ignore[attr-defined]  # it is a `PushOutbox`
    found = server.server.conversations.get(ConversationId(conversation))
    for _ in range(30):
        parley_model.says("x" * 300_000)
        await client.say(conversation, "go")
        await until(lambda: found.turn is None)
    (stream,) = out._streams  # type: ignore[attr-defined]  # it is a `PushOutbox`

    assert stream._unread < 1_000_000
    unread.close()


@pytest.mark.promises("http.limits")
async def test_a_session_ends_after_its_client_was_away_and_not_while_a_stream_is_open(server: HttpServer) -> None:
    away, present = await server.client(), await server.client()
    async with present.stream():
        sessions = server.service.sessions
        sessions._now = lambda now=sessions._now: now() + 31 * 60  # type: ignore[misc]  # the default binds the original
        sessions.expire()

        assert (await away.post(ping(1))).status == 404
        assert (await present.post(ping(1))).json == pong(1)


async def test_a_client_of_another_version_of_the_protocol_gets_the_supported_versions(server: HttpServer) -> None:
    client: HttpClient = await server.stranger()
    reply = await client.post(tool(9, "codex", {}), MCP_Protocol_Version="2030-01-01")

    assert (reply.status, reply.json["id"], reply.json["error"]["code"]) == (400, 9, -32022)


@pytest.mark.promises("http.limits")
async def test_a_session_keeps_no_long_texts_of_its_client(server: HttpServer) -> None:
    client = await server.client()
    long_id = await client.post(request("x" * 1025, "ping"))
    large_id = await client.post(request(10**1024, "ping"))
    fitting = await client.post(request("x" * 1024, "ping"))
    stranger = await server.stranger()
    info = {"name": "x" * 70_000, "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
    long_name = await stranger.post(request(1, "initialize", params))

    assert [one.status for one in (long_id, large_id, fitting, long_name)] == [400, 400, 200, 400]
    assert long_id.json["error"]["message"] == "the id of a message has at most 1024 characters"
    assert long_name.json["error"]["message"] == "`initialize` has at most 65536 bytes"
    assert len(server.service.sessions) == 1

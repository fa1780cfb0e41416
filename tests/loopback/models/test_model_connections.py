"""The bytes on a connection to a provider, and the reuse of connections."""

from __future__ import annotations

import asyncio
import gzip
import resource
import subprocess
import sys
from collections.abc import Callable

import aiohttp
import aiohttp.base_protocol
import pytest

from kit.models.raw_provider import (
    CHAT_END,
    CHAT_STOP,
    CONVERSATION,
    REQUEST,
    RESPONSES_END,
    Answer,
    Caller,
    Peer,
    chat_text,
    everything,
    plain,
    responses_text,
    settings,
    streamed,
)
from kit.system.commands import TIMEOUT_SECONDS
from parley.common.threads import start_thread
from parley.config.types import Environment
from parley.models.connections import MAX_CONNECTING, max_idle
from parley.models.http import Http
from parley.ports.model import ModelRequest, ResponseDone, TextDelta
from parley.version import __version__

WHOLE = streamed(chat_text("Done"), CHAT_STOP, CHAT_END)


async def test_the_http_library_keeps_received_chunks_in_the_attribute_that_is_used_to_join_them() -> None:
    protocol = aiohttp.base_protocol.BaseProtocol(asyncio.get_running_loop())
    reader = aiohttp.StreamReader(protocol, limit=1024)
    reader.feed_data(b"Hello, ")
    reader.feed_data(b"world")

    assert list(reader._buffer) == [b"Hello, ", b"world"]


def test_the_http_library_is_not_loaded_before_it_is_needed() -> None:
    program = (
        "import sys, parley.models, parley.models.http, parley.models.chat, parley.models.responses,"
        " parley.models.scripted; parley.models.http.Http(); sys.exit('aiohttp' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=90).returncode == 0


async def test_warming_up_twice_loads_the_library_once_and_closing_needs_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[str] = []

    def counted(target: Callable[..., object], *args: object, name: str) -> None:
        started.append(name)
        start_thread(target, *args, name=name)

    monkeypatch.setattr("parley.models.http.start_thread", counted)
    http = Http()
    http.warm_up()
    http.warm_up()
    await http.close()

    assert len(started) == 1


async def test_a_request_that_is_cancelled_while_the_library_loads_does_not_spoil_the_next(caller: Caller) -> None:
    async with Peer(WHOLE) as peer:
        first = asyncio.create_task(caller.ask(peer))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)

        assert (await caller.ask(peer))[0] == TextDelta("Done")


async def test_a_chat_request_has_only_the_headers_it_needs(caller: Caller) -> None:
    async with Peer(WHOLE) as peer:
        await caller.ask(peer)

    (asked,) = peer.asked
    assert asked.target == "/v1/chat/completions"
    assert {name: value for name, value in asked.headers.items() if name != "content-length"} == {
        "host": f"127.0.0.1:{peer.port}",
        "user-agent": f"parley/{__version__}",
        "accept": "text/event-stream",
        "accept-encoding": asked.headers["accept-encoding"],
        "content-type": "application/json",
    }


async def test_a_responses_request_names_its_conversation(caller: Caller) -> None:
    async with Peer(streamed(responses_text("Done"), RESPONSES_END)) as peer:
        await caller.ask(peer, "responses", internal_originator="my_editor")

    (asked,) = peer.asked
    assert asked.target == "/v1/responses"
    assert asked.headers["openai-beta"] == "responses=experimental"
    assert asked.headers["session_id"] == CONVERSATION
    assert asked.headers["originator"] == "my_editor"


@pytest.mark.parametrize(
    ("base", "target"),
    [
        ("/v1/", "/v1/chat/completions?v=1&name=a+b"),
        ("", "/chat/completions?v=1&name=a+b"),
        ("/v1?tenant=7", "/v1/chat/completions?tenant=7&v=1&name=a+b"),
    ],
)
async def test_query_parameters_come_after_the_path(caller: Caller, base: str, target: str) -> None:
    async with Peer(WHOLE) as peer:
        base_url = f"http://127.0.0.1:{peer.port}{base}"
        await caller.ask(peer, base_url=base_url, query_params={"v": "1", "name": "a b"})

    assert peer.asked[0].target == target


async def test_a_connection_serves_one_request_after_another(caller: Caller) -> None:
    async with Peer(WHOLE) as peer:
        for _ in range(3):
            await caller.ask(peer)

    assert len(peer.asked) == 3
    assert peer.connections == 1


async def test_a_connection_whose_body_ends_a_little_late_is_used_again(caller: Caller) -> None:
    begun = streamed(chat_text("Done"), CHAT_STOP, whole=False)
    async with Peer(Answer(begun.raw, late=b"0\r\n\r\n")) as peer:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            async for batch in caller.model(peer).stream(REQUEST):
                if isinstance(batch[-1], ResponseDone):
                    peer.go_on.set()
        await caller.ask(peer)

    assert peer.connections == 1


async def test_a_refused_request_leaves_its_connection_to_the_next_try(caller: Caller) -> None:
    async with Peer(plain("503 Service Unavailable", b"busy"), WHOLE) as peer:
        await caller.ask(peer, request_max_retries=1)

    assert peer.connections == 1


async def test_a_provider_that_holds_back_the_end_does_not_hold_up_the_turn(caller: Caller) -> None:
    async with Peer(streamed(chat_text("Done"), CHAT_STOP, whole=False, then="hang")) as peer:
        chunks = await caller.ask(peer)

    assert chunks[0] == TextDelta("Done")


async def test_more_than_a_hundred_conversations_stream_at_once(caller: Caller) -> None:
    async with Peer(WHOLE) as peer:
        peer.all_here = asyncio.Barrier(101)
        replies = await asyncio.gather(*(caller.ask(peer) for _ in range(101)))

    assert all(reply[0] == TextDelta("Done") for reply in replies)


async def test_requests_that_begin_together_use_the_connections_of_those_that_end(caller: Caller) -> None:
    async with Peer(WHOLE) as peer:
        await asyncio.gather(*(caller.ask(peer) for _ in range(8 * MAX_CONNECTING)))

    assert len(peer.asked) == 8 * MAX_CONNECTING
    assert peer.connections < 6 * MAX_CONNECTING


@pytest.mark.parametrize(("max_files", "idle"), [(resource.RLIM_INFINITY, 100), (65_536, 100), (256, 32), (16, 4)])
def test_the_number_of_idle_connections_depends_on_the_limit_on_open_files(max_files: int, idle: int) -> None:
    assert max_idle(max_files) == idle


async def test_a_large_request_arrives_whole(caller: Caller) -> None:
    instructions = "all work and no play " * 200_000
    async with Peer(WHOLE) as peer:
        await everything(caller.model(peer), ModelRequest(instructions=instructions, context=(), history=()))

    assert peer.asked[0].body["messages"][0]["content"] == instructions


async def test_a_compressed_answer_is_read(caller: Caller) -> None:
    body = gzip.compress(chat_text("Done") + CHAT_STOP + CHAT_END)
    async with Peer(plain("200 OK", body, headers=["content-encoding: gzip"])) as peer:
        chunks = await caller.ask(peer)

    assert chunks[0] == TextDelta("Done")


async def test_many_small_chunks_arrive_whole_and_in_batches(caller: Caller) -> None:
    # More bytes than the HTTP library buffers, so that it pauses and resumes the connection several times.
    pieces = [f"{number:08d}" for number in range(20_000)]
    async with Peer(streamed(*(chat_text(piece) for piece in pieces), CHAT_STOP, CHAT_END)) as peer:
        batches = [batch async for batch in caller.model(peer).stream(REQUEST)]

    chunks = [chunk for batch in batches for chunk in batch]
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] == pieces
    assert isinstance(chunks[-1], ResponseDone)
    assert len(batches) < len(pieces) / 10


async def test_cookies_are_not_kept(caller: Caller) -> None:
    greeting = Answer(WHOLE.raw.replace(b"200 OK\r\n", b"200 OK\r\nset-cookie: you=1\r\n"))
    async with Peer(greeting) as peer:
        base_url = f"http://localhost:{peer.port}/v1"
        await caller.ask(peer, base_url=base_url)
        await caller.ask(peer, base_url=base_url)

    assert "cookie" not in peer.asked[1].headers


@pytest.mark.promises("resident.settings")
async def test_a_proxy_of_the_client_s_environment_is_used_and_none_of_the_server(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with Peer(WHOLE) as peer:
        environ = Environment(
            HTTP_PROXY="http://127.0.0.1:1", http_proxy=f"http://127.0.0.1:{peer.port}", no_proxy="x, .localhost"
        )
        caller.environ = environ
        for base_url in ("http://model.invalid/v1", f"http://localhost:{peer.port}/v1"):
            await everything(caller.open(settings(base_url=base_url, request_max_retries=0)))

    assert [asked.target for asked in peer.asked] == [
        "http://model.invalid/v1/chat/completions",
        "/v1/chat/completions",
    ]

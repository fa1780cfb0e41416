"""Every failure of a model, over a real connection (docs/protocol.md#model-errors)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import get_args

import pytest

from kit.models.raw_provider import (
    ANTHROPIC_END,
    CHAT_END,
    CHAT_STOP,
    REQUEST,
    RESPONSES_END,
    Answer,
    Caller,
    Peer,
    anthropic_text,
    chat_text,
    everything,
    plain,
    responses_event,
    responses_text,
    settings,
    streamed,
)
from kit.system.commands import TIMEOUT_SECONDS
from kit.system.frozen_time import frozen_time
from parley.config.types import WireApi
from parley.conversation.records import MessageItem
from parley.errors import BadSetting, CannotConnect, ModelStreamBroken, UnexpectedStatus
from parley.models.errors import ConnectionLost, HighDemand, RetryLimitExceeded, UsageLimitReached
from parley.ports.model import Chunk, MessageDone, ResponseDone, Retrying, TextDelta

EVERY_API: list[WireApi] = [api for api in get_args(WireApi) if api != "scripted"]

WHOLE: dict[WireApi, Answer] = {
    "chat": streamed(chat_text("Done"), CHAT_STOP, CHAT_END),
    "responses": streamed(responses_text("Done"), RESPONSES_END),
    "anthropic": streamed(anthropic_text("Done"), ANTHROPIC_END),
}

PARTIAL: dict[WireApi, bytes] = {
    "chat": chat_text("par"),
    "responses": responses_text("par"),
    "anthropic": anthropic_text("par"),
}


@pytest.mark.parametrize("api", EVERY_API)
@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "302 Found"])
async def test_a_permanent_refusal_is_reported_at_once_with_its_body(
    caller: Caller, api: WireApi, status: str
) -> None:
    async with Peer(plain(status, b'{"error":"no"}')) as peer:
        with pytest.raises(UnexpectedStatus) as refused:
            await caller.ask(peer, api, request_max_retries=3)

    assert str(refused.value) == f'unexpected status {status}: {{"error":"no"}}'
    assert not refused.value.worth_repeating
    assert len(peer.asked) == 1


async def test_a_redirect_is_not_followed(caller: Caller) -> None:
    caller.environ["KEY"] = "sk-of-the-user"
    async with Peer(WHOLE["chat"]) as elsewhere:
        location = f"location: http://127.0.0.1:{elsewhere.port}/v1/chat/completions"
        async with Peer(plain("307 Temporary Redirect", headers=[location])) as peer:
            with pytest.raises(UnexpectedStatus) as refused:
                await caller.ask(peer, env_key="KEY")

    assert refused.value.status == 307
    assert elsewhere.asked == []


@pytest.mark.parametrize("api", EVERY_API)
@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
async def test_a_transient_refusal_is_retried_and_then_reported(caller: Caller, api: WireApi, status: str) -> None:
    async with Peer(plain(status, b"busy")) as peer:
        with pytest.raises(RetryLimitExceeded) as refused:
            await caller.ask(peer, api, request_max_retries=2)

    assert str(refused.value) == f"exceeded retry limit, last status: {status}"
    assert len(peer.asked) == 3
    assert caller.clock.slept == [pytest.approx(0.2, rel=0.101), pytest.approx(0.4, rel=0.101)]


async def test_500_of_the_responses_api_is_called_high_demand(caller: Caller) -> None:
    async with Peer(plain("500 Internal Server Error")) as peer:
        with pytest.raises(HighDemand):
            await caller.ask(peer, "responses", request_max_retries=1)

        assert len(peer.asked) == 2
        with pytest.raises(RetryLimitExceeded):
            await caller.ask(peer, "chat")


@pytest.mark.parametrize("api", EVERY_API)
async def test_a_try_that_is_accepted_ends_the_repetitions(caller: Caller, api: WireApi) -> None:
    async with Peer(plain("500 Internal Server Error"), plain("429 Too Many Requests"), WHOLE[api]) as peer:
        chunks = await caller.ask(peer, api, request_max_retries=2)

    assert [type(chunk) for chunk in chunks[:2]] == [Retrying, Retrying]
    assert chunks[2] == TextDelta("Done")
    assert peer.asked[0] == peer.asked[1] == peer.asked[2]


@pytest.mark.promises("failures.requests")
@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        ("3", 3),
        ("0", 0),
        ("86400", 60),
        ("Tue, 14 Nov 2023 22:13:27 GMT", 7),  # the clock always returns 22:13:20
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0),
        ("soon", pytest.approx(0.2, rel=0.101)),
    ],
)
async def test_the_provider_says_how_long_to_wait(caller: Caller, retry_after: str, seconds: float) -> None:
    busy = plain("429 Too Many Requests", headers=[f"retry-after: {retry_after}"])
    async with Peer(busy, WHOLE["chat"]) as peer:
        await caller.ask(peer, request_max_retries=1)

    assert caller.clock.slept == [seconds]


@pytest.mark.promises("failures.requests")
@pytest.mark.parametrize(
    ("status", "headers", "slept"),
    [
        ("408 Request Timeout", ["retry-after-ms: 1500", "retry-after: 9"], [1.5]),
        ("409 Conflict", ["retry-after: 2"], [2]),
        ("529 ", ["retry-after-ms: nonsense", "retry-after: 3"], [3]),
        ("400 Bad Request", ["x-should-retry: true", "retry-after: 1"], [1]),
        ("503 Service Unavailable", ["x-should-retry: false"], None),
        ("404 Not Found", [], None),
    ],
)
async def test_the_anthropic_api_states_whether_and_when_to_retry(
    caller: Caller, status: str, headers: list[str], slept: list[float] | None
) -> None:
    async with Peer(plain(status, b"busy", headers=headers), WHOLE["anthropic"]) as peer:
        if slept is None:
            with pytest.raises(UnexpectedStatus):
                await caller.ask(peer, "anthropic", request_max_retries=1)
        else:
            chunks = await caller.ask(peer, "anthropic", request_max_retries=1)
            assert isinstance(chunks[0], Retrying)
            assert chunks[0].reason == ("529 Overloaded" if status.startswith("529") else status)

    assert caller.clock.slept == (slept or [])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":{"type":"usage_limit_reached"}}', "You've hit your usage limit. Try again later."),
        (
            b'{"error":{"type":"usage_limit_reached","resets_in_seconds":90}}',
            "You've hit your usage limit. It resets in 90 seconds.",
        ),
    ],
)
async def test_a_usage_limit_is_reported_at_once(caller: Caller, body: bytes, text: str) -> None:
    async with Peer(plain("429 Too Many Requests", body)) as peer:
        with pytest.raises(UsageLimitReached) as refused:
            await caller.ask(peer, "responses", request_max_retries=3)

        assert str(refused.value) == text
        assert len(peer.asked) == 1
        with pytest.raises(RetryLimitExceeded):
            await caller.ask(peer, "chat")


@pytest.mark.parametrize("body", [b"", b"busy", b"[]", b'{"error":null}', b'{"error":{"type":"other"}}'])
async def test_other_bodies_of_a_429_are_no_usage_limit(caller: Caller, body: bytes) -> None:
    async with Peer(plain("429 Too Many Requests", body)) as peer:
        with pytest.raises(RetryLimitExceeded):
            await caller.ask(peer, "responses")


@pytest.mark.parametrize("api", EVERY_API)
async def test_a_refused_connection_names_the_address_and_no_secret(caller: Caller, api: WireApi) -> None:
    async with Peer(WHOLE[api]) as peer:
        port = peer.port
    path = {"chat": "chat/completions", "responses": "responses", "anthropic": "messages"}[api]

    with pytest.raises(CannotConnect) as failed:
        await everything(
            caller.open(
                settings(
                    api,
                    base_url=f"http://user:password@127.0.0.1:{port}/v1/",
                    query_params={"key": "secret"},
                    request_max_retries=2,
                )
            )
        )

    assert (
        str(failed.value)
        == f"error sending request for url (http://127.0.0.1:{port}/v1/{path}): Connection refused"
    )
    assert failed.value.max_retries == 2
    assert caller.clock.slept == []  # the turn tries again


@pytest.mark.parametrize("base_url", ["nonsense", "http://", "http://127.0.0.1:99999/v1", "ftp://127.0.0.1/v1"])
async def test_an_address_that_is_none_is_a_failure_to_connect(caller: Caller, base_url: str) -> None:
    with pytest.raises(CannotConnect):
        await everything(caller.open(settings(base_url=base_url, request_max_retries=0)))


def test_a_provider_without_an_address_is_a_bad_setting(caller: Caller) -> None:
    with pytest.raises(BadSetting) as bad:
        caller.open(settings(base_url=None))

    assert bad.value.key == "model_providers.mock.base_url"


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_connection_lost_before_the_answer_is_tried_again(caller: Caller, then: str) -> None:
    lost = Answer(b"", "close" if then == "close" else "reset")
    async with Peer(lost, WHOLE["chat"]) as peer:
        retry, first, *_ = await caller.ask(peer, request_max_retries=1)

        assert isinstance(retry, Retrying)
        assert retry.reason.startswith("the connection was lost: ")
        assert first == TextDelta("Done")
    async with Peer(lost) as peer:
        with pytest.raises(ConnectionLost):
            await caller.ask(peer)


async def test_an_answer_that_is_not_http_is_a_lost_connection(caller: Caller) -> None:
    async with Peer(Answer(b"220 mail.example.com ESMTP\r\n\r\n", "close")) as peer:
        with pytest.raises(ConnectionLost):
            await caller.ask(peer)


@pytest.mark.parametrize("api", EVERY_API)
@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_body_that_breaks_off_is_a_disconnected_stream(caller: Caller, api: WireApi, then: str) -> None:
    cut = streamed(PARTIAL[api], whole=False, then="close" if then == "close" else "reset")
    async with Peer(cut) as peer:
        with pytest.raises(ModelStreamBroken) as broken:
            await caller.ask(peer, api, request_max_retries=3)

    assert str(broken.value).startswith("stream disconnected before completion: ")
    assert broken.value.worth_repeating
    assert len(peer.asked) == 1


async def test_chunks_before_the_truncation_were_yielded(caller: Caller) -> None:
    async with Peer(streamed(chat_text("par"), whole=False, then="hang")) as peer:
        batches = caller.model(peer, stream_idle_timeout_ms=200).stream(REQUEST)
        async with asyncio.timeout(TIMEOUT_SECONDS), aclosing(batches):
            with frozen_time():
                first = await anext(batches)
            with pytest.raises(ModelStreamBroken):
                await anext(batches)

    assert first == [TextDelta("par")]


@pytest.mark.parametrize("api", EVERY_API)
async def test_silence_in_mid_answer_is_an_idle_timeout(caller: Caller, api: WireApi) -> None:
    async with Peer(streamed(PARTIAL[api], whole=False, then="hang")) as peer:
        with frozen_time():
            asking = asyncio.create_task(caller.ask(peer, api, stream_idle_timeout_ms=400))
            await peer.was_asked.wait()
        with pytest.raises(ModelStreamBroken) as silent:
            await asking

        await left(peer)
    assert str(silent.value) == "stream disconnected before completion: idle timeout waiting for SSE"


@pytest.mark.parametrize("api", EVERY_API)
async def test_silence_instead_of_an_answer_is_an_idle_timeout(caller: Caller, api: WireApi) -> None:
    async with Peer(Answer(b"", "hang")) as peer:
        with frozen_time():
            asking = asyncio.create_task(caller.ask(peer, api, stream_idle_timeout_ms=400, request_max_retries=3))
            await peer.was_asked.wait()
        with pytest.raises(ModelStreamBroken) as silent:
            await asking

        await left(peer)
    assert silent.value.detail == "idle timeout waiting for SSE"
    assert len(peer.asked) == 1


async def test_a_responses_stream_must_be_completed(caller: Caller) -> None:
    in_progress = responses_event("response.in_progress", response={"id": "r"})
    async with Peer(streamed(responses_text("par"), in_progress)) as peer:
        with pytest.raises(ModelStreamBroken) as broken:
            await caller.ask(peer, "responses")

    assert broken.value.detail == "stream closed before response.completed"


async def test_a_failed_response_says_why(caller: Caller) -> None:
    failed = responses_event("response.failed", response={"id": "r", "error": {"message": "model broke"}})
    async with Peer(streamed(responses_text("par"), failed)) as peer:
        with pytest.raises(ModelStreamBroken) as broken:
            await caller.ask(peer, "responses")

    assert str(broken.value) == "stream disconnected before completion: model broke"


async def test_a_chat_stream_may_just_end(caller: Caller) -> None:
    async with Peer(streamed(chat_text("par"), chat_text("tial"))) as peer:
        chunks = await caller.ask(peer)

    assert chunks == [
        TextDelta("par"),
        TextDelta("tial"),
        MessageDone(MessageItem(text="partial")),
        ResponseDone(None),
    ]


async def test_the_body_of_a_refusal_is_cut_at_4_kib_and_made_readable(caller: Caller) -> None:
    async with Peer(plain("400 Bad Request", b"\xff" + b"x" * 10_000)) as peer:
        with pytest.raises(UnexpectedStatus) as refused:
            await caller.ask(peer)

    assert refused.value.body == "\ufffd" + "x" * 4095


async def test_a_refusal_whose_body_breaks_off_is_reported_with_what_arrived(caller: Caller) -> None:
    async with Peer(Answer(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 100\r\n\r\nno, be", "close")) as peer:
        with pytest.raises(UnexpectedStatus) as refused:
            await caller.ask(peer)

    assert refused.value.body == "no, be"


async def test_a_nonstandard_status_is_reported_as_it_was_sent(caller: Caller) -> None:
    async with Peer(plain("499 Client Gone", b"hm"), plain("498 ", b"hm")) as peer:
        with pytest.raises(UnexpectedStatus, match=r"^unexpected status 499 Client Gone: hm$"):
            await caller.ask(peer)
        with pytest.raises(UnexpectedStatus, match=r"^unexpected status 498 <unknown status code>: hm$"):
            await caller.ask(peer)


async def test_cancelling_closes_the_connection(caller: Caller) -> None:
    async with Peer(streamed(chat_text("par"), whole=False, then="hang")) as peer:
        began = asyncio.Event()

        async def read() -> None:
            async for _ in caller.model(peer).stream(REQUEST):
                began.set()

        task = asyncio.create_task(read())
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await began.wait()
        task.cancel()

        await left(peer)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_the_iterator_closes_the_connection(caller: Caller) -> None:
    async with Peer(streamed(chat_text("par"), whole=False, then="hang")) as peer:
        batches = caller.model(peer).stream(REQUEST)
        async with asyncio.timeout(TIMEOUT_SECONDS), aclosing(batches):
            batch: list[Chunk] = list(await anext(batches))

        await left(peer)
    assert batch == [TextDelta("par")]


async def left(peer: Peer) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await peer.client_left.wait()

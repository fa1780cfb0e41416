"""The scripted model, tested with a raw HTTP client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from parley.testing import (
    HOLD,
    Call,
    Delay,
    Failure,
    Pieces,
    Reasoning,
    RecordedRequest,
    Reply,
    Says,
    ScriptedModel,
    Usage,
)
from parley.testing.model_process import model_process

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


class Caller:
    """One connection to a model."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, base_url: str) -> Caller:
        port = int(base_url.removesuffix("/v1").rpartition(":")[2])
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def ask(self, path: str, body: bytes = b"{}") -> None:
        self.writer.write(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
        )

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def chunks(self) -> list[bytes]:
        await self.head()
        return [chunk async for chunk in self._until_last()]

    async def _until_last(self) -> AsyncIterator[bytes]:
        while chunk := await self.chunk():
            yield chunk

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def answer(model: ScriptedModel, path: str, body: bytes = b"{}") -> list[bytes]:
    caller = await Caller.to(model.base_url)
    caller.ask(path, body)
    chunks = await caller.chunks()
    await caller.close()
    return chunks


def decoded(chunks: list[bytes]) -> list[Any]:
    """Return the data of events, one in each chunk."""
    data = [chunk.rpartition(b"data: ")[2].strip() for chunk in chunks]
    return [one.decode() if one == b"[DONE]" else json.loads(one) for one in data]


def choice(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, **more}]}


async def test_over_chat_each_string_is_a_delta_in_a_chunk_of_its_own() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.says("Hel", "lo", Reasoning("hm"), Usage())

        assert decoded(await answer(model, CHAT)) == [
            choice({"content": "Hel"}),
            choice({"content": "lo"}),
            choice({"reasoning": "hm"}),
            choice({}, finish_reason="stop"),
            "[DONE]",
        ]


async def test_over_chat_usage_is_sent_on_request() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.says(Usage(input_tokens=7, output_tokens=2, cached_input_tokens=1))
        *_, usage, _ = decoded(await answer(model, CHAT, b'{"stream_options": {"include_usage": true}}'))

        assert usage == {
            "choices": [],
            "usage": {
                "prompt_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 1},
                "completion_tokens": 2,
                "completion_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 9,
            },
        }


async def test_over_chat_calls_have_an_index_and_an_id() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.says(Call("shell", {"command": ["ls"]}), Call("shell", "{bad", call_id="mine"))

        assert decoded(await answer(model, CHAT)) == [
            choice({"tool_calls": [function_call(0, "call_1", '{"command":["ls"]}')]}),
            choice({"tool_calls": [function_call(1, "mine", "{bad")]}),
            choice({}, finish_reason="tool_calls"),
            "[DONE]",
        ]


def function_call(index: int, call_id: str, arguments: str) -> dict[str, Any]:
    function = {"name": "shell", "arguments": arguments}
    return {"index": index, "id": call_id, "type": "function", "function": function}


async def test_over_responses_a_text_is_repeated_whole_before_what_follows_it() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.says(Reasoning("hm"), Pieces("Hello", 3), Call("shell", {}, call_id="c"), Usage(input_tokens=1))

        assert decoded(await answer(model, RESPONSES)) == [
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.reasoning_summary_text.delta", "delta": "hm"},
            item({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}),
            {"type": "response.output_text.delta", "delta": "Hel"},
            {"type": "response.output_text.delta", "delta": "lo"},
            item(
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "msg_2",
                    "content": [{"type": "output_text", "text": "Hello"}],
                }
            ),
            item({"type": "function_call", "id": "fc_3", "call_id": "c", "name": "shell", "arguments": "{}"}),
            {
                "type": "response.completed",
                "response": {
                    "id": "resp_1",
                    "usage": {
                        "input_tokens": 1,
                        "input_tokens_details": {"cached_tokens": 0},
                        "output_tokens": 5,
                        "output_tokens_details": {"reasoning_tokens": 0},
                        "total_tokens": 6,
                    },
                },
            },
        ]


def item(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "item": value}


async def test_an_empty_queue_says_done() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        assert decoded(await answer(model, CHAT))[0] == choice({"content": "Done"})


async def test_requests_are_recorded_also_those_in_chunks_and_on_one_connection() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        caller = await Caller.to(model.base_url)
        caller.ask(f"{CHAT}?a=1", b'{"model": "m"}')
        await caller.chunks()
        caller.writer.write(
            b"POST /v1/responses HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX-Two: 2\r\n\r\n"
            b'5\r\n{"a":\r\n3\r\n 1}\r\n0\r\n\r\n'
        )
        await caller.chunks()
        await model.wait_for_requests(2)
        await caller.close()

    assert model.requests == [
        RecordedRequest(
            path="/v1/chat/completions?a=1",
            headers={"host": "x", "content-length": "14"},
            body={"model": "m"},
            raw=b'{"model": "m"}',
        ),
        RecordedRequest(
            path="/v1/responses",
            headers={"transfer-encoding": "chunked", "x-two": "2"},
            body={"a": 1},
            raw=b'{"a": 1}',
        ),
    ]


async def test_a_reply_stands_still_at_hold_until_it_is_released() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.says("before", HOLD, Delay(0.0), "after")
        caller = await Caller.to(model.base_url)
        caller.ask(CHAT)
        await caller.head()

        assert decoded([await caller.chunk()]) == [choice({"content": "before"})]
        await model.wait_until_held()
        model.release()
        assert decoded([await caller.chunk()]) == [choice({"content": "after"})]
        await caller.close()


async def test_nothing_to_release_is_a_mistake_of_the_test() -> None:
    async with ScriptedModel() as model:
        with pytest.raises(AssertionError, match="no reply is held at HOLD"):
            model.release()


async def test_a_reply_whose_client_is_gone_holds_no_more() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.says(HOLD)
        caller = await Caller.to(model.base_url)
        caller.ask(CHAT)
        await model.wait_until_held()
        await caller.close()
        await model.wait_abandoned()

        with pytest.raises(AssertionError, match="no reply is held at HOLD"):
            model.release()


async def test_a_refusal_has_its_status_headers_and_body() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.fails(503, body="busy", headers={"retry-after": "1"})
        caller = await Caller.to(model.base_url)
        caller.ask(CHAT)

        assert (
            await caller.head() == "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\nretry-after: 1\r\n\r\n"
        )
        assert await caller.reader.readexactly(4) == b"busy"
        caller.ask(CHAT)
        assert len(await caller.chunks()) == 3
        await caller.close()


async def test_paths_and_bodies_that_no_model_knows_are_refused() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        caller = await Caller.to(model.base_url)
        caller.ask("/v1/embeddings")
        assert (await caller.head()).startswith("HTTP/1.1 404 ")
        caller.ask(CHAT, b"nonsense")
        assert (await caller.head()).startswith("HTTP/1.1 400 ")
        await caller.close()


async def test_a_closed_reply_ends_without_its_last_chunk() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.cuts("partial", how="close")
        caller = await Caller.to(model.base_url)
        caller.ask(CHAT)
        await caller.head()

        assert decoded([await caller.chunk()]) == [choice({"content": "partial"})]
        assert await caller.reader.read() == b""
        await caller.close()


async def test_a_reset_reply_is_an_error_of_the_connection() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.cuts("partial", how="reset")
        caller = await Caller.to(model.base_url)
        caller.ask(CHAT)
        with pytest.raises(ConnectionResetError):
            await caller.reader.read()
        caller.writer.close()


async def test_a_reply_may_hang_and_the_model_closes_all_the_same() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.cuts("partial", how="hang")
        caller = await Caller.to(model.base_url)
        caller.ask(CHAT)
        await caller.head()
        await caller.chunk()
    await caller.close()


async def test_a_reply_may_end_in_order_and_lack_its_end() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.cuts("partial", how="end")

        assert decoded(await answer(model, CHAT)) == [choice({"content": "partial"})]


async def test_a_reply_is_cut_at_any_byte() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.says("whole")
        whole = b"".join(await answer(model, CHAT))
        for at in (0, 5, len(whole) - 1):
            model.cuts("whole", at=at, how="end")

            assert b"".join(await answer(model, CHAT)) == whole[:at]


async def test_a_raw_body_is_sent_as_it_is_in_pieces() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.sends_raw(b"data: {}\r\n\r\n", cut_every=5)
        caller = await Caller.to(model.base_url)
        caller.ask(CHAT)

        assert "transfer-encoding" not in await caller.head()
        assert await caller.reader.read() == b"data: {}\r\n\r\n"
        await caller.close()


async def test_bad_json_comes_before_a_good_reply() -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.bad_json("{oops", "fine")
        first, *rest = await answer(model, CHAT)

        assert first == b"data: {oops\n\n"
        assert decoded(rest)[0] == choice({"content": "fine"})


async def test_replies_can_be_chosen_by_the_request() -> None:
    def choose(request: RecordedRequest) -> Reply | None:
        match request.body.get("model"):
            case "loud":
                return Says(("HELLO",))
            case "broken":
                return Failure(status=500)
            case _:
                return None

    async with asyncio.timeout(90), ScriptedModel() as model:
        model.set_handler(choose)
        model.says("from the queue")

        assert decoded(await answer(model, CHAT, b'{"model": "loud"}'))[0] == choice({"content": "HELLO"})
        assert decoded(await answer(model, CHAT))[0] == choice({"content": "from the queue"})


@pytest.mark.parametrize("number", [1, 2000, 4500])
async def test_a_bulk_reply_has_each_delta_in_a_chunk_of_its_own(number: int) -> None:
    async with asyncio.timeout(90), ScriptedModel() as model:
        model.deltas(number)
        model.deltas(number, "xy")

        *deltas, _, _ = decoded(await answer(model, CHAT))
        assert deltas == [choice({"content": "abcdefgh"})] * number
        _, *deltas, whole, _ = decoded(await answer(model, RESPONSES))
        assert deltas == [{"type": "response.output_text.delta", "delta": "xy"}] * number
        assert whole["item"]["content"] == [{"type": "output_text", "text": "xy" * number}]


async def test_a_model_in_a_process_of_its_own_answers_alike_every_time() -> None:
    async with asyncio.timeout(90), model_process(deltas=2, text="ab") as base_url:
        for _ in range(2):
            caller = await Caller.to(base_url)
            caller.ask(CHAT)
            assert decoded(await caller.chunks())[:2] == [choice({"content": "ab"})] * 2
            await caller.close()

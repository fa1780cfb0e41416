"""A provider on the loopback that answers with raw bytes, so that truncation and resets are real."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from msgspec import Struct

from kit.system.commands import TIMEOUT_SECONDS
from parley.config.types import (
    Approvals,
    Environment,
    Limits,
    Provider,
    Sandbox,
    Settings,
    ShellEnvironment,
    WireApi,
    WorkspaceWrite,
)
from parley.models import model_opener
from parley.models.http import Http
from parley.ports.model import Chunk, Model, ModelRequest
from parley.wire.ids import ConversationId

CONVERSATION = ConversationId("5f0c5a0e-3f2b-4d4e-9a53-0e8f6c1d2b3a")
REQUEST = ModelRequest(instructions="Be kind.", context=("Here.",), history=())

Then = Literal["keep", "close", "reset", "hang"]


class Answer(Struct, frozen=True):
    raw: bytes
    then: Then = "keep"
    late: bytes = b""
    """The part that is sent after `go_on` is set."""


class ReceivedRequest(Struct, frozen=True):
    target: str
    headers: dict[str, str]
    body: Any


class Peer:
    """A provider that gives its answers in order and repeats the last answer."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[ReceivedRequest] = []
        self.was_asked = asyncio.Event()
        """An event that is set when the first request has arrived."""
        self.connections = 0
        self.client_left = asyncio.Event()
        self.go_on = asyncio.Event()
        self.all_here: asyncio.Barrier | None = None
        """A barrier for requests: no request is answered before all have arrived.

        None means that requests do not wait.
        """
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=200)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._answer_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has disconnected, or the test is over
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.asked.append(ReceivedRequest(first.split(" ")[1], headers, msgspec.json.decode(body)))
        self.was_asked.set()
        if self.all_here is not None:
            await self.all_here.wait()
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        writer.write(answer.raw)
        await writer.drain()
        if answer.late:
            await self.go_on.wait()
            writer.write(answer.late)
        if answer.then == "hang":
            await reader.read()
            self.client_left.set()
        if answer.then == "reset":
            endpoint = writer.get_extra_info("socket")
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return answer.then == "keep"


class RecordingClock:
    """A clock that stands still. A sleep returns at once, and the clock records its length."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self.slept: list[float] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def plain(status: str, body: bytes = b"", *, headers: Sequence[str] = (), then: Then = "keep") -> Answer:
    lines = "".join(f"{header}\r\n" for header in headers)
    head = f"HTTP/1.1 {status}\r\n{lines}content-length: {len(body)}\r\n\r\n"
    return Answer(head.encode() + body, then)


def streamed(*events: bytes, whole: bool = True, then: Then = "keep") -> Answer:
    """Return one HTTP chunk for each event. The last chunk is omitted if the body is incomplete."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
    return Answer(head + chunks + (b"0\r\n\r\n" if whole else b""), then)


def chat_text(text: str) -> bytes:
    return b'data: {"choices":[{"delta":{"content":%b}}]}\n\n' % msgspec.json.encode(text)


CHAT_STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
CHAT_END = b"data: [DONE]\n\n"


def responses_event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def responses_text(text: str) -> bytes:
    return responses_event("response.output_text.delta", delta=text)


RESPONSES_END = responses_event("response.completed", response={"id": "resp_1"})


def anthropic_event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))


def anthropic_text(text: str) -> bytes:
    """Return a text block that has begun."""
    begin = anthropic_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    return begin + anthropic_event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


ANTHROPIC_END = (
    anthropic_event("content_block_stop", index=0)
    + anthropic_event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2})
    + anthropic_event("message_stop")
)


def settings(wire_api: WireApi = "chat", *, model: str = "mock-model", **changes: Any) -> Settings:
    """Return settings with a provider. Arguments that are not fields of `Settings` are fields of `Provider`."""
    known = {name: changes.pop(name) for name in Settings.__struct_fields__ if name in changes}
    base = Settings(
        environ=Environment(),
        home="/nonexistent",
        cwd="/nonexistent",
        model=model,
        model_name=model,
        provider=Provider(**{"id": "mock", "name": "Mock", "wire_api": wire_api, **changes}),
        approval_policy="never",
        sandbox_mode="read-only",
        workspace_write=WorkspaceWrite(),
        sandbox=Sandbox(hidden_paths=("/nonexistent",)),
        approvals=Approvals(),
        limits=Limits(),
        base_instructions=None,
        developer_instructions="",
        compact_prompt="",
        model_reasoning_effort=None,
        model_reasoning_summary="auto",
        model_supports_reasoning_summaries=False,
        show_raw_agent_reasoning=False,
        disable_response_storage=False,
        project_doc_max_bytes=32768,
        notify=(),
        notify_argument=True,
        internal_originator="codex_cli_rs",
        mcp_servers=(),
        shell_environment=ShellEnvironment(),
        key_variables=frozenset({"OPENAI_API_KEY"}),
        model_context_window=None,
        include_plan_tool=False,
    )
    return msgspec.structs.replace(base, **known)


class Caller:
    """Opens models and sends requests."""

    def __init__(self) -> None:
        self.http = Http()
        self.clock = RecordingClock()
        self.environ = Environment()

    def model(self, peer: Peer, wire_api: WireApi = "chat", **changes: Any) -> Model:
        changes = {"base_url": f"http://127.0.0.1:{peer.port}/v1", "request_max_retries": 0, **changes}
        return self.open(settings(wire_api, **changes))

    def open(self, of: Settings) -> Model:
        of = msgspec.structs.replace(of, environ=self.environ)
        return model_opener(http=self.http, clock=self.clock)(of, CONVERSATION)

    async def ask(self, peer: Peer, wire_api: WireApi = "chat", **changes: Any) -> list[Chunk]:
        return await everything(self.model(peer, wire_api, **changes))


async def everything(model: Model, request: ModelRequest = REQUEST) -> list[Chunk]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return [chunk async for batch in model.stream(request) for chunk in batch]

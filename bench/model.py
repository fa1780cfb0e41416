"""The scripted model of the benchmark, and the program `python -m bench.model` that runs it in a separate process.

The text of a request determines the reply, so that one process serves every measure:

- The text of `deltas_of(N)` requests N deltas of eight characters.
- The text of `calls_of(FILE, ...)` requests the tool calls that are stored in the file.
- All other requests, including those with the output of tool calls, get a short reply.

If a request contains several such texts, the last one counts. The program prints its base URL and serves the
Responses API until its stdin closes.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from parley.testing.render import event
from parley.testing.requests import RecordedRequest, read_request
from parley.testing.sending import LAST_CHUNK, chunk, head
from parley.wire.jsonrpc import encode

__all__ = [
    "BEGIN",
    "NOT_FOUND",
    "SHORT_REPLY",
    "STREAM_HEAD",
    "ToolCall",
    "calls_of",
    "delta_event",
    "deltas_of",
    "running_model",
    "running_model_process",
]

DELTA: Final = "abcdefg "

BLOCK_DELTAS: Final = 100
"""The number of deltas in one write. Concurrent replies alternate after each write."""

STREAM_HEAD: Final = head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})

_WISH: Final = re.compile(rb'please send ([^\s"]+) (deltas|calls)')

_call_numbers: Final = itertools.count()


def deltas_of(number: int) -> str:
    """Return the message that requests `number` deltas, each in its own HTTP chunk."""
    return f"please send {number} deltas"


class ToolCall(NamedTuple):
    """A tool call that the model requests."""

    name: str
    arguments: dict[str, Any]


def calls_of(file: Path, calls: Iterable[ToolCall]) -> str:
    """Write tool calls to a file. Return the message that requests all of them in one response."""
    file.write_bytes(encode(list(calls)))
    return f"please send {file} calls"


@contextmanager
def running_model() -> Iterator[str]:
    """Run the model in a separate process until the block ends.

    Yields:
        The base URL of the model.
    """
    with running_model_process() as (base_url, _):
        yield base_url


@contextmanager
def running_model_process() -> Iterator[tuple[str, int]]:
    """Run the model as `running_model` does.

    Yields:
        The base URL of the model, and the id of its process.
    """
    command = (sys.executable, "-m", "bench.model")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip(), process.pid


# --- the events of the API -------------------------------------------------------------


def _typed(kind: str, **fields: Any) -> bytes:
    return b"event: %b\n%b" % (kind.encode(), event(encode({"type": kind, **fields})))


def _message(number: int, text: str | None = None) -> dict[str, Any]:
    content = [] if text is None else [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": content}


def delta_event(text: str = DELTA) -> bytes:
    return _typed("response.output_text.delta", delta=text)


def _done(number: int, text: str) -> bytes:
    return _typed("response.output_item.done", item=_message(number, text))


BEGIN: Final = _typed("response.created", response={"id": "resp_1"}) + _typed(
    "response.output_item.added", output_index=0, item=_message(0)
)
_END: Final = _typed("response.completed", response={"id": "resp_1"})


def _text_in_deltas(number: int, text: str) -> Iterator[bytes]:
    """Yield the HTTP chunks of a message that consists of `number` equal deltas."""
    yield chunk(BEGIN)
    block = chunk(delta_event(text)) * BLOCK_DELTAS
    for _ in range(number // BLOCK_DELTAS):
        yield block
    yield chunk(delta_event(text)) * (number % BLOCK_DELTAS)
    yield chunk(_done(0, text * number)) + chunk(_END)


SHORT_REPLY: Final = b"".join((STREAM_HEAD, *_text_in_deltas(1, "Done"), LAST_CHUNK))
NOT_FOUND: Final = head(404, {"content-length": "0"})
"""The reply to requests other than Responses requests. For example, a peer requests the list of models."""


def _calls(file: Path) -> Iterator[bytes]:
    for name, arguments in msgspec.json.decode(file.read_bytes(), type=list[ToolCall]):
        number = next(_call_numbers)
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name}
        yield chunk(_typed("response.output_item.done", item={**item, "arguments": encode(arguments).decode()}))
    yield chunk(_END)


# --- the server ------------------------------------------------------------------------


def _reply(request: RecordedRequest) -> Iterable[bytes]:
    if request.api != "responses":
        return (NOT_FOUND,)
    match _WISH.findall(request.raw)[-1:]:
        case [(number, b"deltas")]:
            return (STREAM_HEAD, *_text_in_deltas(int(number), DELTA), LAST_CHUNK)
        case [(file, b"calls")] if request.body["input"][-1]["type"] != "function_call_output":
            return (STREAM_HEAD, *_calls(Path(file.decode())), LAST_CHUNK)
        case _:
            return (SHORT_REPLY,)


async def _serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while (request := await read_request(reader)) is not None:
            for data in _reply(request):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the server that used this connection was stopped
    finally:
        writer.close()


async def _serve() -> None:
    server = await asyncio.start_server(_serve_connection, "127.0.0.1", 0)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve())

"""Sends replies over a connection: status lines, headers, chunks, and broken bodies."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from parley.testing.render import Writer
from parley.testing.replies import Ending

__all__ = ["LAST_CHUNK", "chunk", "end_body", "head", "send_bulk"]

LAST_CHUNK: Final = b"0\r\n\r\n"

BULK_WRITE_DELTAS: Final = 2000
"""The number of deltas in one write of a bulk reply. One write is a few hundred kilobytes."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def end_body(writer: asyncio.StreamWriter, how: Ending, *, chunked: bool) -> bool:
    """End the body of a response as `how` specifies, and return whether the connection can be used for another
    request. `chunked` is True if the body uses chunked encoding.
    """
    match how:
        case "end":
            if chunked:
                writer.write(LAST_CHUNK)
                await writer.drain()
            return chunked
        case "close":
            return False
        case "reset":
            # With a linger time of 0, closing sends a reset. The written data must be sent before that.
            await _flush(writer)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            return False
        case "hang":
            await asyncio.Event().wait()  # the wait is cancelled when the client disconnects
            return False


async def _flush(writer: asyncio.StreamWriter) -> None:
    writer.transport.set_write_buffer_limits(high=0)
    await writer.drain()


async def send_bulk(writer: asyncio.StreamWriter, api: Writer, *, deltas: int, text: str) -> None:
    """Send the delta `text`, repeated `deltas` times, and then the end of the reply. `api` encodes the reply."""
    (delta,) = api.text(text)
    tuple(api.text(text * (deltas - 1)))  # the writer stores the text for the end of the reply
    many, rest = divmod(deltas, BULK_WRITE_DELTAS)
    block = chunk(delta) * BULK_WRITE_DELTAS
    for _ in range(many):
        writer.write(block)
        await writer.drain()
    writer.write(chunk(delta) * rest)
    for event in api.end(None):
        writer.write(chunk(event))

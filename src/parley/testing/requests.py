"""Reads HTTP/1.1 requests. Supports only the parts of the protocol that model clients use."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from msgspec import Struct

from parley.testing.render import Api

__all__ = ["RecordedRequest", "read_request"]

_APIS: Final[dict[str, Api]] = {"/chat/completions": "chat", "/responses": "responses", "/messages": "anthropic"}


class RecordedRequest(Struct, frozen=True, kw_only=True):
    """A request that the scripted model has received."""

    path: str
    """The path with the query string."""
    headers: dict[str, str]
    """The values of the headers, keyed by their names in lower case."""
    body: Any
    """The decoded JSON body; None if the body is not JSON."""
    raw: bytes
    """The undecoded body, without chunked encoding."""

    @property
    def api(self) -> Api | None:
        """The model API that the path belongs to; None if the path belongs to no model API."""
        path = self.path.partition("?")[0]
        return next((api for end, api in _APIS.items() if path.endswith(end)), None)


async def read_request(reader: asyncio.StreamReader) -> RecordedRequest | None:
    """Return the next request on a connection, or None if the client has closed the connection.

    Raises:
        asyncio.IncompleteReadError: the client disconnected within a request.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await _read_body(reader, headers)
    return RecordedRequest(path=first.split(" ")[1], headers=headers, body=_decoded(raw), raw=raw)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # skip the trailers
    return body


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None

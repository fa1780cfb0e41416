"""Checks the headers in which a client at protocol version 2026-07-28 repeats values of the request body."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from parley.ports.http import HttpRequest
from parley.server.http.messages import PostedMessage
from parley.wire.http import METHOD, NAME, PROTOCOL_VERSION
from parley.wire.mcp import CallToolParams
from parley.wire.prompts import GetPromptParams
from parley.wire.resources import ReadResourceParams
from parley.wire.tasks import CancelTaskParams, GetTaskParams, UpdateTaskParams

__all__ = ["wrong_header"]

NAMED_METHODS: Final = frozenset({CallToolParams.METHOD, GetPromptParams.METHOD, ReadResourceParams.METHOD})
"""The methods whose parameter `name` or `uri` must be repeated in the header `Mcp-Name`."""
TASK_METHODS: Final = frozenset({GetTaskParams.METHOD, UpdateTaskParams.METHOD, CancelTaskParams.METHOD})
"""The methods whose parameter `taskId` may be repeated in the header `Mcp-Name`. Clients may also omit the header.
"""


def wrong_header(request: HttpRequest, message: PostedMessage) -> str | None:
    """Check the headers of the request that repeat values of `message`, its body. Return a description of the first
    missing or wrong header; None if all of these headers are correct.
    """
    expected = {PROTOCOL_VERSION: message.version, METHOD: message.method}
    if message.method in NAMED_METHODS or (message.method in TASK_METHODS and request.header(NAME)):
        expected[NAME] = message.name
    for header, value in expected.items():
        given = request.header(header)
        if len(given) != 1:
            return f"{header} is missing or repeated"
        if (_decoded(given[0]) if header == NAME else given[0].strip()) != value:
            return f"{header} is not the value in the body"
    return None


def _decoded(value: str) -> str | None:
    """Return the value of a header without surrounding spaces. If the value is marked as Base64, return the decoded
    value; None if the Base64 is invalid.
    """
    value = value.strip()
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[len("=?base64?") : -len("?=")], validate=True).decode()
    except (binascii.Error, ValueError):
        return None

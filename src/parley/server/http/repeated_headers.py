"""Checks the headers in which a client at version 2026-07-28 also sends values of the body."""

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
"""The methods whose `name` or `uri` the client also sends in a header."""
TASK_METHODS: Final = frozenset({GetTaskParams.METHOD, UpdateTaskParams.METHOD, CancelTaskParams.METHOD})
"""The methods whose `taskId` the client may also send in the header that other methods use for `name` or `uri`."""


def wrong_header(request: HttpRequest, message: PostedMessage) -> str | None:
    """Check the headers whose values the body also contains. Return a description of the first invalid header; None
    if all of these headers are valid.
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
    """Return the decoded value of a header if the value is marked as Base64; otherwise return the value without
    surrounding blanks. Return None if the encoding is invalid.
    """
    value = value.strip()
    if not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[len("=?base64?") : -len("?=")], validate=True).decode()
    except (binascii.Error, ValueError):
        return None

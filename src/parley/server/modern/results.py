"""Adds to results the members that protocol version 2026-07-28 requires: the type of the result, the server's name
and version, and the time for which clients may cache the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from parley.version import __version__
from parley.wire.jsonrpc import RequestId, encode
from parley.wire.mcp import SERVER_NAME, SERVER_TITLE, ListToolsResult
from parley.wire.modern import CacheScope, DiscoverResult
from parley.wire.prompts import ListPromptsParams
from parley.wire.resources import ListResourcesParams, ListResourceTemplatesParams, ReadResourceParams
from parley.wire.subscriptions import SUBSCRIPTION_ID, ListenParams

__all__ = ["ResultType", "completed"]

ResultType = Literal["complete", "input_required", "task"]

STATIC_SECONDS: Final = 3600
"""The time in seconds for which a client may cache results that depend only on the installed version of Parley."""

_CACHING: Final[Mapping[str, tuple[int, CacheScope]]] = {
    DiscoverResult.METHOD: (STATIC_SECONDS, "private"),
    ListToolsResult.METHOD: (STATIC_SECONDS, "private"),
    ListPromptsParams.METHOD: (STATIC_SECONDS, "private"),
    ListResourceTemplatesParams.METHOD: (STATIC_SECONDS, "private"),
    ListResourcesParams.METHOD: (0, "private"),
    ReadResourceParams.METHOD: (0, "private"),
}
"""For each method, the time in seconds for which a client may cache the result, and the cache scope of the result.
The scope is private because the results depend on the principal.
"""

_SERVER_INFO: Final = b'"io.modelcontextprotocol/serverInfo":%b' % encode(
    {"name": SERVER_NAME, "title": SERVER_TITLE, "version": __version__}
)


def completed(method: str, request_id: RequestId, result: bytes, result_type: ResultType = "complete") -> bytes:
    """Return `result`, the encoded result of a request with the given method and id, with the additional members
    that protocol version 2026-07-28 requires. `result` must not have a `_meta` yet.
    """
    meta = _SERVER_INFO
    if method == ListenParams.METHOD:
        meta += b',"%b":%b' % (SUBSCRIPTION_ID.encode(), encode(request_id))
    head = b'{"resultType":"%b","_meta":{%b}' % (result_type.encode(), meta)
    if result_type == "complete" and (caching := _CACHING.get(method)) is not None:
        head += b',"ttlMs":%d,"cacheScope":"%b"' % (caching[0] * 1000, caching[1].encode())
    return head + b"}" if result == b"{}" else b"%b,%b" % (head, result[1:])

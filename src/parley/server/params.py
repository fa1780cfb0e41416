"""Decodes the parameters of a request, and restricts methods to certain versions of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct

from parley.errors import ParleyError
from parley.server.dispatch import Call, Handler
from parley.server.errors import InvalidParams, MethodFailed, RequestRefused, UnknownMethod
from parley.wire.jsonrpc import decode_lenient

__all__ = ["by_version", "params_of", "since_full_version"]

Params = TypeVar("Params", bound=Struct)


def params_of(decoder: msgspec.json.Decoder[Params], call: Call) -> Params:
    """Return the decoded parameters of the request, and remove their encoded form from `call`.

    Raises:
        InvalidParams: the parameters do not match the schema.
    """
    params, call.params = call.params, UNSET
    try:
        return decode_lenient(decoder, b"{}" if params is UNSET else params)
    except msgspec.DecodeError as error:
        raise InvalidParams(error) from None


def since_full_version(method: str, handle: Handler) -> Handler:
    """Return a handler that calls `handle`. For clients at protocol version 2025-06-18 and older, the handler
    raises `UnknownMethod`, because `method` does not exist at these versions.

    If `handle` raises a `ParleyError`, the client gets a JSON-RPC error.
    """

    async def handler(call: Call) -> None:
        if not call.context.features.full_version:
            raise UnknownMethod(method)
        try:
            await handle(call)
        except RequestRefused:
            raise
        except ParleyError as error:
            raise MethodFailed(error) from error

    return handler


def by_version(earlier: Mapping[str, Handler], modern: Mapping[str, Handler]) -> Mapping[str, Handler]:
    """Return handlers, by method, that forward each request at protocol version 2026-07-28 to a handler in
    `modern`, and all other requests to a handler in `earlier`.
    """

    def both(method: str) -> Handler:
        async def handler(call: Call) -> None:
            handlers = modern if call.context.features.modern else earlier
            if method not in handlers:
                raise UnknownMethod(method)
            await handlers[method](call)

        return handler

    return {method: both(method) for method in (*earlier, *modern)}

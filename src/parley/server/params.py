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
    """Return the decoded parameters of a request, and free their encoded form.

    Raises:
        InvalidParams: the parameters do not match the schema.
    """
    params, call.params = call.params, UNSET
    try:
        return decode_lenient(decoder, b"{}" if params is UNSET else params)
    except msgspec.DecodeError as error:
        raise InvalidParams(error) from None


def since_full_version(method: str, handle: Handler) -> Handler:
    """Return a handler that calls `handle`, but fails for clients at version 2025-06-18 and older, because the
    method `method` does not exist in these versions.

    Errors of `handle` become JSON-RPC errors.
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
    """Return handlers that pass each request on according to its version: to the handlers `modern` at version
    2026-07-28, and to the handlers `earlier` at all other versions.
    """

    def both(method: str) -> Handler:
        async def handler(call: Call) -> None:
            handlers = modern if call.context.features.modern else earlier
            if method not in handlers:
                raise UnknownMethod(method)
            await handlers[method](call)

        return handler

    return {method: both(method) for method in (*earlier, *modern)}

"""Asks a provider for the names of its models."""

from __future__ import annotations

from contextlib import closing
from typing import Final

import msgspec
from msgspec import Struct

from parley.config.types import Settings
from parley.errors import UnexpectedStatus
from parley.models.anthropic import api_version
from parley.models.credentials import credentials
from parley.models.endpoint import url_of
from parley.models.http import Http

__all__ = ["offered_models"]

MAX_BYTES: Final = 8 * 1024 * 1024
"""The maximum size of a list of models, in bytes. The largest known list is from OpenRouter and is smaller than 1
MiB.
"""


async def offered_models(settings: Settings, *, http: Http, within_seconds: float) -> tuple[str, ...]:
    """Return the names of the models that the provider in `settings` offers, in the provider's order.
    `within_seconds` is the maximum time, in seconds, without a byte from the provider.

    Return an empty tuple if the response is not a list of models.

    Raises:
        ModelError: the key is missing, the provider cannot be reached, or the provider refuses the request.
    """
    provider = settings.provider
    found = credentials(settings)
    is_anthropic = provider.wire_api == "anthropic"
    versions = {"anthropic-version": api_version(provider)} if is_anthropic else {}
    reply = await http.get(
        url_of(provider, "/v1/models" if is_anthropic else "/models"),
        headers={"accept": "application/json", **versions, **found.headers},
        idle_seconds=within_seconds,
        environ=settings.environ,
    )
    with closing(reply):
        if not 200 <= reply.status < 300:
            text = (await reply.beginning()).decode(errors="replace")
            raise UnexpectedStatus(reply.status, reply.reason, found.hide_in(text, is_cut=True))
        body = bytearray()
        while data := await reply.read(within_seconds=within_seconds):
            body += data
            if len(body) > MAX_BYTES:
                return ()
    try:
        return tuple(one.id for one in msgspec.json.decode(body, type=_List).data)
    except (ValueError, RecursionError):
        return ()


class _Offer(Struct, frozen=True):
    id: str


class _List(Struct, frozen=True):
    data: tuple[_Offer, ...]

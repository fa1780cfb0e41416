"""Requests to one URL of a provider, with retries.

Knows statuses, retries and keys. Does not know the content: an API passes the body of its request and a decoder
for the reply.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from parley.config.types import Provider, Settings
from parley.errors import BadSetting, CannotConnect, ModelError, ModelStreamBroken, ReplyTooLarge, UnexpectedStatus
from parley.models.credentials import Credentials, credentials
from parley.models.errors import ConnectionLost, HighDemand, RetryLimitExceeded, UsageLimitReached
from parley.models.http import REFUSAL_BYTES, Http, Reply
from parley.ports.clock import Clock
from parley.ports.model import Chunk, backoff_seconds
from parley.wire.text import replace_surrogates

__all__ = ["Decoder", "Endpoint", "origin_of"]

LONGEST_RETRY_AFTER_SECONDS: Final = 60
"""The longest pause that a provider may request; with a longer one the request fails."""

AFTERTHOUGHT_SECONDS: Final = 3.0
"""How long to wait for the token counts after a complete response. They usually follow at once."""


class Decoder(Protocol):
    """Decodes the bytes of one reply into chunks."""

    done: bool
    """True if the rest of the body is not needed."""

    whole: bool
    """True if the response is complete; only token counts may follow."""

    heard: bool
    """True if the last `feed` had an event that adds to the response."""

    def feed(self, data: bytes) -> list[Chunk]:
        """Decode the next bytes; return the chunks that they complete.

        Raises:
            ReplyTooLarge: the reply exceeds a limit of its provider.
        """
        ...

    def end(self) -> list[Chunk]:
        """Return the last chunks, after `done` or the end of the body.

        Raises:
            ModelStreamBroken: the response is incomplete.
        """
        ...


class Endpoint:
    """The URL, credentials and retry policy for the requests of one conversation.

    Raises:
        BadSetting: the provider has no `base_url`.
    """

    def __init__(
        self,
        settings: Settings,
        path: str,
        *,
        headers: Mapping[str, str],
        http: Http,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._provider = settings.provider
        self._url = _address(settings.provider, path)
        self._headers = {"accept": "text/event-stream", "content-type": "application/json", **headers}
        self._http, self._clock = http, clock

    async def stream(self, body: bytes, decoder: Decoder) -> AsyncGenerator[Sequence[Chunk], None]:
        """Send the request and yield the decoded reply, one batch for each read with content.

        The end of the response is in the same batch as the last chunks.

        Raises:
            ModelError: there is no reply, it is incomplete, or it is too large.
        """
        who = credentials(self._settings)
        idle_seconds = self._provider.stream_idle_timeout_ms / 1000
        with self._limits_named(), closing(await self._accepted(body, who)) as reply:
            del body  # it was sent and may be large
            afterthought: float | None = None  # deadline for token counts, once the response is complete
            silent_at = time.monotonic() + idle_seconds
            chunks: list[Chunk] = []
            while not decoder.done and (data := await _more(reply, silent_at, afterthought)):
                chunks = decoder.feed(data)
                if chunks and not decoder.done:
                    yield chunks
                    chunks = []
                if decoder.heard:
                    silent_at = time.monotonic() + idle_seconds
                if decoder.whole and afterthought is None:
                    afterthought = time.monotonic() + AFTERTHOUGHT_SECONDS
            try:
                last = decoder.end()
            except ModelStreamBroken as broken:
                if chunks:
                    yield chunks
                raise ModelStreamBroken(who.hide_in(broken.detail)) from None
            yield [*chunks, *last]
            await reply.finish()

    @contextmanager
    def _limits_named(self) -> Iterator[None]:
        """Add the name of this provider's setting to an error about a reply that is too large."""
        try:
            yield
        except ReplyTooLarge as too_large:
            raise too_large.of_provider(self._provider.id) from None

    async def _accepted(self, body: bytes, who: Credentials) -> Reply:
        """Send the request, with retries; return the first reply that is not refused."""
        headers = {**self._headers, **who.headers}
        idle_seconds = self._provider.stream_idle_timeout_ms / 1000
        attempt = 1
        while True:
            failure: ModelError
            try:
                reply = await self._http.post(
                    self._url,
                    headers=headers,
                    body=body,
                    idle_seconds=idle_seconds,
                    environ=self._settings.environ,
                )
            except CannotConnect as unreachable:
                # The turn retries, and says so.
                raise CannotConnect(
                    unreachable.url,
                    who.hide_in(unreachable.detail),
                    max_retries=self._provider.request_max_retries,
                ) from None
            except ConnectionLost as lost:
                failure = ConnectionLost(lost.url, who.hide_in(lost.detail))
                wait = None
            else:
                if 200 <= reply.status < 300:
                    return reply
                with closing(reply):
                    failure = await self._refusal(reply, who)
                wait = _seconds(reply.retry_after, now=self._clock.now())
            if attempt > self._provider.request_max_retries or not failure.worth_repeating:
                raise failure
            await self._clock.sleep(backoff_seconds(attempt, random.random()) if wait is None else wait)
            attempt += 1

    async def _refusal(self, reply: Reply, who: Credentials) -> ModelError:
        body = await reply.beginning()
        status, reason = reply.status, who.hide_in(_phrase(reply))
        is_responses = self._provider.wire_api == "responses"
        if status == 429 and is_responses and (limit := _usage_limit(body)):
            return limit
        if status == 500 and is_responses:
            return HighDemand()
        if status == 429 or 500 <= status < 600:
            return RetryLimitExceeded(status, reason)
        text = body.decode(errors="replace")
        return UnexpectedStatus(status, reason, who.hide_in(text, is_cut=len(body) == REFUSAL_BYTES))


async def _more(reply: Reply, silent_at: float, until: float | None) -> bytes:
    """Read the next bytes; empty at the end of the body, or when the deadline `until` passes.

    Raises:
        ModelStreamBroken: the connection was lost, or nothing came before `silent_at`.
    """
    if until is None:
        return await reply.read(within_seconds=silent_at - time.monotonic())
    left = until - time.monotonic()
    try:
        return await reply.read(within_seconds=left) if left > 0 else b""
    except ModelStreamBroken:
        return b""


def origin_of(provider: Provider) -> str:
    """Return the name of a provider for the log: its URL without the parts that may hold secrets."""
    if not provider.base_url:
        return provider.id
    parts = urlsplit(provider.base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _address(provider: Provider, path: str) -> str:
    if not provider.base_url:
        raise BadSetting("this provider needs one", key=f"model_providers.{provider.id}.base_url")
    parts = urlsplit(provider.base_url)
    query = "&".join(filter(None, (parts.query, urlencode(provider.query_params))))
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + path, query, ""))


def _phrase(reply: Reply) -> str:
    """Return the standard reason phrase of the status: servers abbreviate it or leave it out."""
    try:
        return HTTPStatus(reply.status).phrase
    except ValueError:
        return replace_surrogates(reply.reason) or "<unknown status code>"


def _seconds(retry_after: str | None, *, now: float) -> float | None:
    """Parse a `retry-after` header, in seconds or as a date; return seconds, or None if it is invalid."""
    if retry_after is None:
        return None
    from email.utils import parsedate_to_datetime  # loaded with the HTTP library

    try:
        seconds = (
            float(retry_after) if retry_after.isdecimal() else parsedate_to_datetime(retry_after).timestamp() - now
        )
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)


class _Fault(Struct, frozen=True):
    type: str | None = None
    resets_in_seconds: int | None = None


class _Refused(Struct, frozen=True):
    error: _Fault


def _usage_limit(body: bytes) -> UsageLimitReached | None:
    try:
        fault = msgspec.json.decode(body, type=_Refused).error
    except (ValueError, RecursionError):
        return None
    return UsageLimitReached(fault.resets_in_seconds) if fault.type == "usage_limit_reached" else None

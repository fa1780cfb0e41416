"""Sends requests to one URL of a provider. This module handles statuses, retries and keys. The module of each API
supplies the body of the request and a decoder for the reply.
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
from parley.models.errors import ConnectionLost, HighDemand, NoResponse, RetryLimitExceeded, UsageLimitReached
from parley.models.http import REFUSAL_BYTES, Http, Reply
from parley.ports.clock import Clock
from parley.ports.model import Chunk, Retrying, backoff_seconds
from parley.wire.text import replace_surrogates

__all__ = ["Decoder", "Endpoint", "origin_of", "url_of"]

MAX_DELAY_DIGITS: Final = 9

MAX_RETRY_AFTER_SECONDS: Final = 60
"""The maximum delay, in seconds, that a provider can request before a retry. A longer delay is reduced to this
value.
"""

ANTHROPIC_TRANSIENT: Final = frozenset({408, 409})
"""The HTTP statuses 408 (timeout) and 409 (conflict). Only a request to the Anthropic Messages API is repeated
after these statuses. A request to any model API is repeated after the statuses 429 and 5xx.
"""

OVERLOADED: Final = 529
"""The HTTP status with which Anthropic's service reports that it is overloaded."""

TOKEN_COUNT_SECONDS: Final = 3.0
"""The time, in seconds, to wait for the token counts after a complete response. The token counts usually follow
immediately.
"""


class Decoder(Protocol):
    """Decodes the bytes of one reply into chunks."""

    done: bool
    """True if the decoder does not need any more bytes of the body."""

    whole: bool
    """True if the response is complete, so that only token counts can follow."""

    got_content: bool
    """True if the last call of `feed` processed an event that adds content to the response."""

    def feed(self, data: bytes) -> list[Chunk]:
        """Decode the next bytes of the body, and return the chunks that they complete.

        Raises:
            ReplyTooLarge: the reply exceeds a size limit in the settings of the provider.
        """
        ...

    def end(self) -> list[Chunk]:
        """Return the last chunks of the reply. Call this when `done` is True or the body has ended.

        Raises:
            ModelStreamBroken: the response is incomplete.
        """
        ...


class Endpoint:
    """The URL, credentials and retry policy for the requests of one conversation.

    The constructor raises `BadSetting` if the provider has no `base_url`.
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
        self._url = url_of(settings.provider, path)
        self._headers = {"accept": "text/event-stream", "content-type": "application/json", **headers}
        self._http, self._clock = http, clock

    async def stream(self, body: bytes, decoder: Decoder) -> AsyncGenerator[Sequence[Chunk], None]:
        """Send the request with the given body, and yield the decoded reply, one batch of chunks for each read that
        completes a chunk.

        The end of the response is in the same batch as the last chunks. Before the reply, each retry yields a batch
        with one `Retrying`.

        Raises:
            ModelError: there is no reply, or the reply is incomplete or too large.
        """
        who = credentials(self._settings)
        idle_seconds = self._provider.stream_idle_timeout_ms / 1000
        attempt = 1
        while isinstance(sent := await self._send(body, who, attempt), Retrying):
            yield [sent]
            await self._clock.sleep(sent.delay_seconds)
            attempt += 1
        with self._limits_named(), closing(sent) as reply:
            del body  # the body has been sent and may be large
            # The deadline for the token counts, set when the response is complete.
            counts_until: float | None = None
            silent_at = time.monotonic() + idle_seconds
            chunks: list[Chunk] = []
            while not decoder.done and (data := await _more(reply, silent_at, counts_until)):
                chunks = decoder.feed(data)
                if chunks and not decoder.done:
                    yield chunks
                    chunks = []
                if decoder.got_content:
                    silent_at = time.monotonic() + idle_seconds
                if decoder.whole and counts_until is None:
                    counts_until = time.monotonic() + TOKEN_COUNT_SECONDS
            try:
                last = decoder.end()
            except ModelStreamBroken as broken:
                if chunks:
                    yield chunks
                raise _hidden(broken, who) from None
            yield [*chunks, *last]
            await reply.finish()

    @contextmanager
    def _limits_named(self) -> Iterator[None]:
        """Add the id of the provider to each `ReplyTooLarge` that the `with` block raises. The message of the error
        then contains the full name of the setting that limits the reply.
        """
        try:
            yield
        except ReplyTooLarge as too_large:
            raise too_large.of_provider(self._provider.id) from None

    async def _send(self, body: bytes, credentials: Credentials, attempt: int) -> Reply | Retrying:
        """Send the request. Return the reply if its status is 2xx. After a transient error, return a `Retrying`
        with the delay before the next attempt. `attempt` is the number of this attempt, beginning at 1.

        Raises:
            ModelError: the error is not transient, or no retry is left.
        """
        failure: ModelError
        wait: float | None = None
        try:
            reply = await self._http.post(
                self._url,
                headers={**self._headers, **credentials.headers},
                body=body,
                idle_seconds=self._provider.stream_idle_timeout_ms / 1000,
                environ=self._settings.environ,
            )
        except CannotConnect as unreachable:
            # The request is not retried here, because the turn retries it and tells clients about each retry.
            raise CannotConnect(
                unreachable.url,
                credentials.hide_in(unreachable.detail),
                max_retries=self._provider.request_max_retries,
            ) from None
        except ConnectionLost as lost:
            failure = ConnectionLost(lost.url, credentials.hide_in(lost.detail))
            reason = f"the connection was lost: {failure.detail}"
        else:
            if 200 <= reply.status < 300:
                return reply
            with closing(reply):
                failure = await self._refusal(reply, credentials)
            wait = _retry_delay(reply.headers, now=self._clock.now())
            reason = f"{reply.status} {credentials.hide_in(_phrase(reply))}"
        if attempt > self._provider.request_max_retries or not failure.worth_repeating:
            try:
                raise failure
            finally:
                # Otherwise the error and this frame would refer to each other, and keep the turn in memory.
                del failure
        return Retrying(
            attempt=attempt,
            max_attempts=self._provider.request_max_retries,
            delay_seconds=backoff_seconds(attempt, random.random()) if wait is None else wait,
            reason=replace_surrogates(reason),
        )

    def _is_transient(self, reply: Reply) -> bool:
        """Return whether the provider may accept the same request later. For the Anthropic Messages API, the header
        `x-should-retry` takes precedence over the status.
        """
        is_transient = reply.status == 429 or 500 <= reply.status < 600
        if self._provider.wire_api != "anthropic":
            return is_transient
        match reply.headers.get("x-should-retry"):
            case "true":
                return True
            case "false":
                return False
            case _:
                return is_transient or reply.status in ANTHROPIC_TRANSIENT

    async def _refusal(self, reply: Reply, credentials: Credentials) -> ModelError:
        body = await reply.beginning()
        status, reason = reply.status, credentials.hide_in(_phrase(reply))
        is_responses = self._provider.wire_api == "responses"
        if status == 429 and is_responses and (limit := _usage_limit(body)):
            return limit
        if status == 500 and is_responses:
            return HighDemand()
        if self._is_transient(reply):
            return RetryLimitExceeded(status, reason)
        text = body.decode(errors="replace")
        return UnexpectedStatus(status, reason, credentials.hide_in(text, is_cut=len(body) == REFUSAL_BYTES))


def _hidden(broken: ModelStreamBroken, credentials: Credentials) -> ModelStreamBroken:
    """Return a copy of the error `broken` for clients, with the secrets in `credentials` redacted."""
    # The text is redacted before it is shortened, so that no part of a secret remains.
    if isinstance(broken, NoResponse):
        return NoResponse(credentials.hide_in(broken.body, is_cut=broken.is_cut))
    return ModelStreamBroken(credentials.hide_in(broken.detail))


async def _more(reply: Reply, silent_at: float, until: float | None) -> bytes:
    """Return the next bytes of the body.

    Return empty bytes at the end of the body, or when the deadline `until` has passed. `until` and `silent_at` are
    monotonic times in seconds.

    Raises:
        ModelStreamBroken: there is no deadline, and the connection was lost or no bytes arrived until `silent_at`.
    """
    if until is None:
        return await reply.read(within_seconds=silent_at - time.monotonic())
    left = until - time.monotonic()
    try:
        return await reply.read(within_seconds=left) if left > 0 else b""
    except ModelStreamBroken:
        return b""


def origin_of(provider: Provider) -> str:
    """Return the name by which logs identify a provider: the base URL without user, password, query and fragment,
    which may contain secrets. If the provider has no base URL, return its id.
    """
    if not provider.base_url:
        return provider.id
    parts = urlsplit(provider.base_url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def url_of(provider: Provider, path: str) -> str:
    """Return the URL of a path below the base URL of a provider, with the query parameters from the provider's
    settings.

    Raises:
        BadSetting: the provider has no base URL.
    """
    if not provider.base_url:
        raise BadSetting("this provider requires a base URL", key=f"model_providers.{provider.id}.base_url")
    parts = urlsplit(provider.base_url)
    query = "&".join(filter(None, (parts.query, urlencode(provider.query_params))))
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") + path, query, ""))


def _phrase(reply: Reply) -> str:
    """Return the standard reason phrase for the reply's status. The server's own phrase is used only for an unknown
    status, because some servers abbreviate or omit the phrase.
    """
    if reply.status == OVERLOADED:
        return "Overloaded"
    try:
        return HTTPStatus(reply.status).phrase
    except ValueError:
        return replace_surrogates(reply.reason) or "<unknown status code>"


def _retry_delay(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return the delay, in seconds, that the header `retry-after-ms` or `retry-after` requests. Return None if
    neither header is present and valid. `now` is the current time in seconds since the epoch.
    """
    milliseconds = headers.get("retry-after-ms", "")
    if milliseconds.isascii() and milliseconds.isdecimal():
        return min(float(milliseconds[:MAX_DELAY_DIGITS]) / 1000, MAX_RETRY_AFTER_SECONDS)
    return _seconds(headers.get("retry-after"), now=now)


def _seconds(retry_after: str | None, *, now: float) -> float | None:
    """Return the number of seconds that a `retry-after` header requests; None if the header is missing or invalid.
    The header contains a number of seconds, or a date that is compared with `now`, the current time in seconds
    since the epoch.
    """
    if retry_after is None:
        return None
    from email.utils import parsedate_to_datetime  # imported here: the HTTP library has already loaded this module

    try:
        seconds = (
            float(retry_after) if retry_after.isdecimal() else parsedate_to_datetime(retry_after).timestamp() - now
        )
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


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

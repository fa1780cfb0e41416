"""Sends one small request to the provider of a model, and explains a failure."""

from __future__ import annotations

import time
from difflib import get_close_matches
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from parley.app.model_lists import models_of
from parley.app.system_clock import SystemClock
from parley.common.proxies import proxy_for
from parley.config.provider_keys import key_variable
from parley.config.types import Settings
from parley.conversation.history import UserItem
from parley.errors import BadSetting, CannotConnect, ModelError, ModelStreamBroken, UnexpectedStatus
from parley.models import model_opener
from parley.models.errors import (
    BadScript,
    ConnectionLost,
    HighDemand,
    MissingVariable,
    NoResponse,
    RetryLimitExceeded,
    UsageLimitReached,
)
from parley.models.http import Http
from parley.ports.model import ModelRequest, ResponseDone
from parley.wire.events import TokenCount
from parley.wire.ids import ConversationId
from parley.wire.items import TextItem

__all__ = ["ProviderAnswer", "ProviderFault", "check_provider"]

ANSWER_SECONDS: Final = 120
"""The maximum time, in seconds, to wait for the next byte of the response. The time is long because a local server
may load the model first.
"""
MAX_OUTPUT_TOKENS: Final = 64
"""The maximum number of tokens in the response, for APIs that require a limit."""
MAX_NAMED: Final = 5
"""The maximum number of models that the explanation of a failed check names."""

REQUEST: Final = ModelRequest(
    instructions="Answer with the word ok.", context=(), history=(UserItem((TextItem(text="Say ok."),)),)
)
CONVERSATION: Final = ConversationId("00000000-0000-4000-8000-000000000000")


class ProviderAnswer(Struct, frozen=True, kw_only=True):
    """The result of a successful check. `seconds` is the duration of the request."""

    seconds: float
    usage: TokenCount | None
    """The token counts of the request; None if the provider did not report them."""


class ProviderFault(Struct, frozen=True, kw_only=True):
    """The result of a failed check: the reason, and what the user can do."""

    reason: str
    to_do: str
    is_about_model: bool = False
    """True if the check failed because the provider does not offer the model. False if the check failed for another
    reason.
    """


async def check_provider(settings: Settings) -> ProviderAnswer | ProviderFault:
    """Send one request without tools to the model in `settings`, without retries, and return the result."""
    began = time.monotonic()
    try:
        usage = await _request(_without_retries(settings))
    except BadSetting as error:
        return ProviderFault(reason=str(error), to_do="correct the setting")
    except ModelError as error:
        return await _explained(error, settings)
    return ProviderAnswer(seconds=time.monotonic() - began, usage=usage)


async def _request(settings: Settings) -> TokenCount | None:
    http = Http()
    try:
        model = model_opener(http=http, clock=SystemClock())(settings, CONVERSATION)
        usage = None
        async for batch in model.stream(REQUEST):
            for chunk in batch:
                if isinstance(chunk, ResponseDone):
                    usage = chunk.usage
        return usage
    finally:
        await http.close()


def _without_retries(settings: Settings) -> Settings:
    silent_ms = min(settings.provider.stream_idle_timeout_ms, ANSWER_SECONDS * 1000)
    provider = replace(
        settings.provider, request_max_retries=0, stream_max_retries=0, stream_idle_timeout_ms=silent_ms
    )
    return replace(
        settings,
        provider=provider,
        model_max_output_tokens=MAX_OUTPUT_TOKENS,
        model_thinking=None,
        model_thinking_budget=None,
        web_search=False,
        output_schema=None,
    )


# --- the explanation ---------------------------------------------------------------------


async def _explained(error: ModelError, settings: Settings) -> ProviderFault:
    provider = settings.provider
    match error:
        case MissingVariable(variable=variable):
            return ProviderFault(
                reason=f"the key is missing: {variable} is not set",
                to_do=f"set it with `export {variable}=...`, or store the key with `parley config init --force`",
            )
        case UnexpectedStatus(status=401 | 403 as status):
            variable = key_variable(provider) or "the settings of the provider"
            return ProviderFault(
                reason=f"{provider.id} refused the key (status {status}): {_message(error.body)}",
                to_do=f"check the key in {variable}: it may be mistyped, expired or not allowed to use this model",
            )
        case UnexpectedStatus(status=402):
            return _without_credit(provider.id, f"status 402: {_message(error.body)}")
        case UnexpectedStatus(status=status) if 300 <= status < 400:
            return ProviderFault(
                reason=f"{provider.base_url} redirects requests to another URL (status {status})",
                to_do=f"set `model_providers.{provider.id}.base_url` to the final URL",
            )
        case UnexpectedStatus():
            return await _refused(error, settings)
        case RetryLimitExceeded(status=429) | UsageLimitReached():
            return _without_credit(provider.id, str(error))
        case RetryLimitExceeded() | HighDemand():
            return ProviderFault(
                reason=f"{provider.id} reports an internal error: {error}", to_do="try again in a few minutes"
            )
        case CannotConnect(detail=detail) | ConnectionLost(detail=detail):
            return _unreachable(detail, settings)
        case NoResponse() | ModelStreamBroken():
            return ProviderFault(
                reason=f"the response is not valid for the API {provider.wire_api!r}: {error}",
                to_do=f"check `base_url` and `wire_api` in `model_providers.{provider.id}`",
            )
        case BadScript():
            return ProviderFault(reason=str(error), to_do="correct the script")
        case _:
            return ProviderFault(reason=str(error), to_do="correct the cause, and try again")


def _without_credit(provider: str, detail: str) -> ProviderFault:
    return ProviderFault(
        reason=f"{provider} accepts no more requests at present: {detail}",
        to_do=f"check the credit and the limits of your account at {provider}, or wait",
    )


async def _refused(error: UnexpectedStatus, settings: Settings) -> ProviderFault:
    """Return an explanation of `error`, with which the provider refused a request.

    If the provider's list of models does not contain the model, the explanation says that the provider does not
    offer the model.
    """
    provider, model = settings.provider, settings.model_name
    detail = f"status {error.status}: {_message(error.body)}"
    try:
        offered = await models_of(settings)
    except (ModelError, BadSetting):
        offered = ()
    if offered and not {model, f"models/{model}"} & {*offered}:
        similar = get_close_matches(model, offered, n=MAX_NAMED, cutoff=0.4) or offered[:MAX_NAMED]
        return ProviderFault(
            reason=f"{provider.id} does not offer the model {model!r} ({detail})",
            to_do=f"choose another model with `parley config set model`, for example {', '.join(similar)}",
            is_about_model=True,
        )
    if error.status == 404:
        return ProviderFault(
            reason=f"{provider.id} found neither the API nor the model {model!r} ({detail})",
            to_do=f"check the name of the model, and `model_providers.{provider.id}.base_url`",
            is_about_model=bool(offered),
        )
    return ProviderFault(
        reason=f"{provider.id} refused the request ({detail})",
        to_do="check the name of the model and the settings of the provider",
    )


def _unreachable(detail: str, settings: Settings) -> ProviderFault:
    provider = settings.provider
    url = provider.base_url or ""
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    reason = f"{shown} cannot be reached: {detail}"
    if "certificate" in detail:
        return ProviderFault(
            reason=reason,
            to_do="if your network replaces certificates, set SSL_CERT_FILE to a file with its certificate",
        )
    if proxy_for(url, settings.environ) is not None:
        return ProviderFault(
            reason=f"{reason}; the request went through the proxy in the environment variables",
            to_do="check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
        )
    if parts.hostname in ("localhost", "127.0.0.1", "::1"):
        return ProviderFault(reason=reason, to_do=f"start the model server {provider.id}, or correct its URL")
    return ProviderFault(reason=reason, to_do="check the URL and the network; a proxy may be needed (HTTPS_PROXY)")


class _Detail(Struct, frozen=True):
    message: str = ""


class _Error(Struct, frozen=True):
    error: _Detail | str


def _message(body: str) -> str:
    """Return the error message in the body of a response. If the body has an unknown form, return the beginning of
    the body.
    """
    try:
        found = msgspec.json.decode(body, type=_Error).error
    except (ValueError, RecursionError):
        found = ""
    text = found if isinstance(found, str) else found.message
    return " ".join((text or body).split())[:300] or "no explanation"

"""Errors that only the model clients raise."""

from __future__ import annotations

from typing import Final

from parley.errors import ModelError, ModelStreamBroken, ReplyTooLarge
from parley.wire.text import visible

__all__ = [
    "BadRecording",
    "BadScript",
    "ConnectionLost",
    "HighDemand",
    "MissingVariable",
    "NoResponse",
    "RetryLimitExceeded",
    "ScriptedError",
    "TooManyValues",
    "UsageLimitReached",
]

SHOWN_CHARACTERS: Final = 200
"""The maximum number of characters of a response body that an error message shows."""


class RetryLimitExceeded(ModelError):
    """Raised when the provider responds to the last permitted attempt with a retryable HTTP status, such as 429 or
    503.
    """

    code = "retry_limit_exceeded"

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"exceeded retry limit, last status: {status} {reason}")
        self.status, self.reason = status, reason


class HighDemand(ModelError):
    """Raised when the Responses API responds to the last permitted attempt with the HTTP status 500."""

    code = "high_demand"

    def __init__(self) -> None:
        super().__init__("We're currently experiencing high demand, which may cause temporary errors.")


class UsageLimitReached(ModelError):
    """Raised when the provider did not accept a request because the account has used up its quota."""

    code = "usage_limit_reached"
    worth_repeating = False

    def __init__(self, resets_in_seconds: int | None = None) -> None:
        when = "" if resets_in_seconds is None else f" It resets in {resets_in_seconds} seconds."
        super().__init__(f"You've hit your usage limit.{when or ' Try again later.'}")
        self.resets_in_seconds = resets_in_seconds


class ConnectionLost(ModelError):
    """Raised when the connection was lost before the response began, or the response was not HTTP."""

    code = "connection_lost"

    def __init__(self, url: str, detail: str) -> None:
        super().__init__(f"error sending request for url ({url}): {detail}")
        self.url, self.detail = url, detail


class NoResponse(ModelStreamBroken):
    """Raised when the provider responded with status 2xx, but the body is not a response of the provider's API."""

    code = "no_response"

    def __init__(self, body: str, *, is_cut: bool = False) -> None:
        """Create the error. `body` is the beginning of the response body. `is_cut` is True if the response body is
        longer than `body`.
        """
        if body:
            super().__init__(f"the body contains no response; it begins with: {_beginning(body)}")
        else:
            super().__init__("the body of the response is empty")
        self.body, self.is_cut = body, is_cut


def _beginning(body: str) -> str:
    """Return the first `SHOWN_CHARACTERS` characters of a body, or the whole body if it is shorter. Invisible
    characters are escaped.
    """
    text = visible(body[: SHOWN_CHARACTERS + 1])
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "\u2026"


class TooManyValues(ReplyTooLarge):
    """Raised when one event of the model's reply contains too many JSON values."""

    code = "too_many_values"

    def __init__(self, limit: int) -> None:
        ModelError.__init__(self, f"the model sent an event with more than {limit} JSON values")
        self.limit = limit

    def of_provider(self, provider: str) -> TooManyValues:
        return self


class MissingVariable(ModelError):
    """Raised when the environment variable for the provider's key is not set or is empty."""

    code = "missing_variable"
    worth_repeating = False

    def __init__(self, variable: str, instructions: str | None) -> None:
        hint = f" {instructions}" if instructions else ""
        super().__init__(f"Missing environment variable: `{variable}`.{hint}")
        self.variable, self.instructions = variable, instructions


class BadScript(ModelError):
    """Raised when the script of the scripted provider cannot be read or is invalid."""

    code = "bad_script"
    worth_repeating = False

    def __init__(self, source: str, detail: str) -> None:
        super().__init__(f"script {source}: {detail}")
        self.source, self.detail = source, detail


class BadRecording(ModelError):
    """Raised when a recording cannot be read or written, or when the file is not a recording."""

    code = "bad_recording"
    worth_repeating = False

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"recording {path}: {detail}")
        self.path, self.detail = path, detail


class ScriptedError(ModelError):
    """Raised by the scripted provider when the script contains an error after which the request is not repeated."""

    code = "scripted_error"
    worth_repeating = False

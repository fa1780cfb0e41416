"""The file format of the scripted provider, and its validation (docs/scripted.md).

`scripted.py` plays a script. A recording (`recording.py`) is read as one script for each conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from parley.conversation.records import CallItem
from parley.models.errors import BadScript
from parley.wire.events import WebSearchResult

__all__ = ["Call", "Script", "Search", "Step", "Usage", "decode_script", "is_deep", "recorded_call"]

MAX_LEVELS: Final = 20
"""The maximum number of nesting levels of tool arguments that are stored as an object."""

Milliseconds = Annotated[int, Meta(ge=0)]
Tokens = Annotated[int, Meta(ge=0)]


class Call(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function call in a reply of the script."""

    name: str
    arguments: dict[str, Any] | str = {}
    """The arguments as an object, or as a string that is sent unchanged. The string need not be valid JSON."""
    call_id: str | None = None


class Usage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The token counts that a scripted response reports."""

    input_tokens: Tokens
    output_tokens: Tokens
    cached_input_tokens: Tokens | None = None
    reasoning_output_tokens: Tokens | None = None


class Search(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A web search by the provider."""

    query: str
    results: tuple[WebSearchResult, ...] = ()
    error: str | None = None
    """The error code of a search that failed; None if the search did not fail."""


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a scripted reply. Exactly one field is set."""

    text: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    raw_reasoning: str | UnsetType = UNSET
    call: Call | UnsetType = UNSET
    search: Search | UnsetType = UNSET
    delay_ms: Milliseconds | UnsetType = UNSET
    fail: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    """The message of an error after which the request is not repeated."""
    usage: Usage | UnsetType = UNSET
    cut_by: str | UnsetType = UNSET
    """The provider's reason for cutting off the response."""
    refused: str | UnsetType = UNSET
    """The model's explanation for declining the request."""
    paused: Literal[True] | UnsetType = UNSET
    """True if the provider pauses the response. The response to the next request continues the paused response."""


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A script: replies in the order in which they are played. After the last reply, the first reply is played
    again.
    """

    replies: Annotated[Sequence[Sequence[Step]], Meta(min_length=1)]
    delta_delay_ms: Milliseconds = 0
    """The delay, in milliseconds, before each word."""


_decoder = msgspec.json.Decoder(Script)


def decode_script(path: str, data: bytes) -> Script:
    """Decode the script in a file.

    Raises:
        BadScript: the script is invalid.
    """
    try:
        script = _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise BadScript(path, str(error)) from None
    for reply_index, reply in enumerate(script.replies):
        for step_index, step in enumerate(reply):
            named = [name for name in Step.__struct_fields__ if getattr(step, name) is not UNSET]
            if len(named) != 1:
                found = " and ".join(named) or "nothing"
                place = f"$.replies[{reply_index}][{step_index}]"
                raise BadScript(path, f"Expected exactly one field in a step, got {found} - at `{place}`")
    return script


def recorded_call(item: CallItem) -> Call:
    """Convert a tool call of a model to a call in a script.

    Arguments that are a JSON object are stored as an object, which is easier to read than a string.
    """
    arguments: dict[str, Any] | str = item.arguments
    try:
        decoded = msgspec.json.decode(item.arguments.encode())
        if isinstance(decoded, dict) and not is_deep(decoded):
            arguments = decoded
    except (ValueError, RecursionError):
        pass
    return Call(name=item.name, arguments=arguments, call_id=item.call_id)


def is_deep(value: Any) -> bool:
    """Return whether a JSON value has more than `MAX_LEVELS` nesting levels."""
    level = [value]
    for _ in range(MAX_LEVELS + 1):
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return False
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return True

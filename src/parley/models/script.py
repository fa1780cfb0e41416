"""The file format of the scripted provider, and its validation (docs/scripted.md).

`scripted.py` plays a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from parley.common.files import read_file
from parley.models.errors import BadScript

__all__ = ["Call", "Script", "Step", "Usage", "read_script"]

Milliseconds = Annotated[int, Meta(ge=0)]
Tokens = Annotated[int, Meta(ge=0)]


class Call(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function call in a reply of the script."""

    name: str
    arguments: dict[str, Any] | str = {}
    """The arguments as an object, or as a string that is sent unchanged. The string need not be valid JSON."""
    call_id: str | None = None


class Usage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The token counts that a scripted response reports."""

    input_tokens: Tokens
    output_tokens: Tokens
    cached_input_tokens: Tokens | None = None
    reasoning_output_tokens: Tokens | None = None


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of a scripted reply. Exactly one field is set."""

    text: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    call: Call | UnsetType = UNSET
    delay_ms: Milliseconds | UnsetType = UNSET
    fail: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A script: replies in the order in which they are played. After the last reply, the first one is played
    again.
    """

    replies: Annotated[Sequence[Sequence[Step]], Meta(min_length=1)]
    delta_delay_ms: Milliseconds = 0
    """The pause before each word, in milliseconds."""


_decoder = msgspec.json.Decoder(Script)


def read_script(path: str) -> Script:
    """Read a script from a file.

    Raises:
        BadScript: the file does not exist or is invalid.
    """
    try:
        script = _decoder.decode(read_file(path))
    except OSError as error:
        raise BadScript(path, error.strerror or str(error)) from None
    except ValueError as error:
        raise BadScript(path, str(error)) from None
    for reply_index, reply in enumerate(script.replies):
        for step_index, step in enumerate(reply):
            named = [name for name in Step.__struct_fields__ if getattr(step, name) is not UNSET]
            if len(named) != 1:
                found = " and ".join(named) or "nothing"
                place = f"$.replies[{reply_index}][{step_index}]"
                raise BadScript(path, f"Expected exactly one field in a step, got {found} - at `{place}`")
    return script

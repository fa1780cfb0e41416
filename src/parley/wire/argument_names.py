"""Finds the arguments of a tool call by any accepted spelling of their names, and rejects misspelt names.

A misspelt name must not be ignored: the argument could be meant to restrict the agent, which would then run without
the restriction. Names are accepted in kebab, snake and camel case. If an unknown name resembles a known name, the
tool call fails (docs/protocol.md#tools). The schemas list one spelling of each name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from parley.common.spelling import forms_of, is_about_safety, near_miss, shortened, shown_name
from parley.errors import BadArguments
from parley.wire.jsonrpc import decode_lenient, encode, is_null

__all__ = ["limit_names", "respelled"]

_ALSO: Final[Mapping[str, tuple[str, ...]]] = {
    "sandbox": ("sandbox_mode",),
    "sessionId": ("threadId", "conversationId"),
    "threadId": ("sessionId", "conversationId"),
}
"""The alternative names of arguments. Each key is the name of an argument in the schema."""

_MAX_UNKNOWN: Final = 100
"""The maximum number of unknown arguments in a tool call. Each unknown name is compared with all known names, and
the limit bounds how long these comparisons block the event loop.
"""

_MAX_NAMES: Final = 10_000
"""The maximum number of argument names in a tool call whose arguments have at least `LARGE_BYTES` (`arguments.py`).
A repeated name counts each time.
"""

_MAX_NAME: Final = 1000
"""The maximum length, in characters, of an unknown argument name in a tool call whose arguments have at least
`LARGE_BYTES`.
"""

_MAX_COMPARED: Final = 64 * 1024
"""The maximum size, in bytes, of the encoded values that `_is_same` decodes to compare them. Larger values are
compared as bytes.
"""

_any_decoder: Final = msgspec.json.Decoder()


def respelled(kind: type[Struct], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known arguments of a tool call, by their names in the schema of `kind`. Leave out unknown
    arguments.

    `given` maps the names in the tool call to values, which may be decoded, or encoded as `Raw`.

    Raises:
        BadArguments: two spellings of one argument have different values, an unknown name resembles a known name or
            the name of an argument that restricts the agent, or there are too many unknown names.
    """
    spellings = _spellings(kind)
    arguments: dict[str, Any] = {}
    written: dict[str, str] = {}
    unknown = 0
    for name, value in given.items():
        known = spellings.get(name)
        if known is None:
            if not _is_null(value):  # null means the same as a missing argument
                unknown += 1
                if unknown > _MAX_UNKNOWN:
                    raise BadArguments(f"more than {_MAX_UNKNOWN} unknown arguments", field="arguments")
                _refuse_if_misspelt(name, kind)
            continue
        if known in arguments and not _is_null(value) and not _is_null(arguments[known]):
            if not _is_same(value, arguments[known]):
                detail = (
                    f"{shown_name(written[known])} and {shown_name(name)} are one argument with different values"
                )
                raise BadArguments(detail, field=known)
        elif known not in arguments or not _is_null(value):
            arguments[known], written[known] = value, name
    return arguments


def limit_names(kind: type[Struct]) -> Callable[[str], None]:
    """Return a function that checks the argument names while large arguments are decoded. The decoder calls the
    function with each name.

    The names in the schema of `kind` are known, in any accepted spelling. The function raises `BadArguments` for an
    unknown name that is too long, and if there are too many names or too many unknown names. The function sees
    only names, so it also counts unknown arguments whose value is null. `respelled` does not count such arguments.
    """
    spellings = _spellings(kind)
    names, unknown = 0, set[str]()

    def check(name: str) -> None:
        nonlocal names
        names += 1
        if name not in spellings:
            if len(name) > _MAX_NAME:
                detail = f"unknown argument {shown_name(name)}: the name has more than {_MAX_NAME} characters"
                raise BadArguments(detail, field=shortened(name))
            unknown.add(name)
        if len(unknown) > _MAX_UNKNOWN:
            raise BadArguments(f"more than {_MAX_UNKNOWN} unknown arguments", field="arguments")
        if names > _MAX_NAMES:
            raise BadArguments(f"more than {_MAX_NAMES} arguments", field="arguments")

    return check


def _is_null(value: Any) -> bool:
    return is_null(value) if isinstance(value, Raw) else value is None


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values of an argument are equal. Values that are larger than `_MAX_COMPARED` are equal
    only if their encoded bytes are equal.
    """
    if not isinstance(one, Raw) or not isinstance(other, Raw):
        return encode(one) == encode(other)
    if one == other:
        return True
    if max(len(memoryview(one)), len(memoryview(other))) > _MAX_COMPARED:
        return False
    try:
        return encode(decode_lenient(_any_decoder, one)) == encode(decode_lenient(_any_decoder, other))
    except msgspec.DecodeError:
        return False


@cache
def _spellings(kind: type[Struct]) -> dict[str, str]:
    """Return a mapping from every accepted spelling of an argument name to the name in the schema of `kind`."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    spellings = {form: name for name in names for form in (name, *forms_of(name))}
    others = {form: name for name in names for also in _ALSO.get(name, ()) for form in forms_of(also)}
    return {**spellings, **{form: name for form, name in others.items() if form not in spellings}}


def _refuse_if_misspelt(name: str, kind: type[Struct]) -> None:
    spellings = _spellings(kind)
    if (meant := near_miss(name, spellings)) is not None:
        raise BadArguments(f"unknown argument {shown_name(name)}, did you mean `{spellings[meant]}`?", field=name)
    if is_about_safety(name):
        restricting = [f"`{each}`" for each in dict.fromkeys(spellings.values()) if is_about_safety(each)]
        hint = f"use {' and '.join(restricting)}" if restricting else "this tool has no such argument"
        raise BadArguments(f"unknown argument {shown_name(name)}: {hint}", field=name)

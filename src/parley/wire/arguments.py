"""Decodes the arguments of tool calls and explains invalid arguments.

Error messages begin as in Codex (`missing field`, `invalid type`, `unknown variant`). Unlike in Codex, they always
name the field.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from parley.common.spelling import shortened, shown_name
from parley.errors import BadArguments
from parley.wire.argument_names import respelled
from parley.wire.jsonrpc import decode_lenient
from parley.wire.schema import schema_of

__all__ = ["decode_arguments", "decode_call_arguments"]

Decoded = TypeVar("Decoded", bound=Struct)

LARGE_BYTES: Final = 1024 * 1024

_any_decoder: Final = msgspec.json.Decoder()
_members_decoder: Final = msgspec.json.Decoder(dict[str, Raw])
_PLACE: Final = re.compile(r" - at `(?:key in )?\$(.*)`$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MISSING: Final = re.compile(r"missing required field `([^`]*)`")

_EXPECTED: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "object": "a map",
    "array": "a sequence",
}


def decode_arguments(kind: type[Decoded], arguments: Raw | bytes) -> Decoded:
    """Decode arguments as a value of `kind`. Unknown arguments are ignored.

    Raises:
        BadArguments: the arguments do not match the type. The message names the field and the problem.
    """
    return _converted(kind, _decoded(arguments))


def decode_call_arguments(kind: type[Decoded], arguments: Raw | bytes) -> Decoded:
    """Decode the arguments of a client's call as a value of `kind`. Each name may have any accepted spelling.

    An unknown argument is ignored, unless its name looks like a misspelling, or like an argument that restricts the
    agent.

    Raises:
        BadArguments: the arguments do not match the type, or an unknown argument is refused. The message names the
            field and the problem.
    """
    if len(memoryview(arguments)) >= LARGE_BYTES and (fitted := _decode_directly(kind, arguments)) is not None:
        return fitted
    return _converted(kind, respelled(kind, _decoded(arguments)))


def _decode_directly(kind: type[Decoded], arguments: Raw | bytes) -> Decoded | None:
    """Decode the arguments into `kind` without intermediate dicts, because these would take many times more memory.

    Return None if the arguments need lenient decoding, use another spelling or are invalid.
    """
    names, decoder = _names_and_decoder(kind)
    try:
        if not _members_decoder.decode(arguments).keys() <= names:
            return None
        fitted: Decoded = decoder.decode(arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return fitted


def _decoded(arguments: Raw | bytes) -> dict[str, Any]:
    try:
        value = decode_lenient(_any_decoder, arguments)
    except msgspec.DecodeError as error:
        raise BadArguments(f"arguments cannot be read: {error}", field="arguments") from None
    if not isinstance(value, dict):
        raise BadArguments(f"invalid type: {_described(value)}, expected a map (arguments)", field="arguments")
    return value


def _converted(kind: type[Decoded], value: dict[str, Any]) -> Decoded:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), value, _schema_of(kind)) from None


_schema_of: Final = cache(schema_of)


@cache
def _names_and_decoder(kind: type[Struct]) -> tuple[frozenset[str], msgspec.json.Decoder[Any]]:
    names = frozenset(field.encode_name for field in msgspec.structs.fields(kind))
    return names, msgspec.json.Decoder(kind)


def _explained(error: str, value: Any, schema: dict[str, Any]) -> BadArguments:
    place = _PLACE.search(error)
    path = place[1] if place else ""
    found, wanted = _follow(path, value, schema)
    name = path.removeprefix(".")
    if missing := _MISSING.search(error):
        field = f"{name}.{missing[1]}" if name else missing[1]
        detail = f"missing field `{missing[1]}`"
        return BadArguments(f"{detail} ({name})" if name else detail, field=field)
    return BadArguments(f"{_complaint(found, wanted)} ({name})", field=name)


def _complaint(found: Any, wanted: dict[str, Any]) -> str:
    choices = wanted.get("enum")
    if choices and isinstance(found, str):
        return (
            f"unknown variant {shown_name(found)}, expected one of {', '.join(f'`{choice}`' for choice in choices)}"
        )
    if wanted.get("format") == "uuid" and isinstance(found, str):
        return f"invalid value: {_described(found)}, expected a uuid"
    if "maxLength" in wanted and isinstance(found, str):
        return f"invalid value: {_described(found)}, expected a string of at most {wanted['maxLength']} characters"
    if "minimum" in wanted and isinstance(found, int | float) and not isinstance(found, bool):
        limits = f"at least {wanted['minimum']}"
        if "maximum" in wanted:
            limits += f" and at most {wanted['maximum']}"
        return f"invalid value: {_described(found)}, expected {_EXPECTED[wanted['type']]}, {limits}"
    return f"invalid type: {_described(found)}, expected {_EXPECTED.get(wanted.get('type', ''), 'something else')}"


def _follow(path: str, value: Any, schema: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the value at `path` in the arguments, and the schema of that value."""
    for name, index in _STEP.findall(path):
        if "anyOf" in schema:
            schema = _chosen(value, schema["anyOf"])
        if name:
            value = value.get(name) if isinstance(value, dict) else None
            schema = schema.get("properties", {}).get(name, {})
        else:
            value = value[int(index)] if index.isdigit() and isinstance(value, list) else None
            schema = schema.get("items", {})
    if "anyOf" in schema:
        schema = {"type": schema["anyOf"][0].get("type", "object")}
    return value, schema


def _chosen(value: Any, members: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of the union member that the `type` of `value` selects.

    If the `type` is unknown, return a schema that lists all tags.
    """
    tags = [member["properties"]["type"]["enum"][0] for member in members]
    tag = value.get("type") if isinstance(value, dict) else None
    if tag in tags:
        return members[tags.index(tag)]
    return {"properties": {"type": {"type": "string", "enum": tags}}}


def _described(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean `{str(value).lower()}`"
        case int():
            return f"integer `{value}`"
        case float():
            return f"floating point `{value}`"
        case str():
            return f'string "{shortened(value, 101)}"'
        case list():
            return "sequence"
        case _:
            return "map"

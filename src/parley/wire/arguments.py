"""Decodes the arguments of tool calls and explains invalid arguments.

Error messages begin as in Codex (`missing field`, `invalid type`, `unknown variant`). Unlike the messages of Codex,
they always name the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from parley.common.spelling import shortened, shown_name
from parley.errors import BadArguments
from parley.wire.argument_names import limit_names, respelled
from parley.wire.items import LongTextItem
from parley.wire.jsonrpc import decode_lenient, max_values
from parley.wire.schema import schema_of

__all__ = ["decode_arguments", "decode_call_arguments"]

Decoded = TypeVar("Decoded", bound=Struct)

LARGE_BYTES: Final = 1024 * 1024
"""The minimum size, in bytes, of arguments that are decoded field by field. Smaller arguments are decoded as a
whole into generic dicts and lists.
"""

OUTLINE_BYTES: Final = 64 * 1024
"""The maximum size, in bytes, of a value that is decoded completely for an error message about large arguments."""

MAX_CONFIG_VALUES: Final = 10_000
"""The maximum number of values in an object without a schema, such as `config`, in large arguments. Each value
takes up to 150 bytes of memory in addition to its JSON text.
"""

_any_decoder: Final = msgspec.json.Decoder()
_PLACE: Final = re.compile(r" - at `(?:key in )?\$(.*)`$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_MISSING: Final = re.compile(r"missing required field `([^`]*)`")
_VARIANT: Final = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)

_EXPECTED: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "object": "a map",
    "array": "a sequence",
}


def decode_arguments(kind: type[Decoded], arguments: Raw | bytes) -> Decoded:
    """Decode arguments as a value of `kind`, and return this value. Unknown arguments are ignored.

    Raises:
        BadArguments: the arguments do not match `kind`. The message names the field and the problem.
    """
    return _converted(kind, _decoded(arguments))


def decode_call_arguments(kind: type[Decoded], arguments: Raw | bytes) -> Decoded:
    """Decode the arguments of a client's tool call as a value of `kind`, and return this value. Each name may have
    any accepted spelling.

    An unknown argument is ignored, unless its name looks like a misspelling, or like an argument that restricts the
    agent.

    Raises:
        BadArguments: the arguments do not match `kind`, or an unknown argument is rejected. The message names
            the field and the problem.
    """
    if len(memoryview(arguments)) >= LARGE_BYTES:
        return _decode_large(kind, arguments)
    return _converted(kind, respelled(kind, _decoded(arguments)))


def _decoded(arguments: Raw | bytes) -> dict[str, Any]:
    try:
        value = decode_lenient(_any_decoder, arguments)
    except msgspec.DecodeError as error:
        raise _unreadable(error) from None
    if not isinstance(value, dict):
        raise _not_a_map(value)
    return value


def _converted(kind: type[Decoded], value: dict[str, Any]) -> Decoded:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), value, _schema_of(kind)) from None


# --- large arguments ----------------------------------------------------------------------------------------
#
# Generic dicts and lists would take up to 25 times the size of the arguments. Therefore each argument is decoded
# directly as its type, and an unknown argument is not decoded.


class _Field(NamedTuple):
    """One field of an arguments struct: its attribute name, its JSON Schema and its decoder."""

    attribute: str
    is_required: bool
    schema: dict[str, Any]
    decoder: msgspec.json.Decoder[Any]


_schema_of: Final = cache(schema_of)


@cache
def _fields_of(kind: type[Struct]) -> dict[str, _Field]:
    properties = _schema_of(kind)["properties"]
    return {
        each.encode_name: _Field(
            each.name, each.required, properties[each.encode_name], msgspec.json.Decoder(each.type)
        )
        for each in msgspec.structs.fields(kind)
    }


def _decode_large(kind: type[Decoded], arguments: Raw | bytes) -> Decoded:
    fields = _fields_of(kind)
    given = respelled(kind, _members_of(arguments, limit_names(kind)))
    values = {fields[name].attribute: _decode_member(name, fields[name], raw) for name, raw in given.items()}
    for name, field in fields.items():
        if field.is_required and name not in given:
            raise BadArguments(f"missing field `{name}`", field=name)
    return kind(**values)


def _members_of(encoded: Raw | bytes, check: Callable[[str], None]) -> dict[str, Raw]:
    """Return the encoded members of a JSON object, by name. `check` is called with each name and may raise an
    exception.
    """

    def checked(kind: type[_Name], name: str) -> _Name:
        check(name)
        return kind(name)

    try:
        members = decode_lenient(msgspec.json.Decoder(dict[_Name, Raw], dec_hook=checked), encoded)
    except msgspec.ValidationError:
        raise _not_a_map(_outline(Raw(encoded))) from None
    except msgspec.DecodeError as error:
        raise _unreadable(error) from None
    return {str(name): raw for name, raw in members.items()}


class _Name(str):
    """The name of a member of a JSON object. The decoder calls a hook for each value of this type, and the hook
    checks the name.
    """

    __slots__ = ()


def _decode_member(name: str, field: _Field, raw: Raw) -> Any:
    size = len(memoryview(raw))
    if size > OUTLINE_BYTES and "enum" in field.schema:  # the error of the decoder would contain the value
        raise BadArguments(f"{_complaint(_outline(raw), field.schema)} ({name})", field=name)
    if size > MAX_CONFIG_VALUES and field.schema.get("type") == "object":
        _limit_values(name, raw)
    try:
        return decode_lenient(field.decoder, raw)
    except msgspec.ValidationError as error:
        raise _explained_member(str(error), name, field, raw) from None
    except msgspec.DecodeError as error:
        raise _unreadable(error) from None


def _limit_values(name: str, raw: Raw) -> None:
    """Check that `raw`, the value of the argument `name`, is not an object with more than `MAX_CONFIG_VALUES`
    values. Each member counts as one value. For a member that is an object or an array, an upper bound on the
    number of values in it is added.

    Raises:
        BadArguments: the object has too many values.
    """
    if _first_byte(raw) != b"{" or _count_values(raw, MAX_CONFIG_VALUES) <= MAX_CONFIG_VALUES:
        return
    too_many = BadArguments(f"more than {MAX_CONFIG_VALUES} values ({name})", field=name)
    left = MAX_CONFIG_VALUES

    def count(_: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise too_many

    for each in _members_of(raw, count).values():
        if _first_byte(each) in (b"{", b"["):
            left -= _count_values(each, left)
        if left < 0:
            raise too_many


def _count_values(raw: Raw, limit: int) -> int:
    """Return an upper bound on the number of values in the encoded JSON `raw`. Stop counting when the number
    exceeds `limit`.
    """
    data, count = memoryview(raw), 0
    for begin in range(0, len(data), OUTLINE_BYTES):
        count += max_values(bytes(data[begin : begin + OUTLINE_BYTES]))
        if count > limit:
            break
    return count


def _first_byte(raw: Raw) -> bytes:
    return bytes(memoryview(raw)[:1])


def _explained_member(error: str, name: str, field: _Field, raw: Raw) -> BadArguments:
    """Return the error for the invalid value `raw` of the argument `name`. `error` is the message of the decoder.

    If the argument is large, the returned error contains the type of the invalid value instead of the value.
    """
    place = _PLACE.search(error)
    if place is None or len(memoryview(raw)) <= OUTLINE_BYTES or _MISSING.search(error):
        return _explained(error, {name: _outline(raw)}, {"properties": {name: field.schema}}, within=f".{name}")
    path, detail = name + place[1], error[: place.start()]
    if variant := _VARIANT.match(detail):
        detail = f"unknown variant {shortened(variant[1])}"
    else:
        kind = "type" if detail.startswith("Expected") else "value"
        detail = f"invalid {kind}: {detail[:1].lower()}{detail[1:]}"
    return BadArguments(f"{detail} ({path})", field=path)


def _outline(raw: Raw) -> Any:
    """Return the decoded value for an error message. If the value is large, return only the beginning of a string,
    an empty list for an array, or an empty dict for an object.

    Raises:
        BadArguments: the value cannot be decoded.
    """
    if len(memoryview(raw)) <= OUTLINE_BYTES:
        try:
            return decode_lenient(_any_decoder, raw)
        except msgspec.DecodeError as error:
            raise _unreadable(error) from None
    match _first_byte(raw):
        case b'"':
            encoded: Any = raw
            return LongTextItem(text=encoded).beginning
        case b"[":
            return []
        case b"{":
            return {}
        case _:
            raise BadArguments("arguments cannot be read: number out of range", field="arguments")


# --- error messages -----------------------------------------------------------------------------------------


def _unreadable(error: msgspec.DecodeError) -> BadArguments:
    return BadArguments(f"arguments cannot be read: {error}", field="arguments")


def _not_a_map(value: Any) -> BadArguments:
    return BadArguments(f"invalid type: {_described(value)}, expected a map (arguments)", field="arguments")


def _explained(error: str, value: Any, schema: dict[str, Any], *, within: str = "") -> BadArguments:
    """Return the error for invalid arguments.

    `error` is the message of the decoder. `value` is the decoded value, `schema` is its JSON Schema, and `within`
    is its path in the arguments.
    """
    place = _PLACE.search(error)
    path = within + (place[1] if place else "")
    name = path.removeprefix(".")
    if missing := _MISSING.search(error):
        field = f"{name}.{missing[1]}" if name else missing[1]
        detail = f"missing field `{missing[1]}`"
        return BadArguments(f"{detail} ({name})" if name else detail, field=field)
    found, wanted = _follow(path, value, schema)
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
    """Return the value at `path` in `value`, and the schema of the returned value. `path` is a path in an error
    message of the decoder, such as `.items[0].name`. `schema` is the schema of `value`. The returned value is None
    if there is no value at the path.
    """
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
    """Return the schema for `value` from `members`, the schemas of a union. The member `type` of `value` is the tag
    of the schema. If no schema has this tag, return a schema that lists all tags.
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

"""Checks the answer of an agent against a JSON Schema.

Providers support different parts of JSON Schema, and some providers ignore a schema. This check covers the keywords
for types, values, numbers, strings, arrays, objects, combinations and local references. Other keywords, such as
`format`, are ignored.
"""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from parley.cli.runner import UsageError
from parley.common.limited_time import TookTooLong, limited_time

__all__ = ["AnswerSchema", "SchemaMismatch", "read_schema", "why_invalid_schema"]

MAX_SHOWN: Final = 100
"""The maximum number of characters that an error message shows from a JSON value."""

MAX_SCHEMA_BYTES: Final = 1024 * 1024
"""The maximum size of a schema file, in bytes. The server accepts a schema of at most 64 KiB. The limit on the file
is larger, because whitespace does not count for the server.
"""

PIPE_SECONDS: Final = 10.0
"""The maximum time, in seconds, to wait for the end of a schema that is read from a pipe."""

CHECK_SECONDS: Final = 10.0
"""The maximum processor time of a check, in seconds. After this time, the answer counts as invalid. The limit is
necessary because a pattern or a combination of schemas can take exponential time. During a check, neither Ctrl-C
nor a time limit of the command has an effect.
"""

_Problems = Iterator[str]


class SchemaMismatch(Exception):
    """Raised when a value does not match a schema. The text names the mismatched part of the value, such as
    `$.items[0]`, and gives the reason.
    """


def read_schema(path: str) -> dict[str, Any]:
    """Read a JSON Schema from a file, and return it.

    Raises:
        UsageError: the file cannot be read, or does not contain a valid JSON Schema.
    """
    try:
        text = _read(path)
        if len(text) > MAX_SCHEMA_BYTES:
            raise UsageError(f"the schema {path} has more than {MAX_SCHEMA_BYTES // 1024**2} MiB")
        schema = json.loads(text)
        json.dumps(schema, ensure_ascii=False).encode()  # the schema must not contain unpaired surrogates
    except OSError as error:
        raise UsageError(f"cannot read the schema {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the schema {path} is not valid JSON: {error}") from None
    if not isinstance(schema, dict) or not schema:
        raise UsageError(f"the schema {path} must be a JSON object that is not empty")
    if (why := why_invalid_schema(schema)) is not None:
        raise UsageError(f"the schema {path} is invalid: {why}")
    return schema


def _read(path: str) -> bytes:
    """Return the content of a file or of a pipe, such as `<(jq .schema settings.json)`.

    If the content is longer than `MAX_SCHEMA_BYTES`, return only the first `MAX_SCHEMA_BYTES + 1` bytes.

    Raises:
        OSError: the file cannot be read, or the pipe did not end within `PIPE_SECONDS`.
    """
    until = time.monotonic() + PIPE_SECONDS
    content = bytearray()
    with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        waiting = select.poll()
        waiting.register(file, select.POLLIN)
        while len(content) <= MAX_SCHEMA_BYTES:
            if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
                raise OSError(0, f"the pipe did not end within {PIPE_SECONDS:g} s")
            part = file.read(MAX_SCHEMA_BYTES + 1 - len(content))
            if part == b"":
                break
            content += part or b""
    return bytes(content)


def why_invalid_schema(root: Mapping[str, Any]) -> str | None:
    """Return the reason why the schema `root` is invalid; None if no fault is found. Only the keywords that
    `AnswerSchema` checks are examined.
    """
    todo: list[tuple[Any, str]] = [(root, "$")]
    seen: set[str] = set()
    while todo:
        schema, at = todo.pop()
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            return f"{at} is not a schema: {_shown(schema)}"
        for keyword, value in schema.items():
            place = f"{at}.{keyword}"
            if (expected := _KEYWORDS.get(keyword)) is not None and not expected.accepts(value):
                return f"{place} is not {expected.text}: {_shown(value)}"
            if keyword == "$ref" and value not in seen:
                seen.add(value)
                try:
                    todo.append((AnswerSchema(root).referenced(value), value))
                except (LookupError, TypeError, ValueError):
                    return f"{place} names no part of the schema: {_shown(value)}"
            elif keyword in _SCHEMA:
                todo.append((value, place))
            elif keyword in _SCHEMA_LISTS:
                todo += [(one, f"{place}[{index}]") for index, one in enumerate(value)]
            elif keyword in _SCHEMA_OBJECTS:
                todo += [(one, f"{place}.{name}") for name, one in value.items()]
    return None


class AnswerSchema:
    """Checks the answers of an agent against one JSON Schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema

    def why_invalid(self, answer: str) -> str | None:
        """Return the reason why `answer` is not JSON or does not match the schema; None if `answer` matches."""
        try:
            value = json.loads(answer, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            return f"the answer is not valid JSON: {error}"
        try:
            with limited_time(CHECK_SECONDS):
                self.check(value)
        except SchemaMismatch as mismatch:
            return f"the answer does not match the schema: {mismatch}"
        except TookTooLong:
            return f"the answer cannot be checked: the check takes longer than {CHECK_SECONDS:g} s"
        except RecursionError:
            return "the answer cannot be checked: the schema or the answer has too many levels"
        except (re.error, TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
            return f"the answer cannot be checked, because the schema is invalid: {error}"
        return None

    def check(self, value: Any) -> None:
        """Check a decoded JSON value against the schema.

        Raises:
            SchemaMismatch: the value does not match the schema.
        """
        self._check(value, self._root, "$")

    def referenced(self, reference: str) -> Any:
        """Return the part of the schema that a `$ref` names.

        Raises:
            LookupError, TypeError, ValueError: the schema has no such part.
        """
        if not reference.startswith("#"):
            raise ValueError(f"$ref {reference!r} is not in the schema")
        found: Any = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found[int(name)] if isinstance(found, list) else found[name]
        return found

    def _check(self, value: Any, schema: Any, at: str) -> None:
        if schema is True or schema == {}:
            return
        if schema is False:
            raise SchemaMismatch(f"{at} is not allowed")
        if "$ref" in schema:
            self._check(value, self.referenced(schema["$ref"]), at)
        for why in _of_value(value, schema):
            raise SchemaMismatch(f"{at} {why}")
        match value:
            case dict():
                self._check_object(value, schema, at)
            case list():
                self._check_array(value, schema, at)
            case _:
                pass
        self._check_combinations(value, schema, at)

    def _check_object(self, value: dict[str, Any], schema: Mapping[str, Any], at: str) -> None:
        missing = [name for name in schema.get("required", ()) if name not in value]
        if missing:
            raise SchemaMismatch(f"{at} has no {_shown(missing[0])}")
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, member in value.items():
            place = f"{at}.{name}" if name.isidentifier() else f"{at}[{_shown(name)}]"
            if "propertyNames" in schema:
                self._check(name, schema["propertyNames"], f"the name of {place}")
            matching = [found for pattern, found in patterns.items() if re.search(pattern, name)]
            if name in properties:
                matching.append(properties[name])
            for one in matching or [schema.get("additionalProperties", True)]:
                self._check(member, one, place)

    def _check_array(self, value: list[Any], schema: Mapping[str, Any], at: str) -> None:
        first = schema.get("prefixItems", ())
        for index, item in enumerate(value):
            self._check(item, first[index] if index < len(first) else schema.get("items", True), f"{at}[{index}]")
        if "contains" in schema:
            number = sum(self._matches(item, schema["contains"]) for item in value)
            if not schema.get("minContains", 1) <= number <= schema.get("maxContains", number):
                raise SchemaMismatch(f"{at} has {number} items that match `contains`")

    def _check_combinations(self, value: Any, schema: Mapping[str, Any], at: str) -> None:
        for one in schema.get("allOf", ()):
            self._check(value, one, at)
        if "anyOf" in schema and not any(self._matches(value, one) for one in schema["anyOf"]):
            raise SchemaMismatch(f"{at} matches no schema in `anyOf`")
        if "oneOf" in schema:
            number = sum(self._matches(value, one) for one in schema["oneOf"])
            if number != 1:
                raise SchemaMismatch(f"{at} matches {number} schemas in `oneOf` instead of 1")
        if "not" in schema and self._matches(value, schema["not"]):
            raise SchemaMismatch(f"{at} matches the schema in `not`")
        if "if" in schema:
            branch = "then" if self._matches(value, schema["if"]) else "else"
            self._check(value, schema.get(branch, True), at)

    def _matches(self, value: Any, schema: Any) -> bool:
        try:
            self._check(value, schema, "$")
        except SchemaMismatch:
            return False
        return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


# --- keywords for one value ------------------------------------------------------------------------


_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


class _Expected(NamedTuple):
    """The valid values of a schema keyword: a description for error messages, and a function that returns whether a
    value is valid.
    """

    text: str
    accepts: Callable[[Any], bool]


def _is_type(value: Any) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return bool(kinds) and all(isinstance(one, str) and one in _TYPES for one in kinds)


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return isinstance(value, str)


_SCHEMA: Final = frozenset(
    {"items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"},
)
"""The keywords whose value is a nested schema."""

_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_OBJECTS: Final = frozenset({"properties", "patternProperties"})

_STRING: Final = _Expected("a string", lambda value: isinstance(value, str))
_LIST: Final = _Expected("a list", lambda value: isinstance(value, list))
_OBJECT: Final = _Expected("an object", lambda value: isinstance(value, dict))
_NUMBER: Final = _Expected("a number", lambda value: _is_number(value))
_SIZE: Final = _Expected("a number that is not negative", lambda value: _is_number(value) and value >= 0)

_KEYWORDS: Final[dict[str, _Expected]] = {
    "$ref": _STRING,
    "type": _Expected(f"one of {', '.join(_TYPES)}, or a list of them", _is_type),
    "enum": _LIST,
    "pattern": _Expected("a regular expression", _is_pattern),
    "patternProperties": _Expected(
        "an object with regular expressions as names",
        lambda value: isinstance(value, dict) and all(map(_is_pattern, value)),
    ),
    "properties": _OBJECT,
    "required": _Expected(
        "a list of strings", lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value)
    ),
    "multipleOf": _Expected("a number greater than 0", lambda value: _is_number(value) and value > 0),
    **dict.fromkeys(_SCHEMA_LISTS, _LIST),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **{
        f"{bound}{noun}": _SIZE
        for bound in ("min", "max")
        for noun in ("Length", "Items", "Properties", "Contains")
    },
}


def _of_value(value: Any, schema: Mapping[str, Any]) -> _Problems:
    """Yield the reasons why a value does not match a schema. Only the keywords that contain no nested schemas are
    checked.
    """
    if "type" in schema:
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not any(_TYPES[kind](value) for kind in kinds):
            yield f"is not of the type {' or '.join(kinds)}: {_shown(value)}"
    if "enum" in schema and not any(_is_equal(value, one) for one in schema["enum"]):
        yield f"is not one of {_shown(schema['enum'])}: {_shown(value)}"
    if "const" in schema and not _is_equal(value, schema["const"]):
        yield f"is not {_shown(schema['const'])}: {_shown(value)}"
    if _is_number(value):
        yield from _of_number(value, schema)
    match value:
        case str():
            yield from _of_size(len(value), schema, "Length", "characters")
            if "pattern" in schema and not re.search(schema["pattern"], value):
                yield f"does not match the pattern {_shown(schema['pattern'])}: {_shown(value)}"
        case list():
            yield from _of_size(len(value), schema, "Items", "items")
            if schema.get("uniqueItems") and any(
                _is_equal(one, other) for index, one in enumerate(value) for other in value[:index]
            ):
                yield "has equal items"
        case dict():
            yield from _of_size(len(value), schema, "Properties", "members")
        case _:
            pass


def _of_number(value: Any, schema: Mapping[str, Any]) -> _Problems:
    if "minimum" in schema and value < schema["minimum"]:
        yield f"is less than {schema['minimum']}: {_shown(value)}"
    if "maximum" in schema and value > schema["maximum"]:
        yield f"is greater than {schema['maximum']}: {_shown(value)}"
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        yield f"is not greater than {schema['exclusiveMinimum']}: {_shown(value)}"
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        yield f"is not less than {schema['exclusiveMaximum']}: {_shown(value)}"
    if "multipleOf" in schema and not float(value / schema["multipleOf"]).is_integer():
        yield f"is not a multiple of {schema['multipleOf']}: {_shown(value)}"


def _of_size(size: int, schema: Mapping[str, Any], noun: str, unit: str) -> _Problems:
    if size < schema.get(f"min{noun}", 0):
        yield f"has fewer than {schema[f'min{noun}']} {unit}"
    if size > schema.get(f"max{noun}", size):
        yield f"has more than {schema[f'max{noun}']} {unit}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal.

    The operator `==` does not suffice, because True equals 1 in Python.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_equal(one[name], other[name]) for name in one)
    return bool(one == other)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"

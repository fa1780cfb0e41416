"""Reduces the input schema of a tool to the subset that every model API accepts (docs/protocol.md#tool-servers).

Any schema that a tool server sends is accepted. An invalid part
of a schema is replaced with `{"type": "string"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["reduced"]

KNOWN_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean"})

TYPE_BY_KEYWORD: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("object", frozenset({"properties", "required", "additionalProperties"})),
    ("array", frozenset({"items", "prefixItems"})),
    ("string", frozenset({"enum", "const", "format"})),
    ("number", frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})),
)
"""Types and the keywords that imply them, for a schema that names no type. The first type with a matching keyword
is used.
"""


MAX_DEPTH: Final = 30
"""The maximum nesting depth of a schema. A schema that is nested more deeply is replaced with `{"type": "string"}`.
"""


def reduced(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reduced form of `schema`, the schema of a tool's input. The result always describes an object."""
    return _reduced_object(schema, depth=1)


def _reduced(schema: object, *, depth: int) -> dict[str, Any]:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return {"type": "string"}
    schema = _of_union(schema)
    match _type_of(schema):
        case "object":
            return _reduced_object(schema, depth=depth)
        case "array":
            items = _reduced(schema.get("items"), depth=depth + 1)
            return {"type": "array", "items": items, **_description(schema)}
        case "integer":
            return {"type": "number", **_description(schema)}
        case other:
            return {"type": other, **_description(schema)}


def _reduced_object(schema: Mapping[str, Any], *, depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        properties = {}
    result: dict[str, Any] = {
        "type": "object",
        "properties": {name: _reduced(properties[name], depth=depth + 1) for name in sorted(properties)},
    }
    required = schema.get("required")
    if isinstance(required, list):
        result["required"] = [name for name in required if isinstance(name, str)]
    return result


def _of_union(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first branch of a union (`anyOf` or `oneOf`) that has a known type, with the description of the
    union. Return any other schema unchanged.
    """
    if "type" in schema:
        return schema
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        for branch in branches if isinstance(branches, list) else ():
            if isinstance(branch, dict) and _named_type(branch) is not None:
                return {**branch, **_description(schema)}
    return schema


def _type_of(schema: Mapping[str, Any]) -> str:
    named = _named_type(schema)
    if named is not None:
        return named
    return next((kind for kind, keywords in TYPE_BY_KEYWORD if not keywords.isdisjoint(schema)), "string")


def _named_type(schema: Mapping[str, Any]) -> str | None:
    named = schema.get("type")
    candidates = named if isinstance(named, list) else [named]
    return next((one for one in candidates if isinstance(one, str) and one in KNOWN_TYPES), None)


def _description(schema: Mapping[str, Any]) -> dict[str, str]:
    description = schema.get("description")
    return {"description": description} if isinstance(description, str) else {}

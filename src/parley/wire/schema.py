"""Generates JSON Schemas from the structs of this package.

Only the types that tools, events and notifications use are supported. For any other type, the module raises
`TypeError`, so that a test fails when a struct uses a new type.
"""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import NODEFAULT, Meta, Raw, Struct, UnsetType

__all__ = ["schema_of"]

_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    UUID: {"type": "string", "format": "uuid"},
    Raw: {"type": "object"},
    Any: {},
}


def schema_of(struct: type[Struct], *, nulls: bool = False) -> dict[str, Any]:
    """Return the JSON Schema for the struct type `struct`.

    If `nulls` is True, optional fields may also be null, as in messages from the server. The schema of a tool does
    not allow null, because clients that generate forms would offer null as a choice.
    """
    properties: dict[str, Any] = {}
    required: list[str] = []
    config = struct.__struct_config__
    if config.tag is not None:
        properties[str(config.tag_field)] = {"type": "string", "enum": [config.tag]}
        required.append(str(config.tag_field))
    for field in msgspec.structs.fields(struct):
        may_be_null = nulls or field.default is NODEFAULT
        properties[field.encode_name] = _schema(field.type, may_be_null=may_be_null, nulls=nulls)
        if field.required:
            required.append(field.encode_name)
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def _schema(kind: Any, *, may_be_null: bool, nulls: bool) -> dict[str, Any]:
    if isinstance(kind, NewType):
        return _schema(kind.__supertype__, may_be_null=may_be_null, nulls=nulls)
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _with_meta(_schema(args[0], may_be_null=may_be_null, nulls=nulls), args[1:])
    if origin in (Union, types.UnionType):
        return _union(args, may_be_null=may_be_null, nulls=nulls)
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if origin in (tuple, list):
        return {"type": "array", "items": _schema(args[0], may_be_null=nulls, nulls=nulls)}
    if origin is dict:
        values = True if args[1] is Any else _schema(args[1], may_be_null=nulls, nulls=nulls)
        return {"type": "object", "additionalProperties": values}
    if isinstance(kind, type) and issubclass(kind, Struct):
        return schema_of(kind, nulls=nulls)
    raise TypeError(f"no schema for {kind!r}")


def _with_meta(schema: dict[str, Any], annotations: tuple[Any, ...]) -> dict[str, Any]:
    for meta in annotations:
        assert isinstance(meta, Meta)
        if meta.description is not None:
            schema = {"description": meta.description, **schema}
        if meta.ge is not None:
            schema["minimum"] = meta.ge
        if meta.le is not None:
            schema["maximum"] = meta.le
        if meta.max_length is not None:
            schema["maxLength"] = meta.max_length
    return schema


def _union(members: tuple[Any, ...], *, may_be_null: bool, nulls: bool) -> dict[str, Any]:
    kinds = [member for member in members if member not in (UnsetType, types.NoneType)]
    schemas = [_schema(kind, may_be_null=False, nulls=nulls) for kind in kinds]
    if {} in schemas:
        return {}  # any value, including null
    if may_be_null and types.NoneType in members:
        schemas.append({"type": "null"})
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

"""Describes the types of fields in words, and lists the fields of structs as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from docs.site.reference.docstrings import cell, field_docstrings
from msgspec import UNSET, Struct, inspect

__all__ = ["described", "field_table", "inner_structs"]


def described(type_: inspect.Type) -> str:
    """Return a type in words, such as `string or null`."""
    match type_:
        case inspect.Metadata(type=inner):
            return described(inner)
        case inspect.StrType():
            return "string"
        case inspect.BoolType():
            return "boolean"
        case inspect.IntType():
            return "integer"
        case inspect.FloatType():
            return "number"
        case inspect.NoneType():
            return "null"
        case inspect.UUIDType():
            return "uuid"
        case inspect.DateTimeType():
            return "time (RFC 3339)"
        case inspect.BytesType():
            return "string (base64)"
        case inspect.LiteralType(values=values):
            return ", ".join(f'`"{value}"`' if isinstance(value, str) else f"`{value}`" for value in values)
        case inspect.UnionType(types=types):
            return _union([one for one in types if not isinstance(one, inspect.CustomType)])
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return f"list of: {described(item)}"
        case inspect.DictType(value_type=value):
            return f"object with values: {described(value)}"
        case inspect.StructType(cls=struct):
            return f"[`{struct.__name__}`](#{struct.__name__.lower()})"
        case inspect.AnyType() | inspect.RawType():
            return "any"
        case _:
            return f"`{type(type_).__name__}`"


def _union(types: Iterable[inspect.Type]) -> str:
    words = [described(one) for one in types]
    words.sort(key=lambda word: word == "null")
    return " or ".join(dict.fromkeys(words))


def field_table(struct: type[Struct], *, is_argument: bool = False, texts: Mapping[str, str] | None = None) -> str:
    """Return a table of the fields of a struct; an empty string if it has none.

    `texts` contains descriptions of fields, which replace their docstrings.
    """
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    docstrings = field_docstrings(struct)
    rows = []
    for field in info.fields:
        text = (texts or {}).get(field.encode_name) or _description(field.type) or docstrings.get(field.name, "")
        optional = "" if field.required else "optional"
        kind = described(field.type)
        if is_argument and optional:
            kind = kind.removesuffix(" or null")
        default = "" if field.default in (None, UNSET, msgspec.NODEFAULT) else f"default `{_json(field.default)}`"
        note = ", ".join(one for one in (optional, default) if one)
        rows.append(f"| `{field.encode_name}` | {cell(kind)} | {note} | {cell(text)} |\n")
    return "" if not rows else f"| field | type | | |\n| --- | --- | --- | --- |\n{''.join(rows)}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _description(type_: inspect.Type) -> str:
    if isinstance(type_, inspect.Metadata):
        return str((type_.extra_json_schema or {}).get("description", ""))
    return ""


def inner_structs(structs: Iterable[type[Struct]]) -> list[type[Struct]]:
    """Return the structs that the fields of the given structs contain, without the given structs themselves."""
    given = list(structs)
    found = list(given)
    for struct in found:  # the list grows while it is read
        info = msgspec.inspect.type_info(struct)
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            found += [inner for inner in dict.fromkeys(_structs_in(field.type)) if inner not in found]
    return found[len(given) :]


def _structs_in(type_: inspect.Type) -> Iterator[type[Struct]]:
    match type_:
        case inspect.StructType(cls=struct):
            yield struct
        case inspect.Metadata(type=inner):
            yield from _structs_in(inner)
        case inspect.UnionType(types=types):
            for one in types:
                yield from _structs_in(one)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            yield from _structs_in(item)
        case inspect.DictType(value_type=value):
            yield from _structs_in(value)
        case _:
            pass

"""The reference page of the settings, from the fields of the tables of config.toml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from docs.site.reference.docstrings import cell
from msgspec import Struct

from parley.config.checks import Check, Wrong
from parley.config.types import ConfigFile, Profile

__all__ = ["Row", "rows", "settings_page"]

_HEAD = """\
# Table of settings

Every setting of `config.toml`. [Settings](../config.md) describes each setting, and the sources from which
settings come. A setting with ● can also be set in a profile.

| setting | values | default | |
| --- | --- | --- | --- |
"""
_WORDS = {
    "absolute_path": "absolute path",
    "address": "http or https URL",
    "amount": "number, at least 0",
    "database_address": "URL of a database",
    "named_secrets": "table of strings",
    "path_or_home_path": "absolute path, or a path that begins with `~/`",
    "repository_address": "URL or path of a Git repository",
    "secret_sequence": "list of strings",
    "webhook_address": "URL",
}
"""The words for the values that a check accepts, by the name of the check."""
_INTEGER = re.compile(r"an (integer from -?\d+ to \d+)")


class Row(NamedTuple):
    """A setting."""

    key: str
    values: str
    default: str
    is_in_profiles: bool


def settings_page() -> str:
    """Return the page as Markdown."""
    return _HEAD + "".join(
        f"| [`{row.key}`](../config.md#{_anchor(row.key)}) | {cell(row.values)} | {cell(row.default)} "
        f"| {'●' if row.is_in_profiles else ''} |\n"
        for row in rows()
    )


def _anchor(key: str) -> str:
    return re.sub(r"[^\w-]", "", key.lower())


def rows() -> Iterator[Row]:
    """Yield every setting in the order of the tables."""
    yield from _rows(ConfigFile, "")


def _rows(table: type[Struct], prefix: str) -> Iterator[Row]:
    defaults = table()
    annotations: dict[str, Any] = {}
    for base in reversed(table.__mro__):
        annotations |= get_annotations(base)
    for field in msgspec.structs.fields(table):
        key, annotation = f"{prefix}{field.encode_name}", annotations[field.name]
        if key == "profiles":
            continue  # the column says which settings a profile can contain
        arguments = get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Struct):
            yield from _rows(annotation, f"{key}.")
        elif get_origin(annotation) is dict and isinstance(arguments[1], type) and issubclass(arguments[1], Struct):
            yield from _rows(arguments[1], f"{key}.NAME.")
        else:
            default = getattr(defaults, field.name)
            is_in_profiles = not prefix and field.name in Profile.__struct_fields__
            yield Row(key, _values(annotation), "" if default is None else _toml(default), is_in_profiles)


def _toml(value: Any) -> str:
    """Return a default as TOML, which writes these values like JSON."""
    return f"`{json.dumps(value)}`"


def _values(annotation: Any) -> str:
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is Annotated:
            return _accepted(arguments[1], arguments[0])
        case origin if origin is UnionType or NoneType in arguments:
            (inner,) = (argument for argument in arguments if argument is not NoneType)
            return _values(inner)
        case origin if origin is Literal:
            return ", ".join(f'`"{value}"`' for value in arguments)
        case origin if origin is tuple:
            return "list of strings"
        case origin if origin is dict:
            return "table of strings"
        case _:
            return {bool: "`true`, `false`", str: "string", int: "integer", float: "number"}[annotation]


def _accepted(check: Check, annotation: Any) -> str:
    name = getattr(check, "__name__", "")
    if name in _WORDS:
        return _WORDS[name]
    if annotation is int and (found := _INTEGER.search(_refusal(check, -(2**70)))):
        return found[1]
    return _values(annotation) if get_origin(annotation) is not None else "string"


def _refusal(check: Check, value: Any) -> str:
    """Return the text with which a check rejects a value. The text names the values that the check accepts."""
    try:
        check(value, ())
    except Wrong as wrong:
        return str(wrong)
    return ""

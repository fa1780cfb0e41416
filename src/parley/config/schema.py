"""The table of all settings, derived from the fields of `types.ConfigFile`.

Each setting has its key as a heading in docs/config.md. A test compares the headings with this table.
"""

from __future__ import annotations

from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from msgspec import Struct
from msgspec.structs import asdict

from parley.config.checks import Check, Named, Table, flag, one_of, path, sequence_of, text
from parley.config.toml_lines import KeyPath
from parley.config.types import ConfigFile

__all__ = ["DEFAULTS", "NAMED_ARGUMENTS", "SETTINGS", "check_at", "check_below"]

_BY_TYPE: Final[dict[Any, Check]] = {
    bool: flag,
    str: text,
    tuple[str, ...]: sequence_of(text),
    dict[str, str]: Named(text),
}


def _table_of(struct: type[Struct]) -> Table:
    checks: dict[str, Check] = {}
    for base in reversed(struct.__mro__):
        checks |= {name: _check_of(annotation) for name, annotation in get_annotations(base).items()}
    keys = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    return Table({keys[name]: check for name, check in checks.items()})


def _check_of(annotation: Any) -> Check:
    if annotation in _BY_TYPE:
        return _BY_TYPE[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _table_of(annotation)
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is Annotated:
            check: Check = arguments[1]
            return check
        case origin if origin is UnionType or NoneType in arguments:
            (inner,) = (argument for argument in arguments if argument is not NoneType)
            return _check_of(inner)
        case origin if origin is Literal:
            return one_of(*arguments)
        case origin if origin is dict:
            return Named(_check_of(arguments[1]))
        case _:
            raise TypeError(f"a setting cannot have the type {annotation}")


SETTINGS: Final = _table_of(ConfigFile)
"""The check for config.toml, which covers every setting. Settings that are not in use are also checked, so that
mistakes are reported early.
"""

DEFAULTS: Final[dict[str, Any]] = {
    name: {} if isinstance(default, Struct) else default
    for name, default in asdict(ConfigFile()).items()
    if default is not None
}
"""The values of settings that no source sets. The value of a table is empty, because the struct of the table
defines the defaults of its fields.
"""

NAMED_ARGUMENTS: Final = Table(
    {
        "model": text,
        "cwd": path,
        "repository": text,
        "approval_policy": SETTINGS.fields["approval_policy"],
        "sandbox": SETTINGS.fields["sandbox_mode"],
        "developer_instructions": text,
        "compact_prompt": text,
    }
)
"""The check for the named arguments of a call. Each of them sets one setting. The argument `config` is not
included.
"""


def check_at(path: KeyPath) -> Check | None:
    """Return the check for a key; None if no setting has this key."""
    check: Check | None = SETTINGS
    for name in path:
        check = check_below(check, name)
    return check


def check_below(check: Check | None, name: str) -> Check | None:
    """Return the check for the key `name` in the table that `check` checks; None if the table has no such key, or
    if `check` is not the check of a table.
    """
    match check:
        case Table():
            return check.fields.get(name)
        case Named():
            return check.entry
        case _:
            return None

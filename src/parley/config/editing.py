"""Changes the text of config.toml. Comments and the order of the lines are kept.

This module works on text and imports tomlkit, which is slow to import. Only `parley config` imports this module.
`app/config_file.py` reads and writes the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from parley.config.checks import Named, Table
from parley.config.errors import UneditableFile
from parley.config.schema import check_at
from parley.config.sources import checked, merge, parse_setting
from parley.config.toml_lines import KeyPath, lines_of_keys, parse_toml, written_key, written_value
from parley.config.unknown_keys import refuse_misspelt, unknown_keys, unknown_setting
from parley.errors import BadSetting

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["with_setting", "without_setting"]


def with_setting(text: str, key: str, value: str) -> tuple[str, KeyPath, Any]:
    """Set one setting in the text of config.toml. Return the new text, the path of the setting and the value.

    `value` is a TOML value, or a string without quotes as in the option `-c`.

    Raises:
        BadSetting: the key is not a setting, or the value is invalid.
        UneditableFile: the setting cannot be changed without changing other settings.
    """
    table, path = parse_setting(key, value)
    checked(None, refuse_misspelt([table]))
    for unknown in unknown_keys(table):
        raise unknown_setting(unknown.path)
    _refuse_tables(path)
    new = _value_at(table, path)
    try:
        expected = merge(table, into=parse_toml(text))
    except AttributeError:  # a part of the path is not a table in the text
        raise UneditableFile(written_key(path)) from None
    if isinstance(new, dict):  # the new table replaces the old one
        _table_at(expected, path[:-1])[path[-1]] = new
    for attempt in (_with_line, _with_item):
        try:
            if _is_expected(changed := attempt(text, path, new), expected):
                return changed, path, new
        except RecursionError:
            pass  # a table in the text has too many levels
    raise UneditableFile(written_key(path))


def without_setting(text: str, key: str) -> tuple[str, KeyPath] | None:
    """Remove one setting, or a table of settings, from the text of config.toml.

    Return the new text and the path of the setting; None if the text does not contain the setting.

    Raises:
        BadSetting: `key` is neither in the text nor the key of a setting.
        UneditableFile: the setting cannot be removed without changing other settings.
    """
    path = _path(key)
    expected = parse_toml(text)
    try:
        holder = _table_at(expected, path[:-1])
        del holder[path[-1]]
    except (KeyError, TypeError):
        if check_at(path) is None:
            raise unknown_setting(path) from None
        return None
    try:
        document = tomlkit.parse(text)
        del _table_at(document, path[:-1])[path[-1]]
        changed = tomlkit.dumps(document)
    except (TOMLKitError, KeyError):
        raise UneditableFile(written_key(path)) from None
    if not _is_expected(changed, expected):
        raise UneditableFile(written_key(path))
    return changed, path


def _path(key: str) -> KeyPath:
    return parse_setting(key, "0")[1]


def _refuse_tables(path: KeyPath) -> None:
    """Check that `path` names a setting, and not a table of settings. A table must not be replaced as a whole,
    because its comments could be lost.

    Raises:
        BadSetting: `path` names a table.
    """
    check = check_at(path)
    if isinstance(check, Table) or (isinstance(check, Named) and isinstance(check.entry, Table)):
        example = next(iter(check.fields)) if isinstance(check, Table) else "NAME"
        detail = f"a table of settings; set one of them, such as `{written_key((*path, example))}`"
        raise BadSetting(detail, key=written_key(path))


def _value_at(table: Any, path: KeyPath) -> Any:
    for name in path:
        table = table[name]
    return table


def _table_at(table: Any, path: KeyPath) -> MutableMapping[str, Any]:
    for name in path:
        table = table[name]
    if not isinstance(table, dict):
        raise KeyError(path)
    return table


def _with_line(text: str, path: KeyPath, value: Any) -> str:
    """Return `text` with one more line, which sets the new key `path` to `value`. A new table is added at the end
    of the text.

    If the key or its table already exists, the result may be invalid or may have other values than expected, so the
    caller must check the result.
    """
    line = f"{written_key(path[-1:])} = {written_value(value)}\n"
    if len(path) > 1:
        return f"{text.rstrip()}\n\n[{written_key(path[:-1])}]\n{line}".lstrip()
    lines = text.splitlines(keepends=True)
    tables = [at - 1 for at in lines_of_keys(text).values() if lines[at - 1].lstrip().startswith("[")]
    first_table = end = min(tables, default=len(lines))
    # a comment above the first table belongs to that table
    while tables and end and lines[end - 1].startswith("#"):
        end -= 1
    while end and not lines[end - 1].strip():
        end -= 1
    if end and not lines[end - 1].endswith("\n"):
        lines[end - 1] += "\n"
    has_gap = end == len(lines) or not lines[end].strip() or end > first_table
    return "".join([*lines[:end], line, *([] if has_gap else ["\n"]), *lines[end:]])


def _with_item(text: str, path: KeyPath, value: Any) -> str:
    """Return `text` with the new value of an existing key, or with a new key in an existing table. Return an empty
    string if tomlkit cannot make this change.
    """
    if isinstance(value, dict):
        inline = tomlkit.inline_table()
        inline.update(value)
        value = inline
    try:
        document: Any = tomlkit.parse(text)
        table = document
        for name in path[:-1]:
            if name not in table:
                table[name] = tomlkit.inline_table()
            table = table[name]
        table[path[-1]] = value
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError):
        return ""


def _is_expected(changed: str, expected: dict[str, Any]) -> bool:
    """Return whether the TOML text `changed` contains exactly the values in `expected`. Empty tables make no
    difference.
    """
    try:
        return bool(_without_empty_tables(parse_toml(changed)) == _without_empty_tables(expected))
    except ValueError:
        return False


def _without_empty_tables(table: dict[str, Any]) -> dict[str, Any]:
    inner = {name: _without_empty_tables(one) if isinstance(one, dict) else one for name, one in table.items()}
    return {name: one for name, one in inner.items() if one != {}}

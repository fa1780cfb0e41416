"""Reads and checks the sources of settings: config.toml, the command line, and the `config` argument of a call.

Each source is checked against `SETTINGS` before the sources are merged, so that an error can name the source and
the line of an invalid value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from parley.common.files import read_file
from parley.common.os_errors import os_detail
from parley.common.spelling import shortened
from parley.config.checks import Wrong
from parley.config.schema import SETTINGS
from parley.config.toml_lines import KeyPath, key_on, line_of, parse_toml, read_key, written_key
from parley.config.unknown_keys import UnknownKey
from parley.errors import BadSetting

__all__ = [
    "Source",
    "bad_setting",
    "checked",
    "mentions",
    "merge",
    "parse_argument",
    "parse_config",
    "parse_override",
    "parse_setting",
    "parse_table",
    "read_config",
    "setting_error",
    "source_of",
    "unknown_key_sentence",
    "utf8",
]


class Source(Struct, frozen=True):
    """The settings from one source, such as config.toml or the command line, after they were checked."""

    name: str | None
    """The name of the source for errors; None if errors do not name the source."""
    values: dict[str, Any]
    text: str = ""
    """The text of the file, from which line numbers are determined; empty if the source is not a file."""
    table: dict[str, Any] = {}
    """The complete table of the file, including unknown keys; empty if the source is not a file."""

    def mentions(self, path: KeyPath) -> bool:
        return mentions(self.values, path)


def mentions(values: Mapping[str, Any], path: KeyPath) -> bool:
    value: Any = values
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def checked(name: str | None, tables: Iterable[dict[str, Any]], text: str = "") -> Source:
    """Check `tables`, merge them, and return them as one source with the name `name`. Later tables take precedence.

    `text` is the text of the file, from which errors determine line numbers; empty if the source is not a file.

    Raises:
        BadSetting: a value is invalid.
    """
    values: dict[str, Any] = {}
    try:
        for table in tables:
            merge(SETTINGS(table, ()), into=values)
    except Wrong as wrong:
        raise bad_setting(wrong.detail, wrong.at, name, text) from None
    return Source(name, values, text)


def merge(over: Mapping[str, Any], *, into: dict[str, Any]) -> dict[str, Any]:
    """Merge the table `over` into the table `into`, and return `into`.

    Nested tables are copied, so that a later merge does not change another source.
    """
    for key, value in over.items():
        into[key] = merge(value, into=into.get(key, {})) if isinstance(value, dict) else value
    return into


def source_of(sources: Sequence[Source], *paths: KeyPath) -> str | None:
    """Find the first of the `paths` that any source sets, and return the name of the last source that sets this
    path. Return None if no source sets any of the paths.
    """
    found = (source.name for path in paths for source in reversed(sources) if source.mentions(path))
    return next(found, None)


def setting_error(sources: Sequence[Source], path: KeyPath, detail: str) -> BadSetting:
    """Return an error that names the last source that sets `path`. If no source sets `path`, the error names the
    last source that sets an enclosing table.
    """
    for depth in range(len(path), 0, -1):
        for source in reversed(sources):
            if source.mentions(path[:depth]):
                return bad_setting(detail, path, source.name, source.text)
    return bad_setting(detail, path)


def bad_setting(detail: str, at: KeyPath, source: str | None = None, text: str = "") -> BadSetting:
    return BadSetting(detail, source=source, line=line_of(at, text), key=written_key(at))


def unknown_key_sentence(source: Source, key: UnknownKey) -> str:
    hint = "" if key.nearest is None else f"; did you mean `{written_key(key.nearest)}`?"
    return str(bad_setting(f"unknown setting, ignored{hint}", key.path, source.name, source.text))


def parse_override(text: str) -> dict[str, Any]:
    """Parse a command-line override of the form `key=value`, and return it as a table.

    Raises:
        BadSetting: the override does not have this form.
    """
    path, end = read_key(utf8(text, source="-c"))
    if not path or not text.startswith("=", end):
        raise BadSetting(f"`{shortened(text)}` is not of the form key=value", source="-c")
    return _nested(path, _parse_value(text[end + 1 :].strip()))


def parse_setting(key: str, value: str) -> tuple[dict[str, Any], KeyPath]:
    """Parse a key and a value that are separate arguments of a command. Return them as a table, and the path of the
    key.

    Raises:
        BadSetting: the key is invalid.
    """
    path, end = read_key(utf8(key, source="the key"))
    if not path or end < len(key):
        raise BadSetting("not a key", key=shortened(key))
    return _nested(path, _parse_value(utf8(value.strip(), source="the value"))), path


def _parse_value(text: str) -> Any:
    """Parse a TOML value. If the text is not valid TOML, return the text as a string, so that `-c model=o3` needs
    no nested quotes.
    """
    try:
        table = parse_toml(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def parse_argument(config: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield each item of the `config` argument of a call as a table. The keys of the argument may be dotted.

    Raises:
        BadSetting: a key is invalid.
    """
    for key, value in config.items():
        path, end = read_key(key)
        if not path or end < len(key):
            raise BadSetting("not a key", source="config argument", key=shortened(key))
        yield _nested(path, value)


def _nested(path: KeyPath, value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    assert isinstance(value, dict)  # a path has at least one part
    return value


def read_config(path: str) -> str:
    try:
        return _read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise BadSetting(os_detail(error), source=path) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadSetting("not valid UTF-8", source=path, line=line) from None


def parse_config(path: str, text: str) -> Source:
    table = parse_table(path, text)
    return replace(checked(path, [table], text), table=table)


def parse_table(path: str, text: str) -> dict[str, Any]:
    """Parse `text`, the content of the file at `path`, as TOML. Return it as a table whose settings have not been
    checked.

    Raises:
        BadSetting: the text is not TOML.
    """
    try:
        return parse_toml(text)
    except RecursionError:
        raise BadSetting("not valid TOML: nested too deeply", source=path) from None
    except ValueError as error:
        raise _bad_toml(str(error), path, text) from None


def _bad_toml(reason: str, path: str, text: str) -> BadSetting:
    """Return the error for the file at `path`, whose content `text` is invalid TOML. The error contains `reason`,
    the parser's message. If `reason` names a line, the error also names this line and the key on it.
    """
    if found := re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", reason, re.DOTALL):
        detail, line = f"not valid TOML: {found[1]} (column {found[3]})", int(found[2])
    elif reason.endswith(" (at end of document)"):
        detail, line = f"not valid TOML: {reason}", text.rstrip("\n").count("\n") + 1
    else:
        return BadSetting(f"not valid TOML: {reason}", source=path)
    key = key_on(line, text)
    return BadSetting(detail, source=path, line=line, key=written_key(key) if key else None, is_invalid_toml=True)


def _read_text(path: str) -> str:
    """Return the text of a file. Raises OSError or UnicodeDecodeError if the file cannot be read."""
    return read_file(path).decode("utf-8-sig")


def utf8(text: str, *, source: str) -> str:
    """Return `text` unchanged after checking that it can be encoded as UTF-8. An error names `source` as the source
    of the string.

    Raises:
        BadSetting: the string contains lone surrogates. Python uses lone surrogates for bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadSetting("not valid UTF-8", source=source) from None
    return text

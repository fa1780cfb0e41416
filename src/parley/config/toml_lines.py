"""Parses TOML documents, reads and writes keys and values in TOML notation, and finds the line of each key.

The parser of the standard library reads the values. This parser and the regular expressions are loaded only when
they are first needed, so that the server starts quickly.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

__all__ = [
    "MAX_LEVELS",
    "KeyPath",
    "key_on",
    "line_of",
    "lines_of_keys",
    "parse_toml",
    "read_key",
    "written_key",
    "written_value",
]

KeyPath = tuple[str, ...]
"""A key as a tuple of its parts: `model_providers.x.name` is `("model_providers", "x", "name")`."""

MAX_LEVELS: Final = 100
"""The number of levels at which `lines_of_keys` omits an implied table. Each part of the path of a table is a
level. A table is implied if it occurs only in a longer key: `a.b = 1` implies the table `a`. No setting has so many
levels. Without the limit, a key with thousands of parts would use gigabytes of memory.
"""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML document, and return its values as a dict.

    Raises:
        ValueError: the text is not TOML.
        RecursionError: the text is nested too deeply.
    """
    import tomllib

    return tomllib.loads(text)


# --- keys --------------------------------------------------------------------------------

_KEY_PART: Final = r"""\s*(?:"(?:\\.|[^"\\])*"|'[^']*')\s*|[^."'=]+"""


def read_key(text: str) -> tuple[KeyPath, int]:
    """Return the dotted key at the beginning of a string, and the offset at which the key ends. The key is empty if
    the string does not begin with a key.

    Parts may be quoted as in TOML. An unquoted part may contain more characters than TOML allows, so that a
    provider called `my models` needs no quotes on the command line.
    """
    parts: list[str] = []
    end = 0
    pattern = re.compile(_KEY_PART)
    while (found := pattern.match(text, end)) and (part := _unquoted(found[0].strip())):
        parts.append(part)
        end = found.end()
        if not text.startswith(".", end):
            return tuple(parts), end
        end += 1
    return (), 0


def written_key(path: KeyPath) -> str:
    """Return a key in TOML notation."""
    return ".".join(
        part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else msgspec.json.encode(part).decode() for part in path
    )


def written_value(value: Any) -> str:
    """Return a value of a setting in TOML notation, on one line."""
    match value:
        case str():  # JSON escapes everything that TOML must escape, except DEL
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(written_value, value))}]"
        case dict():
            entries = ", ".join(f"{written_key((name,))} = {written_value(one)}" for name, one in value.items())
            return f"{{ {entries} }}" if entries else "{}"
        case _:
            return msgspec.json.encode(value).decode()


def _unquoted(part: str) -> str:
    """Return a part of a key without its quotes, or an empty string if the quotes are invalid."""
    if not part.startswith(('"', "'")):
        return part
    try:
        return str(parse_toml(f"part = {part}")["part"])
    except ValueError:  # the escape does not exist in TOML
        return ""


# --- lines -------------------------------------------------------------------------------


def line_of(path: KeyPath, text: str) -> int | None:
    """Return the line number of a key in a TOML document; the first line is 1.

    If the key is not in the document, return the line number of the nearest enclosing table; None if there is no
    such table.
    """
    lines = lines_of_keys(text)
    return next((lines[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in lines), None)


def key_on(line: int, text: str) -> KeyPath | None:
    """Return the key on a line of a document, which may be invalid TOML; None if there is no key on the line."""
    try:
        lines = lines_of_keys("\n".join(text.split("\n")[:line]))
    except IndexError:  # there is a closing bracket without an opening bracket
        return None
    return max((path for path, at in lines.items() if at == line), key=len, default=None)


_TOKEN: Final = r'''(?x)
    """ (?: \\[\s\S] | [^\\] )*? """ "{0,2}      # strings over several lines may end in quotes of their own
  | \'\'\' [\s\S]*? \'\'\' '{0,2}
  | " (?: \\. | [^"\\\n] )* "
  | ' [^'\n]* '
  | \# [^\n]*
  | [\[\]{},=\n]
  | [^\s\[\]{},=.\#"']+
'''


def lines_of_keys(text: str) -> dict[KeyPath, int]:
    """Return the line number of every key and table in a valid TOML document, keyed by path; the first line is 1.

    A table that is only implied by longer keys has the line of the first such key. Implied tables whose path has at
    least `MAX_LEVELS` parts are omitted. All tables of an array have the path of the array.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    key: list[str] = []
    value_of: KeyPath | None = None  # the key of the value that is being read; None while no value is being read
    # Brackets in values, each with the table and key to return to.
    open_brackets: list[tuple[str, KeyPath, KeyPath]] = []
    line = 1

    def key_ended() -> KeyPath:
        path = (*table, *key)
        for depth in range(len(table) + 1, min(len(path), MAX_LEVELS)):
            lines.setdefault(path[:depth], line)
        lines[path] = line
        key.clear()
        return path

    for found in re.finditer(_TOKEN, text):
        token = found[0]
        match token, value_of:
            case "\n", _:
                if not open_brackets:
                    value_of = None
            case "[", None:
                table = ()
            case "]", None:
                if key:  # the second bracket of `[[name]]` ends no key
                    table = key_ended()
            case "=", None:
                value_of = key_ended()
            case "[", tuple(path):
                open_brackets.append((token, table, path))
            case "{", tuple(path):
                open_brackets.append((token, table, path))
                table, value_of = path, None
            case (("]" | "}"), _):
                _, table, value_of = open_brackets.pop()
            case ",", _:
                if open_brackets[-1][0] == "{":
                    value_of = None
            case _, None if token[0] != "#":
                key.append(_unquoted(token))
            case _:
                pass  # a comment or a part of a value
        line += token.count("\n")
    return lines

"""Finds unknown keys, suggests the key that was probably meant, and rejects some unknown keys.

An unknown key in config.toml may belong to another program or version, so the key is only reported. An unknown key
in a call, on the command line or in the chosen profile is an error if it may be meant as a setting that restricts
the agent. If the server ignored such a key, the intended restriction would have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from msgspec import Struct

from parley.common.spelling import is_about_safety, letters_of, near_miss, nearest
from parley.config.checks import Check, Named, Table, Wrong
from parley.config.schema import SETTINGS
from parley.config.toml_lines import KeyPath, written_key
from parley.errors import BadSetting

__all__ = ["UnknownKey", "refuse_misspelt", "unknown_keys", "unknown_setting"]

_ONLY_SAFETY: Final = frozenset({"sandbox", "sandbox_workspace_write", "approvals"})
"""Tables that only restrict the agent. Every unknown key in them is an error."""

_ALSO_SAFETY: Final = frozenset({"limits", "shell_environment_policy"})
"""Tables in which an unknown key is an error if it is similar to a known key."""

_MAX_UNKNOWN: Final = 100
"""The maximum number of unknown keys in a call. The server compares each unknown key with all known keys, and other
clients wait during the comparison.
"""

_MIN_LETTERS: Final = 5
"""The minimum number of letters in the name of a setting that is also recognised outside its table. A shorter name
may be meant as another key.
"""

_MISPLACED: Final[dict[str, KeyPath]] = {
    letters_of(name): (table, name)
    for table in sorted(_ONLY_SAFETY | _ALSO_SAFETY)
    if isinstance(check := SETTINGS.fields[table], Table)
    for name in check.fields
    if len(letters_of(name)) >= _MIN_LETTERS
}
"""The paths of the settings that restrict the agent. An error suggests the path if the name of such a setting is
used outside its table. The keys are the names of the settings in the form that `letters_of` returns.
"""


class UnknownKey(Struct, frozen=True):
    """A key that does not belong to any setting."""

    path: KeyPath
    nearest: KeyPath | None
    """The most similar known key in the same table; None if no key is similar."""


def unknown_keys(table: Any) -> Iterator[UnknownKey]:
    """Yield the unknown keys in a checked table and in the tables that it contains."""
    for path, known, _ in _unknown(table, SETTINGS, ()):
        similar = nearest(path[-1], known)
        yield UnknownKey(path, None if similar is None else (*path[:-1], similar))


def unknown_setting(path: KeyPath) -> BadSetting:
    """Return the error for a key in a command, such as `parley config set`, that is not a setting. The error names
    the most similar setting.
    """
    similar = _nearest_setting(path)
    hint = "`parley config` lists the settings" if similar is None else f"did you mean `{written_key(similar)}`?"
    return BadSetting(f"unknown setting, {hint}", key=written_key(path))


def _nearest_setting(path: KeyPath) -> KeyPath | None:
    """Return the setting that is most similar to an unknown key; None if no setting is similar.

    A key without its table, such as `turn_cost`, is compared with the last parts of all settings.
    """
    check: Check = SETTINGS
    for depth, name in enumerate(path):
        match check:
            case Table(fields=fields) if name in fields:
                check = fields[name]
            case Table(fields=fields):
                if (similar := nearest(name, fields)) is not None:
                    return (*path[:depth], similar, *path[depth + 1 :])
                break
            case Named(entry=entry):
                check = entry
            case _:
                return path[:depth]
    tables = {table: one.fields for table, one in SETTINGS.fields.items() if isinstance(one, Table)}
    places = {name: (table, name) for table, fields in tables.items() for name in fields}
    found = near_miss(path[-1], places)
    return None if found is None else places[found]


def refuse_misspelt(tables: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the tables of a call after checking their unknown keys.

    The check covers the keys at the top level, in profiles, and in the tables that restrict the agent. Unknown keys
    in other tables are only counted.

    Raises:
        Wrong: an unknown key looks like a misspelt setting or like a setting that restricts the agent, or there are
            more than `_MAX_UNKNOWN` unknown keys.
    """
    unknown = 0
    for table in tables:
        for path, known, value in _unknown(table, SETTINGS, ()):
            if value is None:  # null means the same as a missing key
                continue
            unknown += 1
            if unknown > _MAX_UNKNOWN:
                raise Wrong(path, f"more than {_MAX_UNKNOWN} unknown settings")
            _refuse_if_misspelt(path, known)
        yield table


def _refuse_if_misspelt(path: KeyPath, known: tuple[str, ...]) -> None:
    *above, name = path
    table = above[0] if above else "profiles"  # a key outside of all tables is checked like a key of a profile
    if table not in ("profiles", *_ONLY_SAFETY, *_ALSO_SAFETY):
        return
    if (meant := near_miss(name, known)) is not None:
        raise Wrong(path, f"unknown setting, did you mean `{written_key((*above, meant))}`?")
    if table == "profiles" and (place := _MISPLACED.get(letters_of(name))) is not None:
        raise Wrong(path, f"unknown setting, did you mean `{written_key(place)}`?")
    if table in _ONLY_SAFETY or (table == "profiles" and is_about_safety(name)):
        among = [key for key in known if table in _ONLY_SAFETY or is_about_safety(key)]
        raise Wrong(path, f"unknown setting, expected one of {', '.join(f'`{key}`' for key in among)}")


def _unknown(table: Any, check: Check, at: KeyPath) -> Iterator[tuple[KeyPath, tuple[str, ...], Any]]:
    """Yield the path of each unknown key, the known keys of the same table, and the value of the unknown key.

    `check` is the check for `table`, and `at` is the path of `table`.
    """
    if not isinstance(table, dict):
        return
    match check:
        case Table(fields=fields):
            for key, value in table.items():
                if key in fields:
                    yield from _unknown(value, fields[key], (*at, key))
                else:
                    yield (*at, key), tuple(fields), value
        case Named(entry=entry):
            for name, value in table.items():
                yield from _unknown(value, entry, (*at, name))
        case _:
            return

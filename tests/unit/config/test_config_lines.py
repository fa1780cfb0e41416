"""The line of a key in a file, for every notation of the key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.config.checks import Check, Named, Table
from parley.config.schema import SETTINGS
from parley.config.toml_lines import MAX_LEVELS, KeyPath, lines_of_keys
from unit.config.home import Home

TRICKY = (
    """\
# model = "in a comment"
a.b = 1
"quoted.key" = 'it"""
    + "'"
    + '''

[ table . 'x' ]   # a header [not.this]
text = """
[not.a.table]
not_a_key = 1 \\"""
"""""
literal = \'\'\'
not_a_key = "\'\'\'
list = [
  [1, "]"], # ]
  { in_list = 1 },
]
after = 2
inline = { p = 1, q.r = { s = [1, 2], t = "}" }, u = {} }
when = 1979-05-27 07:32:00
[table]
late = 1.5e3
[[many]]
name = 1
[[many]]
name = 2
[many.sub]
x = 1
'''
)


def test_every_key_of_a_tricky_file_is_found() -> None:
    tomllib.loads(TRICKY)  # the following check needs a valid document

    lines = {".".join(map(repr, path)).replace("'", ""): line for path, line in lines_of_keys(TRICKY).items()}

    assert lines == {
        "a": 2,
        "a.b": 2,
        "quoted.key": 3,
        "table": 19,
        "table.x": 5,
        "table.x.text": 6,
        "table.x.literal": 10,
        "table.x.list": 12,
        "table.x.list.in_list": 14,
        "table.x.after": 16,
        "table.x.inline": 17,
        "table.x.inline.p": 17,
        "table.x.inline.q": 17,
        "table.x.inline.q.r": 17,
        "table.x.inline.q.r.s": 17,
        "table.x.inline.q.r.t": 17,
        "table.x.inline.u": 17,
        "table.x.when": 18,
        "table.late": 20,
        "many": 23,
        "many.name": 24,
        "many.sub": 25,
        "many.sub.x": 26,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[model_providers.x]\r\nname = "X"\r\nbase_url = 5\r\n', "FILE, line 3: `model_providers.x.base_url`"),
        ("model_providers.x = {\tname = 'X', base_url = 5 }", "FILE, line 1: `model_providers.x.base_url`"),
        ('[model_providers."a.b"]\n\n"base_url" = 5', 'FILE, line 3: `model_providers."a.b".base_url`'),
        ('[model_providers."\\u0061"]\nbase_url = 5', "FILE, line 2: `model_providers.a.base_url`"),
        ("notify = [\n  'a',\n  5,\n]", "FILE, line 1: `notify`"),
        ("\n[[model_providers]]\nname = 'X'", "FILE, line 2: `model_providers`"),
        ("\n[model.x]\ny = 1", "FILE, line 2: `model`"),
        (
            "model_provider = 'x'\n[model_providers.x.http_headers]\n[model_providers.x]\nname = 'X'",
            "FILE, line 3: `model_providers.x.base_url`",
        ),
    ],
)
def test_an_error_names_the_line_of_its_key(home: Home, text: str, said: str) -> None:
    home.config.write_bytes(text.encode())

    assert home.refusal().startswith(f"{said}: ")


def scalar_settings(check: Check = SETTINGS, at: KeyPath = ()) -> Iterator[KeyPath]:
    """Return the keys of all settings that are not tables, with `name` for names that the user chooses."""
    match check:
        case Table():
            for key, field in check.fields.items():
                yield from scalar_settings(field, (*at, key))
        case Named():
            yield from scalar_settings(check.entry, (*at, "name"))
        case _:
            yield at


NOISE = st.lists(
    st.sampled_from(
        [
            "",
            "# model = 1",
            'noise{n} = "# [model] \\" = "',
            "noise{n} = '''\n[model]\nmodel = 1\n''''",
            'noise{n} = """\n\\"""[limits]\n"""""',
            "noise{n} = [\n  [ '[', ']' ], # ]\n  { model = 1 },\n]",
            "noise{n} = { model = 1, deep.er = [ {} ] }",
            "noise{n}.model = 1979-05-27T07:32:00Z",
        ]
    ),
    max_size=6,
)


def written(key: KeyPath, *, header: int, inline: int) -> tuple[str, str]:
    """Return the table header with some parts of the key, and the line with the rest, partly as inline tables."""
    header = min(header, len(key) - 1)
    inline = min(inline, len(key) - header - 1)
    value = "1979-05-27"  # no setting is a date
    for part in reversed(key[len(key) - inline :]):
        value = f'{{ other = "}}", "{part}" = {value} }}'
    setting = f"{'.'.join(key[header : len(key) - inline])} = {value}"
    return f"[{'.'.join(key[:header])}]" if header else "", setting


@settings(deadline=None)
@given(
    key=st.sampled_from(list(scalar_settings())),
    header=st.integers(0, 3),
    inline=st.integers(0, 3),
    noises=st.tuples(NOISE, NOISE, NOISE),
)
def test_any_setting_is_found_at_its_line(
    key: KeyPath, header: int, inline: int, noises: tuple[list[str], list[str], list[str]]
) -> None:
    head, setting = written(key, header=header, inline=inline)
    before, between, after = (
        [text.replace("{n}", f"{place}_{n}") for n, text in enumerate(noise)] for place, noise in enumerate(noises)
    )
    above = "\n".join([*before, head, *between, ""])
    text = above + "\n".join([setting, *after])
    tomllib.loads(text)  # the following check needs a valid document

    assert lines_of_keys(text)[key] == above.count("\n") + 1


@pytest.mark.parametrize("key", list(scalar_settings()), ids=".".join)
def test_a_date_in_place_of_any_setting_is_an_error_at_its_line(home: Home, key: KeyPath) -> None:
    head, setting = written(key, header=len(key) - 1, inline=0)
    home.write(f"{head}\n\n{setting}\n")

    assert home.refusal().startswith(f"FILE, line 3: `{'.'.join(key)}`: invalid type: datetime, expected ")


def test_a_key_with_very_many_parts_costs_little_memory() -> None:
    path = ("a",) * 20_000

    lines = lines_of_keys(f"{'.'.join(path)} = 1")

    assert lines[path] == 1
    assert len(lines) == MAX_LEVELS

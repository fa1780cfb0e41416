"""docs/config.md has a heading for every setting, and its examples are valid."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from parley.config.checks import Check, Named, Table
from parley.config.schema import SETTINGS
from parley.config.toml_lines import KeyPath

PAGE = (Path(__file__).parents[3] / "docs" / "config.md").read_text(encoding="utf-8")

VARIABLES = [
    "PARLEY_HOME",
    "CODEX_HOME",
    "HOME",
    "PARLEY_NODE_TOKEN",
    "PARLEY_SERVE_TOKEN",
    "PARLEY_STORE_URL",
    "PARLEY_TOKEN",
    "PARLEY_LOG",
    "PARLEY_LOG_CONTENT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_ORGANIZATION",
    "OPENAI_PROJECT",
    "AZURE_OPENAI_ENDPOINT",
    "CODEX_OSS_BASE_URL",
    "CODEX_OSS_PORT",
]


def settings(check: Check = SETTINGS, at: KeyPath = ()) -> Iterator[str]:
    """Return the key of each setting, with NAME for names that the user chooses. Keys of profiles have no headings
    of their own."""
    match check:
        case Table() if at != ("profiles", "NAME"):
            for key, field in check.fields.items():
                yield from settings(field, (*at, key))
        case Named(entry=Table() as entry):
            yield from settings(entry, (*at, "NAME"))
        case _:
            yield ".".join(at)


def test_every_setting_and_variable_has_a_heading_and_every_heading_is_one_of_them() -> None:
    headings = re.findall(r"^### `([^`]+)`$", PAGE, re.MULTILINE)

    assert sorted(headings) == sorted([*settings(), *VARIABLES])


@pytest.mark.parametrize("example", re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_an_example_sets_what_can_be_set_to_what_it_can_be(example: str) -> None:
    table = tomllib.loads(example)

    assert msgspec.json.encode(SETTINGS(table, ())) == msgspec.json.encode(table)

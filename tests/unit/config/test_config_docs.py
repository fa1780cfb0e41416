"""docs/config.md has a heading for every setting, its examples are valid, and its errors have these messages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from parley.config.checks import Check, Named, Table
from parley.config.schema import SETTINGS
from parley.config.toml_lines import KeyPath
from parley.config.types import SettingsOverrides
from parley.errors import BadSetting
from unit.config.home import Home

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


ERRORS: Final[dict[str, tuple[str, dict[str, Any], tuple[str, ...]]]] = {
    "base_url": ("\n" * 5 + "[model_providers.local]\nbase_url = 8000\n", {}, ()),
    "sometimes": ('\n\n\napproval_policy = "sometimes"\n', {}, ()),
    "not valid TOML": ("model = o3\n", {}, ()),
    "notify": ("", {"notify": "bell"}, ()),
    "approvalPolicy": ("", {"approvalPolicy": "never"}, ()),
    "sandbox.mode": ("", {}, ("sandbox.mode=x",)),
    "sandbox_mod`": ("\nsandbox_mod = 1\n", {}, ()),
}
"""The file, the config argument and the options `-c` that cause an error of the page, by a word of its message."""


@pytest.mark.parametrize("word", ERRORS)
def test_an_error_has_the_message_of_the_page(home: Home, word: str) -> None:
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (shown,) = (line for block in blocks for line in block.splitlines() if word in line)
    file, config, options = ERRORS[word]
    home.write(file)

    try:
        loader = home.loader(*options)
        loader.choose(SettingsOverrides(config=config))
        (message,) = loader.unknown_keys()
    except BadSetting as error:
        message = str(error)

    assert message.replace(str(home.config), "/home/ada/.parley/config.toml") == shown


def test_every_error_of_the_page_is_caused() -> None:
    blocks = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

    assert sum(len(block.splitlines()) for block in blocks) == len(ERRORS)

"""Unknown keys."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from parley.config.load import Loader
from parley.config.types import SettingsOverrides
from parley.config.unknown_keys import UnknownKey, unknown_keys
from parley.errors import BadSetting


@pytest.mark.parametrize(
    ("table", "unknown"),
    [
        ({"model": "m", "profiles": {"any name": {"model": "m"}}, "mcp_servers": {"x": {"env": {"ANY": "v"}}}}, []),
        ({"modle": "m"}, [UnknownKey(("modle",), ("model",))]),
        ({"tui": {"theme": 1}}, [UnknownKey(("tui",), None)]),
        (
            {"model_providers": {"x": {"base-url": "http://x"}}},
            [UnknownKey(("model_providers", "x", "base-url"), ("model_providers", "x", "base_url"))],
        ),
        (
            {"profiles": {"p": {"sandbox_mode": "read-only"}}, "store": {"keepdays": 3}},
            [
                UnknownKey(("profiles", "p", "sandbox_mode"), None),
                UnknownKey(("store", "keepdays"), ("store", "keep_days")),
            ],
        ),
    ],
)
def test_unknown_keys_are_found_in_every_table(table: Any, unknown: list[UnknownKey]) -> None:
    assert list(unknown_keys(table)) == unknown


@pytest.mark.parametrize(
    "config",
    [
        {"tui": {"sandbox": 1}},
        {"features": {"approval": True}},
        {"mcp_servers": {"sandbox": {"command": "x", "startup_policy": 1}}},
        {"model_providers": {"x": {"base_url": "http://x", "approval_mode": 1}}},
        {"store": {"keepdays": 3}},
        {"aproval_policy": None},
        {"sandbox": {"mode": None}},
        {"shell_environment_policy": {"experimental_use_profile": True}},
    ],
)
def test_settings_of_others_are_ignored_in_a_call(tmp_path: Path, config: dict[str, Any]) -> None:
    loader = Loader(environ={"HOME": str(tmp_path)}, server_dir=str(tmp_path))

    assert loader.choose(SettingsOverrides(config=config)).settings.sandbox_mode == "read-only"


def test_a_message_cannot_misspell_a_setting_either(tmp_path: Path) -> None:
    loader = Loader(environ={"HOME": str(tmp_path)}, server_dir=str(tmp_path))
    before = loader.choose(SettingsOverrides())

    with pytest.raises(BadSetting, match="unknown setting, did you mean `approval_policy`"):
        loader.choose(SettingsOverrides(config={"approvalPolicy": "untrusted"}), before)


def test_very_many_unknown_settings_are_refused_at_once(tmp_path: Path) -> None:
    loader = Loader(environ={"HOME": str(tmp_path)}, server_dir=str(tmp_path))
    begin = time.process_time()
    with pytest.raises(BadSetting, match="more than 100 unknown settings"):
        loader.choose(SettingsOverrides(config={f"zzzzz{number:06}": 1 for number in range(200_000)}))

    assert time.process_time() - begin < 2

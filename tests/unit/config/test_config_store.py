"""Settings of the home itself, which conversations cannot change."""

from __future__ import annotations

import pytest

from parley.config.types import SettingsOverrides, StoreSettings
from parley.errors import BadSetting
from unit.config.home import Home


def test_without_settings_everything_is_kept(home: Home) -> None:
    assert home.loader().store_settings() == StoreSettings(keep_days=0)


def test_the_command_line_wins_over_the_file(home: Home) -> None:
    home.write("[store]\nkeep_days = 30\n")

    assert home.loader().store_settings() == StoreSettings(keep_days=30)
    assert home.loader("store.keep_days=7").store_settings() == StoreSettings(keep_days=7)


def test_the_file_is_read_again_when_it_has_changed(home: Home) -> None:
    loader = home.loader()
    before = loader.store_settings()
    home.write("[store]\nkeep_days = 30\n")

    assert (before.keep_days, loader.store_settings().keep_days) == (0, 30)


def test_a_call_does_not_change_what_the_home_keeps(home: Home) -> None:
    loader = home.loader()
    loader.choose(SettingsOverrides(config={"store.keep_days": 1}))

    assert loader.store_settings() == StoreSettings(keep_days=0)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("-1", "invalid value: integer `-1`, expected an integer from 0 to 36500"),
        ('"long"', 'invalid type: string "long", expected an integer'),
    ],
)
def test_a_number_of_days_that_cannot_be_is_refused_with_its_place(home: Home, value: str, why: str) -> None:
    home.write(f"[store]\nkeep_days = {value}\n")

    with pytest.raises(BadSetting) as caught:
        home.loader().store_settings()

    assert str(caught.value) == f"{home.config}, line 2: `store.keep_days`: {why}"

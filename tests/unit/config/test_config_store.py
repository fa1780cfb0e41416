"""Settings of the home itself, which conversations cannot change."""

from __future__ import annotations

import pytest

from parley.config.redaction import stored_arguments
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


URL = "postgresql://ada:hidden-in-no-log@db.example.com/parley"


def test_the_database_is_named_by_the_file_or_by_the_environment(home: Home) -> None:
    loader = home.loader()
    before = loader.store_url()
    home.write(f'[store]\nkeep_days = 3\nurl = "{URL}"\n')
    named = loader.store_url()
    other = home.loader(environ={"PARLEY_STORE_URL": "postgres:///other"}).store_url()

    assert (before, named, other) == (None, URL, "postgres:///other")
    assert loader.store_settings() == StoreSettings(keep_days=3)


def test_the_address_of_the_database_is_shown_nowhere(home: Home) -> None:
    home.write(f'[store]\nurl = "{URL}"\n')
    loader = home.loader()
    chosen = loader.choose(SettingsOverrides())

    assert "hidden-in-no-log" not in repr((loader.store_url(), loader.store_settings(), chosen))
    assert "hidden-in-no-log" not in str(chosen.values)
    assert {"PARLEY_STORE_URL", "PGPASSWORD"} <= chosen.settings.key_variables


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///db",
        "postgresql://ada@/db",
        "postgresql://ada:p%2Fw%40@db.example.com:5433/db?sslmode=verify-full&sslrootcert=/etc/ca.pem",
        "postgres://ada@one,two:5433,[::1],[::1]:5433/db",
        "postgres://ada@%2Fvar%2Frun/db?port=5433",
    ],
)
def test_the_usual_addresses_of_a_database_are_accepted(home: Home, url: str) -> None:
    assert home.loader(environ={"PARLEY_STORE_URL": url}).store_url() == url


@pytest.mark.parametrize(
    "url",
    [
        "mysql://a:hidden-in-no-log@b/c",
        "postgresql://hidden-in-no-log",
        "hidden-in-no-log",
        "postgresql://a:hidden-in-no-log/w@b/c",
        "postgresql://a:1/hidden-in-no-log@b/c",
        "postgresql://a:1/c?d=hidden-in-no-log@b/c",
        "postgresql://a:w@hidden-in-no-log@b/c",
        "postgresql://a:hidden-in-no-log#@b/c",
        "postgresql://a:hidden-in-no-log@[b/c",
        "postgresql://a:hidden-in-no-log@b:port/c",
        "postgresql://a:hidden-in-no-log@b:70000/c",
        "postgresql://a:hidden-in-no-log@b,/c",
        "postgresql://a:hidden-in-no-log@b/c?port=d",
        "postgresql://a:hidden-in-no-log@b/c?d",
    ],
)
def test_an_address_that_is_not_one_of_postgres_is_refused_without_showing_it(home: Home, url: str) -> None:
    why = (
        "expected a URL such as postgresql://user@host/database;"
        " special characters of the password must be percent-encoded"
    )
    home.write(f'[store]\nurl = "{url}"\n')
    with pytest.raises(BadSetting) as caught:
        home.loader().store_url()
    assert str(caught.value) == f"{home.config}, line 2: `store.url`: {why}"
    home.write("")
    with pytest.raises(BadSetting) as caught:
        home.loader(environ={"PARLEY_STORE_URL": url}).store_url()
    assert str(caught.value) == f"PARLEY_STORE_URL: {why}"


def test_neither_the_command_line_nor_a_call_can_set_the_database(home: Home) -> None:
    why = "can only be set in config.toml or in PARLEY_STORE_URL"
    with pytest.raises(BadSetting, match=why):
        home.loader(f"store.url={URL}")
    with pytest.raises(BadSetting, match=why):
        home.loader().choose(SettingsOverrides(config={"store.url": URL}))
    assert stored_arguments(SettingsOverrides(config={"store.url": URL, "store": {"url": URL}})) == {"config": {}}

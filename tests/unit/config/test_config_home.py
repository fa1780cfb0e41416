"""The location of the home, and which file in it is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.config.load import Loader
from parley.config.types import SettingsOverrides
from parley.errors import BadSetting
from unit.config.home import SERVER_DIR, Home


def home_of(**environ: str) -> str:
    return Loader(environ=environ, server_dir=SERVER_DIR).home


def test_the_home_is_named_by_the_first_variable_that_is_set(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()

    assert home_of(PARLEY_HOME=str(ours), CODEX_HOME=str(theirs), HOME="/home/u") == str(ours)
    assert home_of(CODEX_HOME=str(theirs), HOME="/home/u") == str(theirs)
    assert home_of(PARLEY_HOME="", CODEX_HOME="", HOME="/home/u") == "/home/u/.parley"


def test_a_relative_home_is_resolved_against_the_directory_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()

    loader = Loader(environ={"PARLEY_HOME": "here"}, server_dir=str(tmp_path))

    assert loader.home == str(tmp_path / "here")


def test_a_home_that_is_named_and_missing_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    loader = Loader(environ={"CODEX_HOME": str(missing)}, server_dir=SERVER_DIR)

    with pytest.raises(BadSetting) as caught:
        loader.choose(SettingsOverrides())

    assert str(caught.value) == (
        f"CODEX_HOME: {missing}: No such file or directory (os error 2); "
        "create the directory, for example with `mkdir -p`"
    )


def test_a_file_is_no_home(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(BadSetting) as caught:
        home_of(PARLEY_HOME=str(file))

    assert str(caught.value) == f"PARLEY_HOME: {file}: Not a directory (os error 20)"


def test_a_directory_that_is_not_utf_8_is_refused(home: Home) -> None:
    with pytest.raises(BadSetting) as of_home:
        home_of(PARLEY_HOME="/\udcff")
    with pytest.raises(BadSetting) as of_cwd:
        Loader(environ={"HOME": str(home.path)}, server_dir="/\udcff").choose(SettingsOverrides())

    assert str(of_home.value) == "PARLEY_HOME: not valid UTF-8"
    assert str(of_cwd.value) == "working directory: not valid UTF-8"


def test_without_any_home_directory_the_error_says_what_to_set() -> None:
    with pytest.raises(BadSetting) as caught:
        home_of()

    assert str(caught.value) == "neither PARLEY_HOME nor HOME is set, so there is no home directory"


def test_the_default_home_may_be_missing(tmp_path: Path) -> None:
    settings = Loader(environ={"HOME": str(tmp_path)}, server_dir=SERVER_DIR).choose(SettingsOverrides()).settings

    assert settings.home == str(tmp_path / ".parley")
    assert not os.path.exists(settings.home)


def test_a_file_that_appears_changes_and_goes_is_followed(home: Home) -> None:
    loader = home.loader()
    seen = [loader.choose(SettingsOverrides()).settings.model]
    home.write('model = "first"')
    seen.append(loader.choose(SettingsOverrides()).settings.model)
    home.write('model = "the second"')
    seen.append(loader.choose(SettingsOverrides()).settings.model)
    home.config.unlink()
    seen.append(loader.choose(SettingsOverrides()).settings.model)

    assert seen == ["gpt-5", "first", "the second", "gpt-5"]


def test_a_file_that_looks_untouched_is_followed_all_the_same(home: Home) -> None:
    loader = home.loader()
    home.write('model = "one"')
    times = home.config.stat()
    seen = [loader.choose(SettingsOverrides()).settings.model]
    home.write('model = "two"')
    os.utime(home.config, ns=(times.st_atime_ns, times.st_mtime_ns))
    seen.append(loader.choose(SettingsOverrides()).settings.model)

    assert seen == ["one", "two"]


def test_a_file_that_is_mended_counts_again(home: Home) -> None:
    loader = home.loader()
    home.write('model = "good"')
    loader.choose(SettingsOverrides())
    home.write("model = 5")
    for _ in range(2):
        with pytest.raises(BadSetting):
            loader.choose(SettingsOverrides())
    home.write('model = "mended"')

    assert loader.choose(SettingsOverrides()).settings.model == "mended"


def test_conversations_that_want_the_same_share_their_settings(home: Home) -> None:
    home.write('model = "m"')
    loader = home.loader()

    first = loader.choose(SettingsOverrides(cwd="/a", config={"model_reasoning_effort": "low"})).settings
    second = loader.choose(SettingsOverrides(cwd="/a", config={"model_reasoning_effort": "low"})).settings
    other = loader.choose(SettingsOverrides(cwd="/a", config={"model_reasoning_effort": "high"})).settings

    assert first is second
    assert (first.model_reasoning_effort, other.model_reasoning_effort) == ("low", "high")


def test_a_client_that_never_wants_the_same_twice_is_served_all_the_same(home: Home) -> None:
    loader = home.loader()

    models = [loader.choose(SettingsOverrides(model=f"m{number}")).settings.model for number in range(200)]

    assert models == [f"m{number}" for number in range(200)]

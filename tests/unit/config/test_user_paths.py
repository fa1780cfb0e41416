"""The paths in settings: the working directory and the hidden paths."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from parley.config.types import SettingsOverrides
from unit.config.home import SECRETS, SERVER_DIR, Home

ACCOUNT = pwd.getpwuid(os.geteuid()).pw_dir
"""The home directory of the user according to the system. `HOME` may name another directory."""


@pytest.mark.parametrize(
    ("given", "cwd"),
    [
        (None, SERVER_DIR),
        ("", SERVER_DIR),
        (".", SERVER_DIR),
        ("sub", f"{SERVER_DIR}/sub"),
        ("./sub/", f"{SERVER_DIR}/sub"),
        ("../up", f"{SERVER_DIR}/../up"),
        ("~/x", f"{SERVER_DIR}/~/x"),
        ("/not/there", "/not/there"),
    ],
)
def test_the_working_directory_is_resolved_against_that_of_the_server(
    home: Home, given: str | None, cwd: str
) -> None:
    assert home.resolve(SettingsOverrides(cwd=given)).cwd == cwd


def test_secrets_of_the_user_and_the_home_are_hidden_unless_others_are_named(home: Home) -> None:
    mine = SettingsOverrides(config={"sandbox.hidden_paths": ["/secrets"]})
    environ = {"HOME": "/home/ada"}

    assert home.resolve(environ=environ).sandbox.hidden_paths == (str(home.path), *SECRETS)
    assert home.resolve(mine, environ=environ).sandbox.hidden_paths == (str(home.path), "/secrets")


def test_a_hidden_link_and_its_target_are_both_hidden(home: Home, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "keys").symlink_to("dotfiles")
    mine = SettingsOverrides(config={"sandbox.hidden_paths": [f"{tmp_path}/keys", f"{tmp_path}/missing"]})

    assert home.resolve(mine).sandbox.hidden_paths == (
        str(home.path),
        f"{tmp_path}/keys",
        f"{tmp_path}/missing",
        f"{tmp_path}/dotfiles",
    )


@pytest.mark.parametrize(
    ("user", "place"), [(None, ACCOUNT), ("", ACCOUNT), ("somewhere", f"{SERVER_DIR}/somewhere")]
)
def test_hidden_paths_are_absolute_whatever_the_environment_calls_home(
    home: Home, user: str | None, place: str
) -> None:
    wanted = SettingsOverrides(config={"sandbox.hidden_paths": ["/a", "~/b"]})

    settings = home.resolve(wanted, environ={} if user is None else {"HOME": user})

    assert settings.sandbox.hidden_paths == (str(home.path), "/a", f"{place}/b")

"""The table `[workspace]`: its repositories, and what a call may choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.config.types import SettingsOverrides
from parley.errors import BadSetting
from unit.config.home import Home

GIT = '[workspace]\nmode = "git"\ndirectory = "/srv/git"\n'
APP = f'{GIT}[workspace.repositories.app]\nurl = "https://ada:hunter2@example.com/app.git"\n'


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def refusal(home: Home) -> str:
    with pytest.raises(BadSetting) as caught:
        home.loader().workspace_settings()
    return str(caught.value).replace(str(home.config), "FILE")


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ('[workspace]\nmode = "git"', "`workspace.directory`: missing, and the mode `git` needs it"),
        ('[workspace]\ndirectory = "git"', "expected an absolute path"),
        (f"{GIT}author = 'Ada'", "FILE, line 4: `workspace.author`: expected the form `NAME <ADDRESS>`"),
        (f"{GIT}author = 'Ada <a@b> <c@d>'", "expected the form"),
        (f'{GIT}author = "Ada\\n <a@b>"', "expected the form"),
        (f'{GIT}repositories.app.branch = "x"', "`workspace.repositories.app.url`: missing"),
        (
            f'{GIT}repositories.app.url = "ext::sh -c hunter2"',
            "line 4: `workspace.repositories.app.url`: expected an",
        ),
        (f'{GIT}repositories.app.url = "http://ada:hunter2@example.com/a"', "https://, ssh://, file:///"),
        (f"{GIT}repositories.app.url = 5", "invalid type: integer, expected a string"),
        (f'{GIT}repositories."../x".url = "/srv/app"', "expected 1 to 64 letters"),
        (f'{GIT}repositories."-x".url = "/srv/app"', "expected 1 to 64 letters"),
        (f'{GIT}repositories."x.git".url = "/srv/app"', "not ending with `.`, `.git`"),
        (f'{GIT}repositories."".url = "/srv/app"', "expected 1 to 64 letters"),
        (f'{GIT}repositories.a.url = "/a"\nrepositories.a.branch = "--x"', "branch`: not the name of a branch"),
        (f'{GIT}repositories.a.url = "/a"\nrepositories.a.branch = "a..b"', "not the name of a branch"),
        (f'{GIT}repositories.a.url = "/a"\nrepositories.a.branch = "a/.b"', "not the name of a branch"),
        (f'{GIT}repositories.a.url = "/a"\nrepositories.a.branch = "a*"', "not the name of a branch"),
        (f"{GIT}keep_days = -1", "expected an integer from 0 to 36500"),
    ],
)
def test_an_invalid_workspace_is_refused_without_showing_a_password(home: Home, text: str, detail: str) -> None:
    home.write(text)

    said = refusal(home)

    assert detail in said
    assert "hunter2" not in said


def test_a_repository_is_not_shown_by_repr_and_not_kept_in_the_values_of_a_conversation(home: Home) -> None:
    home.write(APP)
    chosen = home.loader().choose(SettingsOverrides(repository="app"))

    assert chosen.settings.repository == "app"
    assert "hunter2" not in f"{home.loader().workspace_settings()} {chosen}"


def test_a_call_and_the_command_line_cannot_define_repositories(home: Home) -> None:
    home.write(APP)

    for path in ("workspace.repositories.app.url", "workspace.repositories.other.url"):
        said = home.refusal(SettingsOverrides(config={path: "/etc"}))
        assert said == "config argument: `workspace.repositories`: can only be set in config.toml"
        with pytest.raises(BadSetting, match="can only be set in"):
            home.loader(f"{path}=/etc")


@pytest.mark.parametrize(
    ("wanted", "detail"),
    [
        (
            SettingsOverrides(repository="other"),
            "no repository `other` in config.toml; the repositories are: `app`",
        ),
        (SettingsOverrides(repository=""), "no repository `` in config.toml"),
        (SettingsOverrides(repository="app", cwd="/tmp"), "`cwd`: cannot be combined with `repository`"),
    ],
)
def test_a_call_names_a_repository_of_the_server(home: Home, wanted: SettingsOverrides, detail: str) -> None:
    home.write(APP)

    assert detail in home.refusal(wanted)


def test_a_server_without_the_mode_git_refuses_repositories(home: Home) -> None:
    home.write(APP.replace('mode = "git"', 'mode = "local"'))

    assert "needs a server with workspace.mode `git`" in home.refusal(SettingsOverrides(repository="app"))


def test_a_later_call_cannot_change_the_directory_of_a_repository(home: Home) -> None:
    home.write(APP)
    loader = home.loader()
    before = loader.choose(SettingsOverrides(repository="app"))

    with pytest.raises(BadSetting, match="cannot be combined with `repository`"):
        loader.choose(SettingsOverrides(cwd="/etc"), before)
    assert loader.choose(SettingsOverrides(model="x"), before).settings.repository == "app"


def test_passwords_and_keys_of_repositories_are_withheld_from_commands(home: Home) -> None:
    home.write(f'{APP}token_env = "APP_TOKEN"\nssh_key = "~/keys/app"\n')
    settings = home.resolve(environ={"HOME": "/home/ada"})

    assert settings.clones == ("/srv/git/repositories",)
    assert "APP_TOKEN" in settings.key_variables
    assert "/home/ada/keys/app" in settings.withheld_paths

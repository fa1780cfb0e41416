"""`parley config`: shows the settings and their sources, and changes config.toml."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.servers.command_line import run_parley
from parley.cli.main import main

CONFIG = """\
profile = "fast"
approval_policy = "untrusted"
notify = ["ring", "never-told"]

[profiles.fast]
approval_policy = "never"

[model_providers.mine]
base_url = "https://ada:never-told@example.com/v1?key=never-told"
http_headers = { x-key = "never-told" }

[mcp_servers.docs]
command = "docs"
args = ["--key", "never-told"]
env = { KEY = "never-told" }

[store]
url = "postgresql://ada:never-told@example.com/parley"

[webhook]
url = "https://example.com/never-told"
secret_env = "HOOK"
"""


class Home:
    """A home, and `parley config` in it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path, self.file = path, path / "config.toml"
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run the command, and return its exit code, its output and its errors."""
        return main(["config", *arguments]), *self._capsys.readouterr()

    def settings(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """Return the members of each setting that the command prints as JSON, by key."""
        code, out, err = self.run("--json", *arguments)
        assert (code, err) == (0, "")
        return {one["key"]: one for one in map(json.loads, out.splitlines())}


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PARLEY_HOME", str(tmp_path))
    return Home(tmp_path, capsys)


def source(setting: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in setting.items() if name not in ("type", "key")}


# --- show and get --------------------------------------------------------------------------


@pytest.mark.promises("config.sources")
def test_each_setting_is_shown_with_its_source(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.file.write_text(CONFIG)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://ada:never-told@proxy.example/v1")
    shown = home.settings("-c", "model=o3")

    assert source(shown["model"]) == {"value": "o3", "source": "-c"}
    assert source(shown["approval_policy"]) == {
        "value": "never",
        "source": "profile",
        "profile": "fast",
        "line": 6,
    }
    assert source(shown["profile"]) == {"value": "fast", "source": "config.toml", "line": 1}
    assert source(shown["sandbox_mode"]) == {"value": "read-only", "source": "default"}
    assert source(shown["limits.turn_cost"]) == {"value": 0.0, "source": "default"}
    assert source(shown["model_context_window"]) == {"value": None, "source": "default"}
    assert source(shown["model_providers.openai.base_url"]) == {
        "value": "https://proxy.example/v1",
        "source": "environment",
        "variable": "OPENAI_BASE_URL",
    }
    assert shown["model_providers.openai.env_key"]["value"] == "OPENAI_API_KEY"


@pytest.mark.promises("config.sources")
def test_no_secret_is_shown(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.file.write_text(CONFIG)
    monkeypatch.setenv("HOOK", "never-told" * 3)
    shown = home.settings()
    hidden = [key for key, one in shown.items() if one.get("is_secret")]

    assert hidden == [
        "notify",
        "mcp_servers.docs.args",
        "mcp_servers.docs.env.KEY",
        "store.url",
        "webhook.url",
        "model_providers.mine.http_headers.x-key",
    ]
    assert shown["model_providers.mine.base_url"]["value"] == "https://example.com/v1"
    outputs = [home.run("show"), *(home.run("get", key) for key in hidden), home.run("get", "model_providers")]
    assert "never-told" not in str((shown, outputs))
    assert home.run("get", "store.url") == (0, '"<hidden>"\n', "")


def test_the_output_is_toml_with_the_values_that_are_in_effect(home: Home) -> None:
    home.file.write_text('model = "é\\"\\u007f#"\nsandbox.hidden_paths = ["~/a b", "/c"]\nlimits.turn_cost = 2.5\n')
    code, out, err = home.run()
    table = tomllib.loads(out)

    assert (code, err) == (0, "")
    assert out.startswith(f"# {home.file}\n")
    assert (table["model"], table["limits"]["turn_cost"]) == ('é"\x7f#', 2.5)
    assert table["sandbox"]["hidden_paths"] == ["~/a b", "/c"]
    assert "# model_context_window is not set" in out


def test_changed_shows_only_the_settings_that_a_source_sets(home: Home) -> None:
    home.file.write_text("web_search = true\n")

    assert home.run("--changed", "-c", "model=o3")[1] == (
        f'# {home.file}\nmodel = "o3"       # -c\nweb_search = true  # config.toml, line 1\n'
    )


def test_without_a_file_the_defaults_are_shown_and_nothing_is_created(home: Home) -> None:
    code, out, _ = home.run()

    assert (code, out.splitlines()[0]) == (0, f"# {home.file} does not exist; defaults are used")
    assert os.listdir(home.path) == []


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("get", "model"), "o3\n"),
        (("-c", "model=o4", "get", "model"), "o4\n"),
        (("get", "model", "-c", "model=o4"), "o4\n"),
        (("get", "web_search"), "false\n"),
        (("get", "webhook.events"), '["waiting", "failed", "finished"]\n'),
        (("get", "mcp"), 'mcp.features = "auto"\nmcp.resident = false\n'),
    ],
)
def test_get_prints_one_value_or_those_of_a_table(home: Home, arguments: Sequence[str], printed: str) -> None:
    home.file.write_text('model = "o3"\n')
    code, out, err = home.run(*arguments)

    assert (code, err) == (0, "")
    assert out.startswith(printed)


def test_get_fails_without_output_for_a_setting_without_a_value(home: Home) -> None:
    assert home.run("get", "model_context_window") == (1, "", "")


def test_get_names_the_nearest_setting(home: Home) -> None:
    said = "parley config: `sandbox_mod`: unknown setting, did you mean `sandbox_mode`?\n"

    assert home.run("get", "sandbox_mod") == (2, "", said)


def test_invalid_settings_are_not_shown_but_named(home: Home) -> None:
    home.file.write_text("model = 5\n")
    said = f"parley config: {home.file}, line 1: `model`: invalid type: integer `5`, expected a string\n"

    assert home.run() == home.run("get", "model") == (2, "", said)


def test_unknown_settings_of_the_file_are_reported(home: Home) -> None:
    home.file.write_text("sandbox_mod = 1\n")
    said = f"{home.file}, line 1: `sandbox_mod`: unknown setting, ignored; did you mean `sandbox_mode`?"

    assert home.run()[2] == f"parley config: {said}\n"


def test_path_prints_where_the_file_is_or_would_be(home: Home) -> None:
    assert home.run("path") == (0, f"{home.file}\n", "")
    assert json.loads(home.run("path", "--json")[1]) == {
        "type": "config_path",
        "path": str(home.file),
        "exists": False,
    }


# --- set and unset -------------------------------------------------------------------------


@pytest.mark.promises("config.set")
def test_set_keeps_comments_and_order_and_the_mode_of_the_file(home: Home) -> None:
    home.file.write_text('# mine\nmodel = "a"  # cheap\n\n[limits]  # all\nturn_calls = 3\n')
    home.file.chmod(0o640)
    code, out, err = home.run("set", "model", "o3")

    assert (code, out, err) == (0, f'model = "o3"  # {home.file}\n', "")
    assert home.file.read_text() == '# mine\nmodel = "o3"  # cheap\n\n[limits]  # all\nturn_calls = 3\n'
    assert stat.S_IMODE(home.file.stat().st_mode) == 0o640
    assert os.listdir(home.path) == ["config.toml"]


@pytest.mark.promises("config.set")
@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("modle", "x", "`modle`: unknown setting, did you mean `model`?"),
        ("approval_policy", "x", "`approval_policy`: unknown variant `x`, expected one of "),
        ("profile", "gone", "config profile `gone` not found"),
        ("model_provider", "gone", "Model provider `gone` not found"),
        ("mcp_servers.x.args", "[]", "`mcp_servers.x`: a tool server has either a `command` or a `url`"),
        ("model", "\udcff", "the value: not valid UTF-8"),
        ("model_providers.\udcff.name", "x", "the key: not valid UTF-8"),
        ("workspace.mode", "git", "`workspace.directory`: missing, and the mode `git` needs it"),
    ],
)
def test_set_changes_nothing_if_a_server_could_not_use_the_file(
    home: Home, key: str, value: str, said: str
) -> None:
    home.file.write_text('model = "a"  # cheap\n')
    before = home.file.stat()
    code, out, err = home.run("set", key, value)

    assert (code, out) == (2, "")
    assert err.startswith(f"parley config: {said}")
    assert home.file.read_text() == 'model = "a"  # cheap\n'
    assert home.file.stat().st_ino == before.st_ino


@pytest.mark.long
def test_a_file_with_too_many_levels_is_not_changed(home: Home) -> None:
    text = f"[{'.'.join(['a'] * 20_000)}]\n"
    home.file.write_text(text)
    code, out, err = home.run("set", "model", "x")

    assert (code, out) == (1, "")
    assert "`model` cannot be changed automatically in this file; change it with an editor" in err
    assert home.file.read_text() == text


def test_set_creates_a_file_that_only_the_user_can_read(home: Home) -> None:
    code, _, err = home.run("set", "limits.turn_cost", "2.5")

    assert (code, err, home.file.read_text()) == (0, "", "[limits]\nturn_cost = 2.5\n")
    assert stat.S_IMODE(home.file.stat().st_mode) == 0o600


def test_a_file_with_several_errors_can_be_corrected_in_steps(home: Home) -> None:
    home.file.write_text('profile = "gone"\nmodel_provider = "gone"\n')
    first = home.run("set", "model_provider", "ollama")
    second = home.run("unset", "profile")

    assert (first[0], first[2]) == (
        0,
        "parley config: the settings still cannot be used: config profile `gone` not found\n",
    )
    assert (second[0], second[2], home.file.read_text()) == (0, "", 'model_provider = "ollama"\n')


def test_an_invalid_value_of_the_file_can_be_replaced(home: Home) -> None:
    home.file.write_text("model = 5\n")

    assert (home.run("set", "model", "o3")[0], home.file.read_text()) == (0, 'model = "o3"\n')


def test_a_file_that_is_not_toml_is_not_changed(home: Home) -> None:
    home.file.write_text("model = [\n")
    code, out, err = home.run("set", "model", "o3")

    assert (code, out, home.file.read_text()) == (2, "", "model = [\n")
    assert err.startswith(f"parley config: {home.file}, line 1: `model`: not valid TOML: ")


def test_set_says_when_another_source_takes_precedence(home: Home) -> None:
    home.file.write_text(CONFIG)
    code, _, err = home.run("set", "approval_policy", "on-request")

    said = "`approval_policy` in config.toml has no effect at present"
    assert (code, err) == (0, f"parley config: {said}: profile fast, config.toml, line 6 takes precedence\n")


def test_set_does_not_print_a_secret(home: Home) -> None:
    home.file.write_text(CONFIG)
    key = "model_providers.mine.http_headers.x-key"

    assert home.run("set", key, "never-told-2") == (0, f'{key} = "<hidden>"  # {home.file}\n', "")
    assert 'x-key = "never-told-2"' in home.file.read_text()
    assert "never-told" not in str(home.run("set", key, "never-told-3", "--json"))


@pytest.mark.promises("config.set")
def test_unset_removes_a_setting_and_says_if_there_is_none(home: Home) -> None:
    home.file.write_text('model = "a"\nweb_search = true  # sometimes\n')
    removed = home.run("unset", "web_search")
    again = home.run("unset", "web_search")

    assert removed == (0, f"removed web_search from {home.file}\n", "")
    assert again == (1, "", f"parley config: {home.file} does not set `web_search`\n")
    assert home.file.read_text() == 'model = "a"\n'


def test_unset_without_a_file_creates_none(home: Home) -> None:
    assert home.run("unset", "model") == (1, "", f"parley config: {home.file} does not exist\n")
    assert os.listdir(home.path) == []


# --- links ---------------------------------------------------------------------------------


@pytest.mark.promises("config.set")
def test_a_linked_file_stays_a_link_and_its_target_is_changed(home: Home, tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir()
    target = dotfiles / "parley.toml"
    target.write_text('model = "a"  # cheap\n')
    home.file.symlink_to("dotfiles/parley.toml")
    code, out, _ = home.run("set", "model", "o3")

    assert (code, out) == (0, f'model = "o3"  # {target}\n')
    assert (os.readlink(home.file), target.read_text()) == ("dotfiles/parley.toml", 'model = "o3"  # cheap\n')
    assert os.listdir(dotfiles) == ["parley.toml"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("missing.toml", "is a symbolic link to {home}/missing.toml: No such file or directory (os error 2)"),
        ("folder", "not a regular file"),
        ("config.toml", "is a symbolic link to {home}/config.toml: "),
        ("/dev/null", "not a regular file"),
    ],
)
def test_a_link_that_leads_to_no_file_is_not_replaced(home: Home, target: str, said: str) -> None:
    (home.path / "folder").mkdir()
    home.file.symlink_to(target)
    code, _, err = home.run("set", "model", "o3")

    assert code == 2
    assert err.startswith(f"parley config: {home.file}: {said.format(home=home.path)}")
    assert (os.readlink(home.file), sorted(os.listdir(home.path))) == (target, ["config.toml", "folder"])


@pytest.mark.child_process
async def test_two_commands_that_change_the_file_at_the_same_time_both_succeed(tmp_path: Path) -> None:
    keys = ["limits.turn_calls", "limits.turn_seconds", "store.keep_days", "approvals.session_hours"]
    done = await asyncio.gather(*(run_parley(tmp_path, "config", "set", key, "7") for key in keys))
    table = tomllib.loads((tmp_path / "config.toml").read_text())

    assert [one.exit_code for one in done] == [0] * len(keys)
    assert table == {
        "limits": {"turn_calls": 7, "turn_seconds": 7},
        "store": {"keep_days": 7},
        "approvals": {"session_hours": 7},
    }


def test_a_limit_on_the_cost_without_a_price_is_reported(home: Home) -> None:
    home.run("set", "model", "my-model")
    code, out, err = home.run("set", "limits.turn_cost", "2.5")
    for name in ("input", "output"):
        home.run("set", f"prices.my-model.{name}", "2")
    priced = home.run("set", "limits.conversation_cost", "20")

    assert (code, out) == (0, f"limits.turn_cost = 2.5  # {home.file}\n")
    assert err == (
        "parley config: the limit has no effect for the model my-model, because its price is unknown; "
        "set `prices.my-model.input` and `prices.my-model.output` to the prices of a million tokens\n"
    )
    assert priced[2] == ""

"""The environment of a server under test."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from parley.testing import ScriptedModel
from parley.testing.home import Home


@pytest.fixture
def model() -> ScriptedModel:
    return ScriptedModel(port=1234)


def test_the_settings_point_every_api_at_the_model(model: ScriptedModel, tmp_path: Path) -> None:
    home = Home(model, home=tmp_path / "home", api="responses", stream_max_retries=2)
    home.open()
    home.close()

    def provider(api: str) -> dict[str, object]:
        return {
            "name": f"Scripted, over {api}",
            "base_url": "http://127.0.0.1:1234/v1",
            "wire_api": api,
            "request_max_retries": 0,
            "stream_max_retries": 2,
        }

    assert tomllib.loads((tmp_path / "home" / "config.toml").read_text()) == {
        "model": "scripted-model",
        "model_provider": "responses",
        "approval_policy": "never",
        "sandbox_mode": "danger-full-access",
        "model_providers": {name: provider(name) for name in ("chat", "responses", "anthropic")},
    }


def test_settings_of_the_test_win(model: ScriptedModel, tmp_path: Path) -> None:
    home = Home(model, home=tmp_path / "home", config='approval_policy = "untrusted"\n[profiles.p]\nmodel = "m"')
    home.open()
    settings = tomllib.loads((home.path / "config.toml").read_text())
    home.write_config('[model_providers.chat]\nname = "Mine"')
    again = tomllib.loads((home.path / "config.toml").read_text())
    home.close()

    assert (settings["approval_policy"], settings["profiles"]) == ("untrusted", {"p": {"model": "m"}})
    assert (again["approval_policy"], again["model_providers"]["chat"]) == ("never", {"name": "Mine"})


def test_a_home_of_its_own_is_gone_afterwards_and_its_log_is_not(model: ScriptedModel) -> None:
    home = Home(model)
    home.open()
    os.write(home.stderr.fileno(), b"what happened")
    assert home.work.is_dir()
    assert home.stderr_text() == "what happened"
    home.close()

    assert not home.path.exists()
    assert home.stderr_text() == "what happened"


def test_the_environment_has_no_variables_of_the_test_user(
    model: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "CODEX_HOME", "PARLEY_LOG", "https_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "foreign")
    monkeypatch.setenv("KEPT", "yes")
    home = Home(model, home=tmp_path / "home", env={"MINE": "1"})
    home.open()
    environ = home.environ
    home.close()

    assert "foreign" not in environ.values()
    assert (environ["KEPT"], environ["MINE"], environ["PARLEY_HOME"]) == ("yes", "1", str(tmp_path / "home"))

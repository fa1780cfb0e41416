"""A home directory with a config.toml for the tests of this directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.config.load import Loader
from parley.config.types import Provider, Settings, SettingsOverrides
from parley.errors import BadSetting

__all__ = ["OPENAI", "SECRETS", "SERVER_DIR", "Home"]

SERVER_DIR = "/srv/work"
SECRETS = (
    "/home/ada/.ssh",
    "/home/ada/.aws",
    "/home/ada/.gnupg",
    "/home/ada/.config/gh",
    "/home/ada/.netrc",
    "/home/ada/.docker/config.json",
)
"""The paths that are hidden by default."""

OPENAI = Provider(
    id="openai",
    name="OpenAI",
    wire_api="responses",
    base_url="https://api.openai.com/v1",
    env_http_headers={"OpenAI-Organization": "OPENAI_ORGANIZATION", "OpenAI-Project": "OPENAI_PROJECT"},
    is_openai=True,
)

_NOTHING_SPECIAL = SettingsOverrides()


class Home:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"

    def write(self, text: str) -> None:
        self.config.write_text(text, encoding="utf-8")

    def loader(self, *overrides: str, environ: dict[str, str] | None = None) -> Loader:
        return Loader(
            environ={"PARLEY_HOME": str(self.path)} | (environ or {}), server_dir=SERVER_DIR, overrides=overrides
        )

    def resolve(
        self, wanted: SettingsOverrides = _NOTHING_SPECIAL, *overrides: str, environ: dict[str, str] | None = None
    ) -> Settings:
        return self.loader(*overrides, environ=environ).choose(wanted).settings

    def refusal(self, wanted: SettingsOverrides = _NOTHING_SPECIAL, *overrides: str) -> str:
        """Return the error for settings that cannot be resolved, with `FILE` for the path of the file."""
        with pytest.raises(BadSetting) as caught:
            self.resolve(wanted, *overrides)
        return str(caught.value).replace(str(self.config), "FILE")

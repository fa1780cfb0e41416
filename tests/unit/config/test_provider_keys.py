"""Keys of providers, in the environment and in auth.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parley.config.provider_keys import find_key
from parley.config.providers import READY_PROVIDERS
from parley.config.types import Provider

OPENAI = Provider(id="openai", is_openai=True)
GROQ = Provider(id="groq", **{key: READY_PROVIDERS["groq"][key] for key in ("base_url", "env_key")})


@pytest.mark.parametrize(("provider", "variable"), [(OPENAI, "OPENAI_API_KEY"), (GROQ, "GROQ_API_KEY")])
def test_a_stored_key_takes_precedence_over_the_environment(
    tmp_path: Path, provider: Provider, variable: str
) -> None:
    environ = {variable: " from-environment "}
    without = find_key(provider, str(tmp_path), environ)
    (tmp_path / "auth.json").write_text(json.dumps({variable: "stored"}))

    assert (without, find_key(provider, str(tmp_path), environ)) == ("from-environment", "stored")


@pytest.mark.promises("model.keys")
@pytest.mark.parametrize(
    "change",
    [{"base_url": "http://127.0.0.1:1/v1"}, {"env_key": "OPENAI_API_KEY"}, {"id": "mine"}, {"base_url": None}],
)
def test_a_stored_key_is_only_for_the_ready_provider_at_its_own_address(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    (tmp_path / "auth.json").write_text('{"GROQ_API_KEY": "stored", "OPENAI_API_KEY": "stored"}')
    own: dict[str, Any] = {"id": "groq", "base_url": GROQ.base_url, "env_key": GROQ.env_key}

    assert find_key(Provider(**own), str(tmp_path), {}) == "stored"
    assert find_key(Provider(**(own | change)), str(tmp_path), {}) is None

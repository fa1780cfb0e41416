"""The provider that a name stands for, and its address."""

from __future__ import annotations

import pytest

from parley.config.errors import ProviderNotFound
from parley.config.types import Provider, SettingsOverrides
from parley.errors import BadSetting
from unit.config.home import OPENAI, Home


def test_a_provider_that_is_not_there_is_refused(home: Home) -> None:
    with pytest.raises(ProviderNotFound, match=r"^Model provider `nope` not found$"):
        home.resolve(SettingsOverrides(config={"model_provider": "nope"}))


def test_openai_and_oss_cannot_be_redefined(home: Home) -> None:
    home.write(
        """
        [model_providers.openai]
        base_url = "http://elsewhere"
        stream_max_retries = 0
        [model_providers.oss]
        base_url = "http://elsewhere"
        """
    )

    assert home.resolve().provider == OPENAI
    assert home.resolve(SettingsOverrides(config={"model_provider": "oss"})).provider == Provider(
        id="oss", name="Open Source", base_url="http://localhost:11434/v1"
    )


@pytest.mark.parametrize(
    ("provider", "environ", "base_url"),
    [
        ("openai", {"OPENAI_BASE_URL": "http://proxy/v1"}, "http://proxy/v1"),
        ("openai", {"OPENAI_BASE_URL": " "}, "https://api.openai.com/v1"),
        ("oss", {"CODEX_OSS_BASE_URL": "http://far/v1", "CODEX_OSS_PORT": "1"}, "http://far/v1"),
        ("oss", {"CODEX_OSS_PORT": "8080"}, "http://localhost:8080/v1"),
        ("oss", {"CODEX_OSS_PORT": ""}, "http://localhost:11434/v1"),
    ],
)
def test_the_environment_moves_a_built_in_provider(
    home: Home, provider: str, environ: dict[str, str], base_url: str
) -> None:
    settings = home.resolve(SettingsOverrides(config={"model_provider": provider}), environ=environ)

    assert settings.provider.base_url == base_url


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "٣"])
def test_a_port_that_is_none_is_refused(home: Home, port: str) -> None:
    with pytest.raises(BadSetting) as caught:
        home.resolve(SettingsOverrides(config={"model_provider": "oss"}), environ={"CODEX_OSS_PORT": port})

    assert str(caught.value) == f'CODEX_OSS_PORT: invalid value: string "{port}", expected a port from 1 to 65535'


@pytest.mark.parametrize(("provider", "variable"), [("openai", "OPENAI_BASE_URL"), ("oss", "CODEX_OSS_BASE_URL")])
@pytest.mark.parametrize(
    ("url", "said"), [("nonsense", "not an http or https URL"), ("http://\udcff", "not valid UTF-8")]
)
def test_an_address_in_the_environment_that_is_none_is_refused(
    home: Home, provider: str, variable: str, url: str, said: str
) -> None:
    with pytest.raises(BadSetting) as caught:
        home.resolve(SettingsOverrides(config={"model_provider": provider}), environ={variable: url})

    assert str(caught.value) == f"{variable}: {said}"


def test_the_scripted_provider_takes_its_script_from_the_file_and_nothing_else(home: Home) -> None:
    scripted = SettingsOverrides(config={"model_provider": "scripted"})
    built_in = home.resolve(scripted).provider
    home.write('[model_providers.scripted]\nscript = "replies.jsonl"\nwire_api = "chat"\nname = "Other"')

    assert built_in == Provider(id="scripted", name="Scripted", wire_api="scripted")
    assert home.resolve(scripted).provider == Provider(
        id="scripted", name="Scripted", wire_api="scripted", script=str(home.path / "replies.jsonl")
    )


def test_any_provider_may_be_scripted(home: Home) -> None:
    home.write('model_provider = "x"\n[model_providers.x]\nwire_api = "scripted"\nscript = "/replies.jsonl"')

    assert home.resolve().provider == Provider(id="x", name="x", wire_api="scripted", script="/replies.jsonl")


def test_a_provider_without_an_address_is_refused_only_when_it_is_used(home: Home) -> None:
    home.write("[model_providers.x]")

    assert home.resolve().provider == OPENAI
    assert home.refusal(SettingsOverrides(config={"model_provider": "x"})) == (
        "FILE, line 1: `model_providers.x.base_url`: missing, and a provider with wire_api `chat` needs it"
    )

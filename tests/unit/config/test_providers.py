"""The ready providers: their settings, and models that name their provider."""

from __future__ import annotations

import pytest

from parley.config.errors import ProviderNotFound
from parley.config.providers import READY_PROVIDERS, provider_table, split_model
from parley.config.types import SettingsOverrides
from parley.errors import BadSetting
from unit.config.home import Home


@pytest.mark.promises("settings.ready-providers")
@pytest.mark.parametrize("name", READY_PROVIDERS)
def test_a_model_that_names_a_ready_provider_needs_no_other_settings(home: Home, name: str) -> None:
    environ = {"AZURE_OPENAI_ENDPOINT": "https://me.openai.azure.com/"}
    settings = home.resolve(SettingsOverrides(model=f"{name}/some/model"), environ=environ)

    assert (settings.provider.id, settings.model, settings.model_name) == (name, f"{name}/some/model", "some/model")
    ready = READY_PROVIDERS[name]
    assert settings.provider.base_url == ready.get("base_url", "https://me.openai.azure.com/openai/v1")
    assert settings.provider.env_key == ready.get("env_key")
    assert settings.provider.env_key is None or settings.provider.env_key in settings.key_variables


@pytest.mark.promises("settings.ready-providers")
def test_a_model_keeps_its_name_if_a_provider_is_chosen(home: Home) -> None:
    home.write('model_provider = "openrouter"\nmodel = "anthropic/claude"')
    settings = home.resolve()
    assert (settings.provider.id, settings.model_name) == ("openrouter", "anthropic/claude")


SERVERS = """
[profiles.fast]
model = "fast"
[profiles.elsewhere]
model = "far"
model_provider = "second"
[model_providers.first]
base_url = "http://localhost:1/v1"
[model_providers.second]
base_url = "http://localhost:2/v1"
"""


@pytest.mark.promises("settings.model-provider")
@pytest.mark.parametrize(
    ("wanted", "provider", "model"),
    [
        (SettingsOverrides(model="other"), "first", "first/other"),
        (SettingsOverrides(model="Qwen/other"), "first", "first/Qwen/other"),
        (SettingsOverrides(config={"model": "other"}), "first", "first/other"),
        (SettingsOverrides(profile="fast"), "first", "first/fast"),
        (SettingsOverrides(profile="fast", model="other"), "first", "first/other"),
        (SettingsOverrides(profile="elsewhere"), "second", "far"),
        (SettingsOverrides(profile="elsewhere", model="other"), "second", "other"),
        (SettingsOverrides(model="second/other"), "second", "second/other"),
        (SettingsOverrides(config={"model": "second/far"}, model="other"), "second", "second/other"),
        (SettingsOverrides(model="openai/gpt-5"), "openai", "openai/gpt-5"),
        (SettingsOverrides(model="gpt-5", config={"model_provider": "openai"}), "openai", "gpt-5"),
    ],
)
def test_a_model_without_a_provider_keeps_the_chosen_one(
    home: Home, wanted: SettingsOverrides, provider: str, model: str
) -> None:
    home.write(f'model = "first/one"\n{SERVERS}')
    chosen = home.resolve(wanted)

    assert (chosen.provider.id, chosen.model) == (provider, model)
    assert chosen.model_name == model.removeprefix(f"{provider}/")


@pytest.mark.promises("settings.model-provider")
def test_a_model_of_a_later_message_keeps_the_provider(home: Home) -> None:
    home.write(f'model = "first/one"\n{SERVERS}')
    loader = home.loader()
    chosen = loader.choose(SettingsOverrides())
    found = []
    for model in ("two", "second/three", "four", "openai/o3", "o4"):
        chosen = loader.choose(SettingsOverrides(model=model), chosen)
        found.append((chosen.settings.provider.id, chosen.settings.model_name))

    assert found == [("first", "two"), ("second", "three"), ("second", "four"), ("openai", "o3"), ("openai", "o4")]


@pytest.mark.promises("settings.model-provider")
@pytest.mark.parametrize(
    ("options", "environ"),
    [(['model="other"'], {}), (["model_provider=openai"], {}), ([], {"OPENAI_BASE_URL": "http://localhost:3/v1"})],
)
def test_the_provider_of_a_model_on_the_command_line_is_decided_in_the_same_way(
    home: Home, options: list[str], environ: dict[str, str]
) -> None:
    home.write(f'model = "first/one"\n{SERVERS}')
    chosen = home.resolve(SettingsOverrides(model="x"), *options, environ=environ)

    assert chosen.provider.id == ("first" if options == ['model="other"'] else "openai")
    assert chosen.model_name == "x"


def test_the_name_of_openai_is_left_out(home: Home) -> None:
    chosen = home.resolve(SettingsOverrides(model="openai/gpt-5"))
    assert (chosen.provider.id, chosen.model_name) == ("openai", "gpt-5")
    elsewhere = {"OPENAI_BASE_URL": "https://gateway.example/v1"}
    kept = home.resolve(SettingsOverrides(model="openai/gpt-5"), environ=elsewhere)
    assert kept.model_name == "openai/gpt-5"  # a gateway can have models with such names


def test_a_model_can_name_a_provider_of_the_settings(home: Home) -> None:
    home.write('[model_providers.mine]\nbase_url = "http://localhost:1/v1"')
    assert home.resolve(SettingsOverrides(model="mine/qwen")).provider.id == "mine"
    with pytest.raises(ProviderNotFound):
        home.resolve(SettingsOverrides(config={"model_provider": "unknown"}))


def test_settings_override_the_table_of_a_ready_provider(home: Home) -> None:
    home.write('model = "deepseek/x"\n[model_providers.deepseek]\nstream_max_retries = 1')
    provider = home.resolve().provider
    assert (provider.stream_max_retries, provider.env_key) == (1, "DEEPSEEK_API_KEY")


@pytest.mark.promises("model.keys")
def test_a_ready_key_does_not_go_to_another_address(home: Home) -> None:
    home.write('model = "deepseek/x"\n[model_providers.deepseek]\nbase_url = "http://localhost:1/v1"')
    provider = home.resolve().provider
    assert (provider.base_url, provider.env_key, provider.stream_usage) == ("http://localhost:1/v1", None, True)


def test_azure_without_an_address_names_the_variable(home: Home) -> None:
    with pytest.raises(BadSetting, match="AZURE_OPENAI_ENDPOINT"):
        home.resolve(SettingsOverrides(model="azure/gpt-5"))
    home.write('[model_providers.azure]\nbase_url = "https://me.example/v1"')
    provider = home.resolve(SettingsOverrides(model="azure/gpt-5")).provider
    assert (provider.base_url, provider.env_key) == ("https://me.example/v1", "AZURE_OPENAI_API_KEY")


def test_ready_providers_and_the_variables_that_they_lack(home: Home) -> None:
    found = home.loader(environ={"GEMINI_API_KEY": "k", "GROQ_API_KEY": " "}).ready_providers()
    assert (found["gemini"], found["groq"], found["ollama"]) == (None, "GROQ_API_KEY", None)
    found = home.loader(environ={"AZURE_OPENAI_API_KEY": "k"}).ready_providers()
    assert found["azure"] == "AZURE_OPENAI_ENDPOINT"


@pytest.mark.parametrize("model", ["gpt-5", "Qwen/qwen3", "anthropic", "anthropic/", "/claude"])
def test_other_names_are_names_of_models(model: str) -> None:
    assert split_model(model, {}) is None
    assert provider_table("unknown", {}, azure_endpoint=None) is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("prices.m.input = -1", "invalid value: integer `-1`, expected a number from 0 to 1000000000"),
        ('prices.m.input = "1"', 'invalid type: string "1", expected a number'),
        ("prices.m.output = true", "invalid type: boolean `true`, expected a number"),
        ("limits.turn_cost = nan", "invalid value: floating point `nan`, expected a number from 0 to 1000000000"),
    ],
)
def test_an_amount_of_money_is_a_number_from_0(home: Home, line: str, why: str) -> None:
    home.write(line)
    assert home.refusal().endswith(why)

"""Lists the providers that the set-up offers, and determines which providers can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from parley.config.load import Loader
from parley.config.provider_keys import find_key, key_variable
from parley.config.providers import AZURE_ENDPOINT, READY_PROVIDERS
from parley.config.types import Settings, SettingsOverrides
from parley.errors import ConfigError

__all__ = ["UNLISTED", "Candidate", "candidates", "has_key", "with_provider"]

UNLISTED: Final = ("scripted", "oss")
"""The names of the providers that the user can choose by name, but that the list of choices does not contain."""


class Candidate(NamedTuple):
    """A provider that the user can choose."""

    name: str
    state: str
    """The reason why the provider can or cannot be used, such as `the key is in auth.json`."""
    is_usable: bool
    models: tuple[str, ...] = ()
    """The names of the models, if the provider is a model server on this computer; empty for any other provider."""


def has_key(settings: Settings) -> bool:
    return find_key(settings.provider, settings.home, settings.environ) is not None


def candidates(loader: Loader) -> list[Candidate]:
    """Return the providers that the set-up offers, with the usable providers first."""
    names = dict.fromkeys((*loader.providers(), "openai", *READY_PROVIDERS))
    settings = {name: one for name in names if (one := _usable_settings(loader, name)) is not None}
    local = [one for one in settings.values() if key_variable(one.provider) is None and _is_local(one)]
    running = asyncio.run(_answering(local)) if local else {}
    found = [_candidate(name, settings.get(name), running.get(name)) for name in names if name not in UNLISTED]
    return sorted(found, key=lambda one: not one.is_usable)


def _is_local(settings: Settings) -> bool:
    """Return whether the base URL of the provider refers to this computer."""
    return urlsplit(settings.provider.base_url or "").hostname in ("localhost", "127.0.0.1", "::1")


async def _answering(local: Sequence[Settings]) -> dict[str, tuple[str, ...]]:
    from parley.app.model_lists import answering_providers

    return await answering_providers(local)


def _candidate(name: str, settings: Settings | None, models: tuple[str, ...] | None) -> Candidate:
    if settings is None:  # Azure is the only listed provider without a fixed URL
        return Candidate(name, f"{AZURE_ENDPOINT} is not set", is_usable=False)
    variable = key_variable(settings.provider)
    if variable is None:
        if not _is_local(settings):
            return Candidate(name, "needs no key", is_usable=True)
        if models is None:
            return Candidate(name, f"does not answer at {settings.provider.base_url}", is_usable=False)
        count = "1 model" if len(models) == 1 else f"{len(models)} models"
        return Candidate(
            name, f"answers at {settings.provider.base_url}, with {count}", is_usable=True, models=models
        )
    if has_key(settings):
        source = "auth.json" if find_key(settings.provider, settings.home, {}) else variable
        return Candidate(name, f"the key is in {source}", is_usable=True)
    return Candidate(name, f"{variable} is not set", is_usable=False)


def _usable_settings(loader: Loader, provider: str) -> Settings | None:
    """Return the settings with the given provider; None if the provider cannot be used, for example because its URL
    is not set.
    """
    try:
        return with_provider(loader, provider, {}, "unknown")
    except ConfigError:
        return None


def with_provider(loader: Loader, provider: str, table: Mapping[str, Any], model: str) -> Settings:
    """Return the settings with the given provider and model. `table` contains the settings for the table of the
    provider.

    Raises:
        ConfigError: the provider cannot be used.
    """
    chosen = {"model_provider": provider, "model": model}
    tables = {"model_providers": {provider: dict(table)}} if table else {}
    return loader.choose(SettingsOverrides(config=chosen | tables)).settings

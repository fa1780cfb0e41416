"""Asks providers for the names of their models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from parley.config.types import Settings
from parley.errors import ModelError
from parley.models.http import Http
from parley.models.model_list import offered_models

__all__ = ["answering_providers", "models_of"]

LOCAL_SECONDS: Final = 2.0
"""The maximum time, in seconds, to wait for the next byte from a model provider that runs on this computer."""
PROVIDER_SECONDS: Final = 20.0
"""The maximum time, in seconds, to wait for the next byte from a model provider on the internet."""


async def models_of(settings: Settings) -> tuple[str, ...]:
    """Return the names of the models that the provider in `settings` offers.

    Raises:
        ModelError: the key is missing, the provider cannot be reached, or the provider refuses the request.
    """
    http = Http()
    try:
        return await offered_models(settings, http=http, within_seconds=PROVIDER_SECONDS)
    finally:
        await http.close()


async def answering_providers(choices: Sequence[Settings]) -> dict[str, tuple[str, ...]]:
    """Return the names of each provider's models, keyed by the id of the provider. A provider is left out if it
    cannot be reached, refuses the request or has no models.

    `choices` contains one `Settings` for each provider. The providers must run on this computer, because the
    timeout is `LOCAL_SECONDS`. All requests are sent concurrently.
    """
    http = Http()

    async def ask(settings: Settings) -> tuple[str, ...]:
        try:
            return await offered_models(settings, http=http, within_seconds=LOCAL_SECONDS)
        except ModelError:
            return ()

    try:
        found = await asyncio.gather(*map(ask, choices))
    finally:
        await http.close()
    return {one.provider.id: models for one, models in zip(choices, found, strict=True) if models}

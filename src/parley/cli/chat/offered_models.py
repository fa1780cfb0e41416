"""Asks a provider for the models that the user can choose in the chat."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from parley.cli.settings import settings_loader
from parley.errors import ConfigError, ModelError

__all__ = ["offered_models"]

ANSWER_SECONDS: Final = 5.0
"""The maximum time, in seconds, for which the chat waits for the list of models. If the list has not arrived by
then, no models are offered.
"""


async def offered_models(provider: str, *, config: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the models of a provider in the settings of the home. If the provider does not list its
    models, return an empty tuple.

    `config` contains the `-c` overrides of the chat.
    """
    # imported here: the chat starts without these modules
    from parley.app.model_lists import models_of
    from parley.cli.setup_providers import with_provider

    try:
        settings = with_provider(settings_loader(config), provider, {}, "unknown")
        if settings.provider.wire_api == "scripted":
            return ()
        async with asyncio.timeout(ANSWER_SECONDS):
            return await models_of(settings)
    except (ConfigError, ModelError, TimeoutError):
        return ()

"""The prices of models that are used if the settings contain no price.

docs/models.md names the source and the date of each price. The prices of models whose price depends on the length
of the prompt or on the time of day are not included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from parley.config.types import Price, Provider

__all__ = ["DEFAULT_PRICES", "default_price"]


def _price(model_input: float, cached: float, output: float, *, cache_write: float | None = None) -> Price:
    return Price(input=model_input, cached_input=cached, output=output, cache_write=cache_write)


DEFAULT_PRICES: Final[Mapping[str, Mapping[str, Price]]] = {
    "api.anthropic.com": {
        "claude-fable-5-1": _price(10, 0.25, 50, cache_write=12.5),
        "claude-fable-5": _price(10, 1, 50, cache_write=12.5),
        "claude-opus-5-5": _price(4, 0.2, 20, cache_write=5),
        "claude-opus-5": _price(5, 0.5, 25, cache_write=6.25),
        "claude-opus-4-8": _price(5, 0.5, 25, cache_write=6.25),
        "claude-opus-4-7": _price(5, 0.5, 25, cache_write=6.25),
        "claude-opus-4-6": _price(5, 0.5, 25, cache_write=6.25),
        "claude-opus-4-5": _price(5, 0.5, 25, cache_write=6.25),
        "claude-sonnet-5-5": _price(2, 0.1, 10, cache_write=2.5),
        "claude-sonnet-5": _price(2, 0.2, 10, cache_write=2.5),
        "claude-sonnet-4-6": _price(3, 0.3, 15, cache_write=3.75),
        "claude-sonnet-4-5": _price(3, 0.3, 15, cache_write=3.75),
        "claude-haiku-4-5": _price(1, 0.1, 5, cache_write=1.25),
    },
    "api.openai.com": {
        "gpt-5": _price(1.25, 0.125, 10),
    },
}
"""The prices in US dollars per million tokens, keyed by the host of the provider and the name of the model."""

_DATED: Final = re.compile(r"(.+)-(?:\d{8}|\d{4}-\d{2}-\d{2})", re.ASCII)
"""The pattern of a model name that ends with the date of a version, such as `claude-opus-4-5-20251101`."""


def default_price(provider: Provider, model: str) -> Price | None:
    """Return the price of the model `model` at the provider `provider`; None if the price is unknown.

    Different providers may charge different prices for the same model.
    """
    from urllib.parse import urlsplit  # imported here: start-up does not need this module

    prices = DEFAULT_PRICES.get(urlsplit(provider.base_url or "").hostname or "", {})
    dated = _DATED.fullmatch(model)
    return prices.get(model) or (prices.get(dated[1]) if dated else None)

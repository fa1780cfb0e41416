"""Computes the cost of a response from the prices in the settings."""

from __future__ import annotations

from msgspec.structs import replace

from parley.config.types import Price, Settings
from parley.wire.events import TokenCount

__all__ = ["estimated_micros", "price_of", "priced"]


def price_of(settings: Settings) -> Price | None:
    """Return the price of the model in the settings; None if they contain none or only a part of it."""
    price = settings.prices.get(settings.model) or settings.prices.get(settings.model_name)
    return price if price is not None and price.input is not None and price.output is not None else None


def priced(usage: TokenCount, settings: Settings) -> TokenCount:
    """Return token counts together with their cost; return them unchanged if the price is unknown."""
    if (price := price_of(settings)) is None:
        return usage
    cached = min(max(0, usage.cached_input_tokens or 0), usage.input_tokens)
    micros = _micros(price, usage.input_tokens - cached, cached, usage.output_tokens)
    return replace(usage, cost_micros=micros)


def estimated_micros(settings: Settings, given: int, made: int) -> int:
    """Return the cost of estimated numbers of input tokens (`given`) and output tokens (`made`), in millionths; 0
    if the price is unknown.
    """
    price = price_of(settings)
    return 0 if price is None else _micros(price, given, 0, made)


def _micros(price: Price, given: int, cached: int, made: int) -> int:
    """Return the cost of input tokens (`given`, of which `cached` were cached) and output tokens (`made`), in
    millionths.

    A price for a million tokens is equal to the number of millionths for one token.
    """
    for_input, for_output = price.input or 0, price.output or 0
    for_cached = for_input if price.cached_input is None else price.cached_input
    return round(given * for_input + cached * for_cached + made * for_output)

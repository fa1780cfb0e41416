"""Computes the cost of a response from the prices in the settings and the default prices."""

from __future__ import annotations

from msgspec.structs import replace

from parley.config.prices import default_price
from parley.config.types import Price, Settings
from parley.wire.events import TokenCount

__all__ = ["estimated_micros", "price_of", "priced"]


def price_of(settings: Settings) -> Price | None:
    """Return the price of the model; None if the price is unknown. The settings override the default price."""
    own = settings.prices.get(settings.model) or settings.prices.get(settings.model_name) or Price()
    known = default_price(settings.provider, settings.model_name) or Price()
    chosen = {
        name: getattr(known, name) if (given := getattr(own, name)) is None else given
        for name in Price.__struct_fields__
    }
    price = Price(**chosen)
    return price if price.input is not None and price.output is not None else None


def priced(usage: TokenCount, settings: Settings, *, cache_write_tokens: int = 0) -> TokenCount:
    """Return a copy of `usage` that also contains the cost of the tokens. If the price is unknown, return `usage`
    unchanged.

    `cache_write_tokens` is the number of input tokens that the provider wrote to its cache.
    """
    if (price := price_of(settings)) is None:
        return usage
    cached = min(max(0, usage.cached_input_tokens or 0), usage.input_tokens)
    written = min(max(0, cache_write_tokens), usage.input_tokens - cached)
    micros = _micros(price, usage.input_tokens - cached - written, cached, written, usage.output_tokens)
    return replace(usage, cost_micros=micros)


def estimated_micros(settings: Settings, given: int, made: int) -> int:
    """Return the cost of estimated numbers of input tokens (`given`) and output tokens (`made`), in millionths of
    the currency unit. Return 0 if the price is unknown.
    """
    price = price_of(settings)
    return 0 if price is None else _micros(price, given, 0, 0, made)


def _micros(price: Price, given: int, cached: int, written: int, made: int) -> int:
    """Return the cost of tokens in millionths of the currency unit. `made` is the number of output tokens. `cached`
    is the number of input tokens that were read from a cache, `written` is the number of input tokens that were
    written to a cache, and `given` is the number of all other input tokens.

    The price of a million tokens in the currency unit is the same number as the price of one token in millionths of
    the currency unit.
    """
    for_input, for_output = price.input or 0, price.output or 0
    for_cached = for_input if price.cached_input is None else price.cached_input
    for_written = for_input if price.cache_write is None else price.cache_write
    return round(given * for_input + cached * for_cached + written * for_written + made * for_output)

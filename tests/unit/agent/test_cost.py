"""The cost of a response, by the prices in the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from kit.models.raw_provider import settings
from parley.agent.cost import estimated_micros, price_of, priced
from parley.config.prices import DEFAULT_PRICES
from parley.config.types import Price, Settings
from parley.wire.events import TokenCount

USAGE = TokenCount(
    input_tokens=1_000, cached_input_tokens=400, output_tokens=100, reasoning_output_tokens=None, total_tokens=1_100
)


@pytest.mark.parametrize(
    ("price", "micros"),
    [
        (Price(input=3.0, cached_input=0.3, output=15.0), 600 * 3 + 120 + 1_500),
        (Price(input=3.0, output=15.0), 3_000 + 1_500),
        (Price(input=0.0, output=0.0), 0),
        (Price(input=3.0), UNSET),
        (Price(output=3.0), UNSET),
    ],
)
def test_the_cost_of_a_response(price: Price, micros: int | UnsetType) -> None:
    assert priced(USAGE, settings(model="m", prices={"m": price})).cost_micros == micros


def _at(base_url: str, model: str, prices: dict[str, Price] | None = None) -> Settings:
    chosen = settings(model=f"x/{model}", model_name=model, prices=prices or {})
    return replace(chosen, provider=replace(chosen.provider, base_url=base_url))


def test_tokens_that_were_written_to_a_cache_have_their_own_price() -> None:
    price = Price(input=3.0, cached_input=0.3, cache_write=3.75, output=15.0)
    chosen = settings(model="m", prices={"m": price})
    assert priced(USAGE, chosen, cache_write_tokens=500).cost_micros == 100 * 3 + 120 + 1_875 + 1_500
    without = settings(model="m", prices={"m": Price(input=3.0, output=15.0)})
    assert priced(USAGE, without, cache_write_tokens=500).cost_micros == 3_000 + 1_500


@pytest.mark.promises("limits.cost")
def test_some_models_have_a_default_price_at_their_own_provider() -> None:
    anthropic, opus = "https://api.anthropic.com", DEFAULT_PRICES["api.anthropic.com"]["claude-opus-4-5"]
    assert price_of(_at(anthropic, "claude-opus-4-5")) == opus
    assert price_of(_at(f"{anthropic}/v1", "claude-opus-4-5-20251101")) == opus
    assert price_of(_at(anthropic, "claude-opus-4-5-fast")) is None
    assert price_of(_at("https://gateway.example", "claude-opus-4-5")) is None


@pytest.mark.promises("limits.cost")
def test_the_settings_override_a_default_price_or_a_part_of_it() -> None:
    anthropic = "https://api.anthropic.com"
    own = {"claude-opus-4-5": Price(input=1.0)}
    price = price_of(_at(anthropic, "claude-opus-4-5", own))
    assert price is not None
    assert (price.input, price.cached_input, price.cache_write, price.output) == (1.0, 0.5, 6.25, 25)


def test_the_documentation_contains_each_default_price() -> None:
    lines = (Path(__file__).parents[3] / "docs/models.md").read_text().splitlines()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    documented = {row[0]: row[1:5] for row in rows if len(row) == 6}
    for prices in DEFAULT_PRICES.values():
        for model, price in prices.items():
            written = "" if price.cache_write is None else f"{price.cache_write:g}"
            assert documented.pop(model) == [
                f"{price.input:g}",
                f"{price.cached_input:g}",
                written,
                f"{price.output:g}",
            ]
    assert documented == {}


def test_prices_are_found_with_and_without_the_provider() -> None:
    price = Price(input=1.0, output=2.0)
    assert price_of(settings(model="a/m", model_name="m", prices={"m": price})) == price
    assert price_of(settings(model="a/m", model_name="m", prices={"a/m": price})) == price
    assert price_of(settings(model="other", prices={"m": price})) is None


def test_estimates_have_a_cost_if_the_price_is_known() -> None:
    assert estimated_micros(settings(model="m", prices={"m": Price(input=1.0, output=2.0)}), 10, 5) == 20
    assert estimated_micros(settings(model="m"), 10, 5) == 0

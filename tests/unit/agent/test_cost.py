"""The cost of a response, by the prices in the settings."""

from __future__ import annotations

import pytest
from msgspec import UNSET, UnsetType

from kit.models.raw_provider import settings
from parley.agent.cost import estimated_micros, price_of, priced
from parley.config.types import Price
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


def test_prices_are_found_with_and_without_the_provider() -> None:
    price = Price(input=1.0, output=2.0)
    assert price_of(settings(model="a/m", model_name="m", prices={"m": price})) is price
    assert price_of(settings(model="a/m", model_name="m", prices={"a/m": price})) is price
    assert price_of(settings(model="other", prices={"m": price})) is None


def test_estimates_have_a_cost_if_the_price_is_known() -> None:
    assert estimated_micros(settings(model="m", prices={"m": Price(input=1.0, output=2.0)}), 10, 5) == 20
    assert estimated_micros(settings(model="m"), 10, 5) == 0

"""The events for searches of the web, from values of any type."""

from __future__ import annotations

from parley.models.web_search import results_in, search_event
from parley.wire.events import WebSearch, WebSearchResult


def test_values_of_other_types_are_left_out() -> None:
    assert search_event(None, 5, "no list") == WebSearch(call_id="", query="", results=())
    assert results_in([5, {}, {"url": 1}, {"url": "u", "title": None}]) == (WebSearchResult(url="u", title=""),)


def test_an_event_has_a_limited_size() -> None:
    results = results_in([{"url": "u" * 5_000, "title": "t"}] * 60)
    assert (len(results), len(results[0].url)) == (50, 2_000)

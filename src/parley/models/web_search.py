"""Creates events for the web searches that a provider made."""

from __future__ import annotations

from typing import Any, Final

from parley.wire.events import WebSearch, WebSearchResult

__all__ = ["cited_pages", "results_in", "search_event"]

MAX_RESULTS: Final = 50
"""The maximum number of search results that an event contains."""
MAX_CHARACTERS: Final = 2_000
"""The maximum length of a query, a title or a URL in an event, in characters."""


def search_event(call_id: Any, query: Any, results: Any, error: str | None = None) -> WebSearch:
    """Return the event for a web search. The arguments come from the provider and may have any type."""
    return WebSearch(
        call_id=_text(call_id), query=_text(query), results=results_in(results), error=error and _text(error)
    )


def results_in(results: Any) -> tuple[WebSearchResult, ...]:
    """Return those search results that have a URL. `results` comes from the provider and may have any type."""
    given = results if isinstance(results, list) else []
    pages = (page for page in given if isinstance(page, dict) and isinstance(page.get("url"), str))
    return tuple(
        WebSearchResult(url=_text(page["url"]), title=_text(page.get("title")))
        for page, _ in zip(pages, range(MAX_RESULTS), strict=False)
    )


def cited_pages(annotations: Any) -> list[dict[str, Any]]:
    """Return the pages that the annotations of a Chat Completions message cite, in the form of search results.
    `annotations` comes from the provider and may have any type.
    """
    given = annotations if isinstance(annotations, list) else []
    cited = (one.get("url_citation") for one in given if isinstance(one, dict))
    return [page for page in cited if isinstance(page, dict)]


def _text(value: Any) -> str:
    return value[:MAX_CHARACTERS] if isinstance(value, str) else ""

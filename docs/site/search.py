"""The index for the search in the browser: the headings of all pages, and the text below each heading."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from docs.site.markdown import Page

__all__ = ["search_index"]


def search_index(pages: Iterable[tuple[str, Page]]) -> str:
    """Return a script that sets `searchIndex`.

    The index is a script because a page that was opened without a server can load scripts, but no other files.
    """
    entries = [
        {
            "page": page.title,
            "heading": passage.heading.text if passage.heading else page.title,
            "address": f"{address}#{passage.heading.anchor}" if passage.heading else address,
            "text": re.sub(r"\s+", " ", passage.text).strip(),
        }
        for address, page in pages
        for passage in page.passages
    ]
    return f"window.searchIndex = {json.dumps(entries, ensure_ascii=False, separators=(',', ':'))};\n"

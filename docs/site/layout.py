"""The HTML document around the text of a page: navigation, search, contents of the page, and theme."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Final

from docs.site.markdown import Heading, Page
from docs.site.navigation import Entry

__all__ = ["document"]

CONTENTS_LEVELS: Final = (2, 3)
MAX_CONTENTS: Final = 60
"""A page with more headings lists only those of the second level."""

Listed = tuple[str, Entry, str]
"""The section, the entry and the address of a page in the navigation."""


def document(address: str, source: str, page: Page, body: str, entries: Sequence[Listed]) -> str:
    """Return the HTML document of a page."""
    root = posixpath.relpath(".", posixpath.dirname(address) or ".")
    at = _position(source, entries)
    title = page.title if source == "README.md" else f"{page.title} – Parley"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="stylesheet" href="{root}/assets/site.css">
<link rel="stylesheet" href="{root}/assets/colours.css">
<script src="{root}/assets/theme.js"></script>
<script src="{root}/assets/site.js" data-root="{root}" defer></script>
</head>
<body>
<a class="skip" href="#text">Skip to the text</a>
<header>
<button id="menu" aria-controls="navigation" aria-expanded="false" aria-label="Pages">☰</button>
<a class="name" href="{root}/index.html">Parley</a>
<div class="search" role="search">
<input id="search" type="search" placeholder="Search ( / )" aria-label="Search" autocomplete="off">
<ol id="results" hidden></ol>
</div>
<button id="theme" aria-label="Light or dark">◐</button>
</header>
<nav id="navigation" aria-label="Pages">
{_navigation(root, entries, at)}</nav>
<main id="text">
{_trail(at, entries)}{body}{_neighbours(root, at, entries)}</main>
<aside aria-label="On this page">
{_contents(page.headings)}</aside>
</body>
</html>
"""


def _position(source: str, entries: Sequence[Listed]) -> int | None:
    """Return the index of the entry of a page.

    A page that is not in the navigation belongs to the `README.md` of its folder.
    """
    sources = [entry.source for _, entry, _ in entries]
    for candidate in (source, f"{posixpath.dirname(source)}/README.md"):
        if candidate in sources:
            return sources.index(candidate)
    return None


def _navigation(root: str, entries: Sequence[Listed], at: int | None) -> str:
    parts, current = [], ' aria-current="page"'
    for section, listed in groupby(enumerate(entries), key=lambda numbered: numbered[1][0]):
        items = "".join(
            f'<li><a href="{root}/{address}"{current if number == at else ""}>{escape(entry.title)}</a></li>\n'
            for number, (_, entry, address) in listed
        )
        parts.append(f"<h2>{escape(section)}</h2>\n<ul>\n{items}</ul>\n")
    return "".join(parts)


def _trail(at: int | None, entries: Sequence[Listed]) -> str:
    return "" if not at else f'<p class="trail">{escape(entries[at][0])}</p>\n'


def _neighbours(root: str, at: int | None, entries: Sequence[Listed]) -> str:
    if at is None:
        return ""
    before = entries[at - 1] if at else None
    after = entries[at + 1] if at + 1 < len(entries) else None
    links = "".join(
        f'<a class="{kind}" href="{root}/{one[2]}"><small>{label}</small>{escape(one[1].title)}</a>\n'
        for kind, label, one in (("before", "Previous", before), ("after", "Next", after))
        if one is not None
    )
    return f'<div class="neighbours">\n{links}</div>\n'


def _contents(headings: Sequence[Heading]) -> str:
    shown = [heading for heading in headings if heading.level in CONTENTS_LEVELS]
    if len(shown) > MAX_CONTENTS:
        shown = [heading for heading in shown if heading.level == CONTENTS_LEVELS[0]]
    if len(shown) < 2:
        return ""
    items = "".join(
        f'<li class="level-{heading.level}"><a href="#{heading.anchor}">{escape(heading.text)}</a></li>\n'
        for heading in shown
    )
    return f"<h2>On this page</h2>\n<ul>\n{items}</ul>\n"

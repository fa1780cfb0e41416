"""Builds the site in memory: reads and generates the pages, resolves their links, and renders them.

Each path in a page is relative to its file in the repository, so the same page also works there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from docs.site import layout
from docs.site.files import directory_as_markdown, file_as_markdown, unreleased_changes
from docs.site.highlight import colours
from docs.site.markdown import Page, parse, render
from docs.site.navigation import NAVIGATION, Entry
from docs.site.reference import generated_pages
from docs.site.search import search_index

__all__ = ["ROOT", "Site", "address_of", "build"]

ROOT: Final = Path(__file__).parents[2]
ASSETS: Final = Path(__file__).parent / "assets"
IMAGES: Final = frozenset({".png", ".svg"})
INSTEAD: Final = {"changes": "CHANGELOG.md"}
"""The pages that a link to a directory opens, by the path of the directory."""


class Site(NamedTuple):
    """The files of the site by their paths, and the problems that make the site unusable."""

    files: dict[str, bytes]
    problems: list[str]


def build(sources: Mapping[str, str] | None = None) -> Site:
    """Build the site. `sources` contains the Markdown text of each page, by its path in the repository; the default
    is all pages of the repository and the generated pages.
    """
    return _Builder(read_sources() if sources is None else sources).build()


def read_sources() -> dict[str, str]:
    paths = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    sources["CHANGELOG.md"] += f"\n{unreleased_changes(ROOT / 'changes')}"
    return sources | generated_pages()


def address_of(source: str) -> str:
    """Return the path of a page in the site."""
    named = {"README.md": "index.md", "CHANGELOG.md": "changes.md"}.get(source, source).removeprefix("docs/")
    return re.sub(r"(^|/)README\.md$", r"\1index.md", named).removesuffix(".md") + ".html"


class _Builder:
    """Renders pages, and collects the files that they refer to."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._pages = {source: parse(text) for source, text in sources.items()}
        self._files: dict[str, bytes] = {}
        self._problems: list[str] = []
        self._linked: set[str] = set()
        self._shown_files: dict[str, str] = {}
        """The source texts of the pages for files that are not Markdown, by the path of the file."""

    def build(self) -> Site:
        for source, page in self._pages.items():
            self._add(source, page)
        shown: set[str] = set()
        while waiting := set(self._shown_files) - shown:  # a page for a directory links to more files
            for path in sorted(waiting):
                self._add(f"files/{path}.md", parse(self._shown_files[path]), at=path)
            shown |= waiting
        self._check_navigation()
        for asset in sorted(ASSETS.iterdir()):
            self._files[f"assets/{asset.name}"] = asset.read_bytes()
        self._files["assets/colours.css"] = colours().encode()
        self._files["assets/search-index.js"] = search_index(
            (address_of(source), page) for source, page in self._pages.items()
        ).encode()
        return Site(self._files, self._problems)

    def _add(self, source: str, page: Page, *, at: str | None = None) -> None:
        """Render a page. `at` is the path from which its links are relative; the default is the page's own path."""
        address = address_of(source)
        folder = posixpath.dirname(at or source)

        def link(target: str) -> str:
            return self._resolve(target, source, folder, address)

        html = render(page, link, link)
        self._files[address] = layout.document(address, source, page, html, list(self._entries())).encode()

    def _entries(self) -> Iterator[tuple[str, Entry, str]]:
        """Yield the section, the entry and the address of each page in the navigation."""
        for section in NAVIGATION:
            for entry in section.entries:
                yield section.title, entry, address_of(entry.source)

    def _resolve(self, target: str, source: str, folder: str, address: str) -> str:
        if re.match(r"[a-z]+:", target):
            return target
        path, _, anchor = target.partition("#")
        named = posixpath.normpath(posixpath.join(folder, path)) if path else source
        named = INSTEAD.get(named, named)
        here = posixpath.dirname(address)
        if named in self._pages:
            self._linked.add(named)
            if anchor and anchor not in self._pages[named].anchors:
                self._problems.append(f"{source}: {target}: {named} has no heading with this anchor")
            to = posixpath.relpath(address_of(named), here or ".")
            return f"{to}#{anchor}" if anchor else to
        file = ROOT / named
        if named.startswith("..") or not file.exists():
            self._problems.append(f"{source}: {target}: there is no such file")
            return target
        if file.suffix in IMAGES:
            self._files[f"files/{named}"] = file.read_bytes()
            return posixpath.relpath(f"files/{named}", here or ".")
        self._shown_files[named] = directory_as_markdown(file) if file.is_dir() else file_as_markdown(file)
        return posixpath.relpath(address_of(f"files/{named}.md"), here or ".")

    def _check_navigation(self) -> None:
        listed = {entry.source for _, entry, _ in self._entries()}
        self._problems += [
            f"navigation: {source}: there is no such page" for source in sorted(listed - set(self._pages))
        ]
        lost = set(self._pages) - listed - self._linked
        self._problems += [f"{source}: neither the navigation nor a page links to it" for source in sorted(lost)]

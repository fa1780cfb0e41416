"""Renders a Markdown page as HTML, and collects its headings, links and text.

The caller resolves the links, because it knows the other pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

from docs.site.highlight import code_as_html
from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ["Heading", "Page", "Passage", "parse", "render"]


class Heading(NamedTuple):
    """A heading of a page."""

    level: int
    text: str
    anchor: str


class Passage(NamedTuple):
    """The text below a heading, for the search."""

    heading: Heading | None
    text: str


class Page(NamedTuple):
    """A parsed page."""

    tokens: list[Token]
    headings: list[Heading]
    passages: list[Passage]

    @property
    def title(self) -> str:
        return self.headings[0].text if self.headings else ""

    @property
    def anchors(self) -> set[str]:
        return {heading.anchor for heading in self.headings}


_PARSER: Final = MarkdownIt("commonmark", {"html": False}).enable("table")


def parse(text: str) -> Page:
    """Parse a page, and give each heading its anchor as its id."""
    tokens = _PARSER.parse(text)
    headings: list[Heading] = []
    passages: list[Passage] = []
    words: list[str] = []
    used: dict[str, int] = {}
    current: Heading | None = None
    is_heading = False
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.type == "heading_open" and following is not None:
            passages.append(Passage(current, " ".join(words)))
            words = []
            current = _heading(int(token.tag[1]), plain_text(following), used)
            headings.append(current)
            token.attrSet("id", current.anchor)
        elif token.type == "inline" and not is_heading:
            words.append(plain_text(token))
        elif token.type == "fence":
            words.append(token.content)
        is_heading = token.type == "heading_open"
    passages.append(Passage(current, " ".join(words)))
    return Page(tokens, headings, [passage for passage in passages if passage.text.strip() or passage.heading])


def _heading(level: int, text: str, used: dict[str, int]) -> Heading:
    anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    used[anchor] = used.get(anchor, -1) + 1
    return Heading(level, text, f"{anchor}-{used[anchor]}" if used[anchor] else anchor)


def plain_text(token: Token) -> str:
    return "".join(
        " " if child.type == "softbreak" else child.content
        for child in token.children or ()
        if child.type in ("text", "code_inline", "softbreak")
    )


def render(page: Page, link: Callable[[str], str], image: Callable[[str], str]) -> str:
    """Return a page as HTML. `link` and `image` return the addresses in the site for the addresses in the page."""
    for token in page.tokens:
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", link(str(child.attrGet("href"))))
            elif child.type == "image":
                child.attrSet("src", image(str(child.attrGet("src"))))
                child.attrSet("loading", "lazy")
    html = _PARSER.renderer.render(_with_code(page.tokens), _PARSER.options, {})
    html = html.replace("<table>", '<div class="table" tabindex="0"><table>').replace("</table>", "</table></div>")
    return re.sub(r"<(h[2-6]) id=\"([^\"]*)\">(.*?)</\1>", _linked_heading, html, flags=re.DOTALL)


def _linked_heading(found: re.Match[str]) -> str:
    tag, anchor, inner = found.groups()
    return f'<{tag} id="{anchor}">{inner} <a class="anchor" href="#{anchor}" aria-label="Link">#</a></{tag}>'


def _with_code(tokens: Sequence[Token]) -> list[Token]:
    """Replace the code blocks with HTML."""
    return [_code(token) if token.type in ("fence", "code_block") else token for token in tokens]


def _code(token: Token) -> Token:
    language, _, title = token.info.partition(" ")
    replaced = Token("html_block", "", 0)
    caption = f"<figcaption>{escape(title)}</figcaption>" if title else ""
    replaced.content = (
        f'<figure class="code" data-language="{escape(language)}">{caption}'
        f'<pre tabindex="0"><code>{code_as_html(token.content, language)}</code></pre></figure>\n'
    )
    return replaced

"""Code as HTML with classes for colours, and the colours for a light and a dark screen."""

from __future__ import annotations

from html import escape
from typing import Final

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

__all__ = ["code_as_html", "colours"]

_LIGHT: Final = "xcode"
_DARK: Final = "github-dark"
_LANGUAGES: Final = {"ts": "typescript", "jsonl": "json", "caddy": "nginx", "conf": "ini", "plist": "xml"}
"""The names that Pygments uses for other names of languages."""


def code_as_html(code: str, language: str) -> str:
    """Return the lines of a program as HTML, without the surrounding element."""
    lexer = _lexer(language)
    if lexer is None:
        return escape(code)
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


def _lexer(language: str) -> Lexer | None:
    if language in ("", "text"):
        return None
    try:
        return get_lexer_by_name(_LANGUAGES.get(language, language), stripnl=False)
    except ClassNotFound:
        return None


def colours() -> str:
    """Return the style sheet for the classes of `code_as_html`."""
    light, dark = (
        _rules(HtmlFormatter(style=style), selector)
        for style, selector in ((_LIGHT, "pre"), (_DARK, ':root[data-theme="dark"] pre'))
    )
    automatic = _rules(HtmlFormatter(style=_DARK), ':root:not([data-theme="light"]) pre')
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{automatic}\n}}\n{dark}\n"


def _rules(formatter: HtmlFormatter, selector: str) -> str:
    """Return the rules for the tokens, without the rules for the background and the line numbers."""
    rules = formatter.get_token_style_defs(selector)
    return "\n".join(rule for rule in rules if ".err " not in rule and ".w " not in rule)

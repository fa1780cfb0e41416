"""No regular expression uses possessive quantifiers or atomic groups.

They are new in Python 3.11, and the first releases of 3.11 have bugs in them (Debian 12 has 3.11.2). With these
bugs, some expressions never end, and others match strings that they must not match.
"""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

_parser: Any = importlib.import_module("re._parser")

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("src", "tests", "bench", "docs/examples")
IMPORT: Final = re.compile(r"^\s*(?:import re\b|from re\b)", re.MULTILINE)
MARKS: Final = re.compile(r"[*+?}]\+|\(\?>")
NO_EXPRESSIONS: Final = ("+++ ", "g++", "{0}+")
"""Strings in these modules that are not regular expressions: heads of diffs, a program, a format."""


def newer_constructs(expression: str) -> list[str]:
    """Return the possessive quantifiers and atomic groups in an expression, or in a piece of one."""
    found: list[str] = []
    place, quantified, in_class = 0, False, False
    while place < len(expression):
        character, end = expression[place], place + 1
        if character == "\\":
            end, quantified = place + 2, False
        elif in_class:
            in_class, quantified = character != "]", False
        elif character == "[":
            in_class, quantified = True, False
            end += expression.startswith("^", end)
            end += expression.startswith("]", end)  # a `]` at the beginning of a set is a literal character
        elif character == "(":
            quantified = False
            if expression.startswith("(?>", place):
                found.append("(?>")
            elif expression.startswith("?", end):
                end += 1  # a group of another kind, not a quantifier
        elif quantified and character in "+?":
            if character == "+":
                found.append(expression[max(0, place - 3) : end])
            quantified = False
        elif character == "{" and "}" in expression[place:] and place > 0:
            end = expression.index("}", place) + 1
            quantified = expression[place + 1 : end - 1].replace(",", "").strip("%d{}").isdigit()
        else:
            quantified = character in "*+?" and place > 0
        place = end
    return found


def is_expression(text: str) -> bool:
    """Return whether a text is a whole regular expression with a newer construct, as Python reads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            parsed = str(_parser.parse(text))
        except (re.error, RecursionError, OverflowError, ValueError):
            return False
    return "POSSESSIVE_REPEAT" in parsed or "ATOMIC_GROUP" in parsed


def expressions(source: str) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module that may be regular expressions, with their lines, except docstrings.

    In a module that imports `re`, a string may be a part of an expression. In other modules, it must be a complete
    expression.
    """
    imports_re = IMPORT.search(source) is not None
    if not imports_re and not MARKS.search(source):
        return  # parsing takes longer
    for line, text in strings(ast.parse(source)):
        if imports_re or (MARKS.search(text) and is_expression(text)):
            yield line, text


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in texts:
            if isinstance(node.value, bytes):
                yield node.lineno, node.value.decode("latin-1")
            elif isinstance(node.value, str):
                yield node.lineno, node.value


def without(text: str, parts: tuple[str, ...]) -> str:
    for part in parts:
        text = text.replace(part, "")
    return text


def test_no_expression_uses_what_early_releases_of_python_3_11_read_wrongly() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}": constructs
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != Path(__file__)
        for line, text in expressions(path.read_text())
        if (constructs := newer_constructs(without(text, NO_EXPRESSIONS)))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source", ["import re\nx = 'a)*+'", "from re import compile\nx = 'a)*+'", "x = 'a*+'", "x = b'(?>a)'"]
)
def test_the_strings_of_every_module_are_checked(source: str) -> None:
    assert [text for _, text in expressions(source) if newer_constructs(text)] != []


@pytest.mark.parametrize(
    "expression", ["a*+", "a++", "a?+", "a{2}+", "a{2,}+", "(?>a)", "[ab]*+", r"(?:a|b)++", r"\d?+", "(?=a)(?>b*)c"]
)
def test_a_newer_construct_is_found(expression: str) -> None:
    assert newer_constructs(expression) != []


@pytest.mark.parametrize(
    "expression",
    ["a+", "a*?", "a+?", r"\++", r"\*\+", "[*+]", "[+]+", "[]*+]", "[^]*+]", "(?:a)+", "(?P<a>b)+", r"[+-]?[0-9]+"],
)
def test_an_older_construct_is_not_found(expression: str) -> None:
    assert newer_constructs(expression) == []

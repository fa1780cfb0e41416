"""An object gets its callbacks from its constructor or through a method. No other object assigns them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import parley

ROOT: Final = Path(parley.__file__).parent

CALLBACK: Final = re.compile(r"_?on_[a-z]")
"""The pattern of the beginning of a callback's name."""


def assigned_callbacks(source: str) -> Iterator[int]:
    """Yield the lines that assign a callback of an object other than `self`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                pass
            case ast.Attribute(attr=name, ctx=ast.Store(), lineno=line) if CALLBACK.match(name):
                yield line


def test_no_object_assigns_the_callbacks_of_another() -> None:
    sources = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path, source in sources.items()
        if re.search(r"\.\s*_?on_[a-z_]+\b(?!\()", source)  # parsing is slower than reading
        for line in assigned_callbacks(source)
    }

    assert found == set()


def test_an_assignment_from_outside_is_found() -> None:
    source = "self.on_end = f\nself.a._on_end, x = f, 1\nb.on_end()\n"

    assert list(assigned_callbacks(source)) == [2]

"""Reads the docstrings of classes and of their fields."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from functools import cache
from itertools import pairwise

__all__ = ["cell", "field_docstrings", "paragraphs"]


@cache
def field_docstrings(struct: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class and of its bases, by the name of the field.

    The docstring of a field is the string below its annotation.
    """
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__.startswith("parley."):
            found |= _own(base)
    return found


def _own(struct: type) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, below in pairwise(tree.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
            case _:
                pass
    return found


def paragraphs(text: str | None) -> str:
    """Return a docstring as Markdown: each paragraph on one line, and names of exceptions as a list."""
    written = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        if part.startswith("Raises:"):
            raised = re.split(r"\n(?=    \S)", part.partition("\n")[2])
            items = [re.sub(r"\s+", " ", one).strip() for one in raised]
            written.append("Raises:\n\n" + "\n".join(f"- {_named(item)}" for item in items if item))
        elif part.startswith(("    ", "- ")):
            written.append(part)
        else:
            written.append(re.sub(r"\s+", " ", part).strip())
    return "\n\n".join(one for one in written if one)


def _named(item: str) -> str:
    names, colon, text = item.partition(":")
    marked = ", ".join(f"`{name.strip()}`" for name in names.split(","))
    return f"{marked}{colon}{text}"


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return re.sub(r"\s+", " ", text).strip().replace("|", r"\|")

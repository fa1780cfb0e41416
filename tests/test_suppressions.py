"""Every suppression of a check, and every method that is not implemented, has its reason on the same line."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SUPPRESSION: Final = re.compile(r"# *(type: *ignore(\[[\w, -]+\])?|noqa(: *[A-Z]+\d+(, *[A-Z]+\d+)*)?)")
REASON: Final = re.compile(r"\W*\w")


def test_suppressions_and_methods_without_a_body_have_a_reason() -> None:
    files = [path for folder in ("src", "tests", "bench", "docs") for path in sorted((ROOT / folder).rglob("*.py"))]

    assert [f"{path.relative_to(ROOT)}:{line}" for path in files for line in without_reason(path.read_text())] == []


def without_reason(source: str) -> list[int]:
    """Return the numbers of the lines that need a reason and have none."""
    if "noqa" not in source and "type: ignore" not in source and "NotImplementedError" not in source:
        return []  # parsing all files would take seconds
    comments = {
        token.start[0]: token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    bare = [line for line, text in comments.items() if SUPPRESSION.match(text) and not has_reason(text)]
    raised = [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and node.exc.id == "NotImplementedError"
    ]
    return bare + [line for line in raised if line not in comments]


def has_reason(comment: str) -> bool:
    rest = comment
    while found := SUPPRESSION.match(rest.lstrip()):
        rest = rest.lstrip()[found.end() :]
    return REASON.match(rest) is not None


def test_the_check_finds_what_lacks_a_reason() -> None:
    source = """
a = b  # noqa: B010
a = b  # noqa: B010 - in this process alone
a = b  # type: ignore[misc]
a = b  # type: ignore[misc]  # the library has no types
a = b  # type: ignore
raise NotImplementedError
raise NotImplementedError  # never called
"""

    assert sorted(without_reason(source)) == [2, 4, 6, 7]

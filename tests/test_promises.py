"""Every promise of docs/protocol.md has a test, and every promise that a test cites exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

PROMISE = re.compile(r"^- \[([a-z]+\.[a-z-]+)\] ", re.MULTILINE)


def promised() -> list[str]:
    return PROMISE.findall((ROOT / "docs/protocol.md").read_text(encoding="utf-8"))


@cache
def cited() -> tuple[tuple[str, str], ...]:
    """Return each citation `pytest.mark.promises("stream.answer")`: the promise, and the place of the citation."""
    found = []
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        text = path.read_text(encoding="utf-8")
        if ".promises(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Attribute(attr="promises"), args=args):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    for arg in args:
                        assert isinstance(arg, ast.Constant), f"{where}: a promise is cited by a plain text"
                        found.append((str(arg.value), where))
                case _:
                    pass
    return tuple(found)


def test_no_promise_has_the_name_of_another() -> None:
    names = promised()

    assert sorted(names) == sorted(set(names))


def test_every_promise_is_cited_by_a_test() -> None:
    assert sorted(set(promised()) - {promise for promise, _ in cited()}) == []


def test_every_promise_that_is_cited_is_made() -> None:
    known = set(promised())

    assert [f"{where} cites {promise}" for promise, where in cited() if promise not in known] == []

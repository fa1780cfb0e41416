"""A name is public because `__all__` says so: every module has one, true and sorted."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import parley

ROOT = Path(parley.__file__).parent


def exports_something(path: Path) -> bool:
    """Whether there is more in a file than a docstring."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)


def module_name(path: Path) -> str:
    return ".".join(["parley", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


MODULES = [
    module_name(path)
    for path in sorted(ROOT.rglob("*.py"))
    if path.name != "__main__.py" and exports_something(path)  # importing `__main__` would run it
]


def as_ruff_sorts(name: str) -> tuple[int, list[tuple[bool, int, str]]]:
    """The order of RUF022: constants, then classes, then the rest; digits count as numbers."""
    rank = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    parts = re.findall(r"\d+|\D+", name)
    return rank, [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_is_public(name: str) -> None:
    module = importlib.import_module(name)

    public = module.__all__

    assert [missing for missing in public if not hasattr(module, missing)] == []
    assert public == sorted(set(public), key=as_ruff_sorts)

"""Every module has a sorted and correct `__all__`."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import parley

ROOT = Path(parley.__file__).parent


def exports_something(path: Path) -> bool:
    """Return whether a file contains more than a docstring."""
    return any(not isinstance(node, ast.Expr) for node in ast.parse(path.read_text()).body)


def module_name(path: Path) -> str:
    return ".".join(["parley", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


def modules() -> list[str]:
    paths = (path for path in sorted(ROOT.rglob("*.py")) if path.name != "__main__.py")  # importing it would run it
    return [module_name(path) for path in paths if exports_something(path)]


def as_ruff_sorts(name: str) -> tuple[int, list[tuple[bool, int, str]]]:
    """Return the sort key of RUF022: constants first, then classes, then other names.

    Digits are compared as numbers.
    """
    rank = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    parts = re.findall(r"\d+|\D+", name)
    return rank, [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def test_every_module_says_what_is_public() -> None:
    wrong = {}
    for name in modules():
        module = importlib.import_module(name)
        public = getattr(module, "__all__", None)
        if public is None or missing_or_unsorted(module, public):
            wrong[name] = public

    assert wrong == {}


def missing_or_unsorted(module: ModuleType, public: list[str]) -> bool:
    return not all(hasattr(module, name) for name in public) or public != sorted(set(public), key=as_ruff_sorts)

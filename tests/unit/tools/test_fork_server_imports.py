"""The fork server and its supervisors load all their modules at their start, and none after a command has run."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from parley.common import landlock
from parley.tools.commands import forkserver

FOLDER = Path(forkserver.__file__).parent
NAMES = ("forkserver", "supervisor", "restrict", "mounts", "scope", "children", "messages")
LOADED = (*(FOLDER / f"{name}.py" for name in NAMES), Path(landlock.__file__))


@pytest.mark.parametrize("module", LOADED, ids=lambda module: module.stem)
def test_no_function_of_the_fork_server_imports_anything(module: Path) -> None:
    functions = [
        node
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]

    imports = [
        ast.unparse(inner)
        for function in functions
        for inner in ast.walk(function)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]
    assert imports == []

"""Imports go up the list of layers and never down, and no adapter imports another. Modules do not use private
attributes of other modules, and each method name of MCP stands in the code once.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import parley

ROOT = Path(parley.__file__).parent

FOR_ALL_LAYERS = frozenset({"common", "errors", "version"})

CORE = frozenset({"config", "wire", "conversation", "ports"})

ADAPTERS = frozenset({"stores", "models", "tools", "sandbox", "transports", "peers", "workspaces"})

MAY_IMPORT: dict[str, frozenset[str]] = {
    "version": frozenset(),
    "errors": frozenset(),
    "common": frozenset(),
    "config": frozenset(),
    "wire": frozenset(),
    "conversation": frozenset({"wire"}),
    "ports": CORE,
    "agent": CORE,
    "runtime": CORE | {"agent"},
    "rpc": frozenset({"wire"}),
    "stores": CORE,
    "models": CORE,
    "tools": CORE | {"rpc"},
    "sandbox": CORE,
    "workspaces": CORE,
    "transports": frozenset({"wire"}),
    "server": CORE | {"agent", "runtime"},
    "client": frozenset({"wire", "rpc"}),
    "peers": frozenset({"wire", "transports"}),
    "web": frozenset({"wire", "ports"}),
    "testing": frozenset({"wire", "client"}),
    "app": CORE | ADAPTERS | {"agent", "rpc", "runtime", "server", "client", "web"},
    "cli": frozenset({"app", "client", "config", "wire"}),
}
"""The imports that are allowed in addition to the package itself and the packages for all.

A module or package without an entry is an error.
"""

PURE = frozenset(
    {
        "__future__",
        "collections",
        "enum",
        "functools",
        "itertools",
        "math",
        "msgspec",
        "re",
        "shlex",
        "types",
        "typing",
        "uuid",
        "zlib",
    }
)
"""The external modules that `wire` and `conversation` may import.

They contain no event loop, clock, file or socket.
"""

MUST_BE_PURE = frozenset({"wire", "conversation"})

EXEMPT = frozenset({"__init__.py", "__main__.py"})
"""Files at the top of the package that belong to no layer: the version, and the entry point of the command line."""


class Import(NamedTuple):
    where: str
    layer: str
    module: str


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports_of(path: Path) -> Iterator[Import]:
    """Yield every import of a file, including imports inside functions and for the type checker."""
    inside = path.relative_to(ROOT)
    package = ["parley", *inside.parent.parts]
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                # In `from parley import wire`, the layer is the name after `import`.
                modules = [f"parley.{a.name}" for a in node.names] if module == "parley" else [module]
            case ast.ImportFrom(module=module, level=level):
                base = package[: len(package) - level + 1]
                names_of = [module] if module else [alias.name for alias in node.names]
                modules = [".".join([*base, name]) for name in names_of]
            case _:
                continue
        layer = inside.parts[0].removesuffix(".py")
        yield from (Import(f"{inside}:{node.lineno}", layer, module) for module in modules)


@cache
def all_imports() -> tuple[Import, ...]:
    files = [path for path in sorted(ROOT.rglob("*.py")) if str(path.relative_to(ROOT)) not in EXEMPT]
    return tuple(found for path in files for found in imports_of(path))


def is_ours(module: str) -> bool:
    return module.partition(".")[0] == "parley"


def test_every_module_has_its_place_in_the_list() -> None:
    places = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")}

    assert places - {name.removesuffix(".py") for name in EXEMPT} - set(MAY_IMPORT) == set()


def test_imports_go_up_the_list_and_no_adapter_imports_another() -> None:
    downward = [
        f"{where}: {layer} imports {module}"
        for where, layer, module in all_imports()
        if is_ours(module)
        and module.split(".")[1] not in MAY_IMPORT.get(layer, frozenset()) | FOR_ALL_LAYERS | {layer}
    ]

    assert not downward, "\n".join(downward)


def test_public_modules_import_nothing_private() -> None:
    ours = [found for found in all_imports() if found.layer in FOR_ALL_LAYERS and is_ours(found.module)]

    assert [found for found in ours if not (found.layer == "common" and is_common(found.module))] == []


def is_common(module: str) -> bool:
    return module.split(".")[:2] == ["parley", "common"]


def test_common_modules_import_the_standard_library_alone() -> None:
    modules = [found.module for found in all_imports() if found.layer == "common" and not is_common(found.module)]

    assert [name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names] == []


def test_wire_and_conversation_import_no_event_loop_clock_file_or_socket() -> None:
    impure = [
        f"{where}: {layer} imports {module}"
        for where, layer, module in all_imports()
        if layer in MUST_BE_PURE and not is_ours(module) and module.partition(".")[0] not in PURE
    ]

    assert not impure, "\n".join(impure)


LIBRARY_NAMES = frozenset({"os._exit", "_replace", "argparse._SubParsersAction", "parser._actions"})
"""Names of the standard library that begin with an underscore, but are public or have no public replacement."""


def test_no_module_uses_private_attributes_of_another() -> None:
    foreign = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, name in private(path)
    ]

    assert not foreign, "\n".join(foreign)


def private(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the private attributes that a file uses and does not define itself."""
    nodes = list(ast.walk(parsed(path)))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    is_own = {
        node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    }
    is_own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in attributes:
        names = {node.attr, ast.unparse(node)}
        if node.attr.startswith("_") and not node.attr.startswith("__") and not names & (is_own | LIBRARY_NAMES):
            yield node.lineno, ast.unparse(node)


METHOD_NAME = re.compile(
    "initialize|ping"
    "|(completion|elicitation|logging|notifications|parley|prompts|resources|server|subscriptions|tasks|tools)/[a-z][a-zA-Z/_-]+"
)


def test_method_names_stand_only_in_the_structs_of_their_messages() -> None:
    literals = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in constants(parsed(path))
        if isinstance(node.value, str) and METHOD_NAME.fullmatch(node.value)
    ]

    assert not literals, "\n".join(literals)


def constants(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield all constants of a file, except the values of class variables with the name `METHOD`."""
    match node:
        case ast.Constant():
            yield node
        case ast.AnnAssign(target=ast.Name(id="METHOD")):
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                yield from constants(child)

"""The reference pages of `parley.client` and `parley.testing`, from signatures and docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FunctionType, ModuleType
from typing import Any, TypeGuard, is_typeddict

from docs.site.reference.docstrings import cell, field_docstrings, paragraphs
from msgspec import Struct

__all__ = ["client_page", "testing_page"]

_CLIENT_HEAD = """\
# `parley.client`

The classes and functions of the Python client. [Python client](../client.md) explains how to use them. The
modules `events` and `items` of this package contain [the types of events](events.md) and of content items.
"""
_TESTING_HEAD = """\
# `parley.testing`

The classes and functions for tests of programs that use Parley. [Testing](../testing.md) explains how to use
them.
"""
_LINE = 92


def client_page() -> str:
    """Return the page of `parley.client` as Markdown."""
    return _page(_CLIENT_HEAD, importlib.import_module("parley.client"))


def testing_page() -> str:
    """Return the page of `parley.testing` as Markdown."""
    return _page(_TESTING_HEAD, importlib.import_module("parley.testing"))


def _page(head: str, module: ModuleType) -> str:
    members = {name: getattr(module, name) for name in module.__all__}
    classes = {name: one for name, one in members.items() if isinstance(one, type)}
    groups: tuple[tuple[str, dict[str, Any]], ...] = (
        ("Functions", {name: one for name, one in members.items() if isinstance(one, FunctionType)}),
        ("Classes", {name: one for name, one in classes.items() if not issubclass(one, Exception)}),
        ("Errors", {name: one for name, one in classes.items() if issubclass(one, Exception)}),
    )
    others = [name for name, one in members.items() if not isinstance(one, type | FunctionType | ModuleType)]
    parts = [head]
    for title, group in groups:
        if group:
            parts.append(f"## {title}\n")
            parts += [
                _class(name, one) if isinstance(one, type) else _function(name, one) for name, one in group.items()
            ]
    if others:
        parts.append("## Types and constants\n")
        parts += [_constant(name, module) for name in others]
    return "\n".join(parts)


def _constant(name: str, package: ModuleType) -> str:
    """Return the section of a type alias or of a constant, from the module of the package that defines it."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        body = ast.parse(inspect.getsource(importlib.import_module(module.name))).body
        for node, below in pairwise([*body, ast.Pass()]):
            match node:
                case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                    text = ast.literal_eval(below.value) if _is_docstring(below) else ""
                    return f"### `{name}`\n\n```python\n{name} = {ast.unparse(value)}\n```\n\n{paragraphs(text)}\n"
                case _:
                    pass
    raise LookupError(f"no module of {package.__name__} defines {name}")


def _is_docstring(node: ast.stmt) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _function(name: str, function: Callable[..., Any]) -> str:
    return f"### `{name}`\n\n{_signature(function)}\n{paragraphs(function.__doc__)}\n"


def _class(name: str, cls: type) -> str:
    parts = [f"### `{name}`\n", f"{paragraphs(cls.__doc__)}\n"]
    if fields := _fields(cls):
        parts.append(f"| field | type | |\n| --- | --- | --- |\n{fields}")
    elif (init := vars(cls).get("__init__")) is not None and not issubclass(cls, Exception):
        parts.append(f"{_signature(init, named=name)}\n{paragraphs(init.__doc__)}\n")
    if bases := [base.__name__ for base in cls.__bases__ if issubclass(cls, Exception) and base is not Exception]:
        parts.append(f"A subclass of {', '.join(f'`{base}`' for base in bases)}.\n")
    parts += [_member(name, member_name, member) for member_name, member in _members(cls)]
    return "\n".join(parts)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        is_special = name in ("__aenter__", "__aiter__", "__await__")
        if name.startswith("_") and not is_special:
            continue
        if isinstance(member, FunctionType | property | classmethod | staticmethod):
            yield name, member


def _member(owner: str, name: str, member: Any) -> str:
    if name == "__aenter__":
        return (
            f"`async with {owner.lower()}` ends all tasks of the object at the end of the block.\n"
            if not member.__doc__
            else _bare(name, member)
        )
    if isinstance(member, property):
        getter = member.fget
        assert getter is not None
        returns = _definition(getter).returns
        kind = f": {ast.unparse(returns)}" if returns else ""
        return f"#### `{owner}.{name}`\n\n```python\n{name}{kind}\n```\n\n{paragraphs(getter.__doc__)}\n"
    return _bare(name, member, owner=owner)


def _bare(name: str, member: Any, *, owner: str = "") -> str:
    function = getattr(member, "__func__", member)
    if name.startswith("__") and not function.__doc__:
        return ""
    return f"#### `{owner}.{name}`\n\n{_signature(function)}\n{paragraphs(function.__doc__)}\n"


def _fields(cls: type) -> str:
    """Return the rows for the fields of a struct or of a typed dictionary."""
    if issubclass(cls, Struct):
        names = list(cls.__struct_fields__)
    elif is_typeddict(cls):
        names = list(cls.__annotations__)
    else:
        return ""
    texts, types = _field_texts(cls), _field_types(cls)
    return "".join(f"| `{name}` | `{cell(types[name])}` | {cell(texts.get(name, ''))} |\n" for name in names)


def _field_texts(cls: type) -> dict[str, str]:
    found: dict[str, str] = {}
    for base in _bases(cls):
        found |= field_docstrings(base)
    return found


def _bases(cls: type) -> list[type]:
    """Return a class and its bases, the bases first. The source names the bases of a typed dictionary, because its
    `__mro__` does not contain them.
    """
    if not is_typeddict(cls):
        return [one for one in reversed(cls.__mro__) if one.__module__.startswith("parley.")]
    module = inspect.getmodule(cls)
    named: list[Any] = [getattr(module, ast.unparse(base), None) for base in _class_definition(cls).bases]
    return [*(one for base in named if is_typeddict(base) for one in _bases(base)), cls]


def _field_types(cls: type) -> dict[str, str]:
    types: dict[str, str] = {}
    for base in _bases(cls):
        types |= {name: str(annotation) for name, annotation in _annotations(base).items()}
    return types


def _annotations(cls: type) -> dict[str, str]:
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in _class_definition(cls).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _class_definition(cls: type) -> ast.ClassDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    return tree


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    return tree


def _signature(function: Callable[..., Any], *, named: str | None = None) -> str:
    """Return the signature of a function as a code block, on one line if it is short."""
    definition = _definition(function)
    arguments = definition.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args = arguments.args[1:]
    manager = any("contextmanager" in ast.unparse(one) for one in definition.decorator_list)
    word = "async with " if manager else "async def " if isinstance(definition, ast.AsyncFunctionDef) else "def "
    name = named or definition.name
    returns = "" if named or definition.returns is None else f" -> {ast.unparse(definition.returns)}"
    if manager:
        returns = ""
    head = f"{'' if named else word}{name}("
    line = f"{head}{ast.unparse(arguments)}){returns}"
    if len(line) > _LINE:
        line = f"{head}\n{textwrap.indent(_lines(arguments), '    ')}\n){returns}"
    return f"```python\n{line}\n```\n"


def _lines(arguments: ast.arguments) -> str:
    """Return the arguments of a function, one on each line."""
    words = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    words += [_argument(one, default) for one, default in zip(positional, defaults, strict=True)]
    if arguments.vararg:
        words.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        words.append("*")
    words += [_argument(*one) for one in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg:
        words.append(f"**{ast.unparse(arguments.kwarg)}")
    return ",\n".join(words)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")

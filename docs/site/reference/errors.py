"""The reference page of the error codes, from the classes of errors and the constants with codes."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from docs.site.reference.docstrings import cell

import parley
from parley import errors
from parley.errors import ModelError, VisibleError
from parley.server.errors import RequestRefused
from parley.server.http.errors import HttpRefused
from parley.wire.notifications import StreamDisconnected

__all__ = ["codes", "errors_page"]

_HEAD = """\
# Error codes

All codes of errors, with the class of the error in the server. [Protocol](../protocol.md#error-codes)
describes what each code means for a client, and where an answer contains the code.
"""

_OTHERS = ("parley.cli.", "parley.testing.")
"""The prefixes of modules whose errors no client gets."""


class Code(NamedTuple):
    """A code, the kind of the error, and the text that describes the error."""

    code: str
    kind: str
    text: str


def errors_page() -> str:
    """Return the page as Markdown."""
    rows = "".join(f"| `{one.code}` | {one.kind} | {cell(one.text)} |\n" for one in sorted(set(codes())))
    return f"{_HEAD}\n| code | kind | error |\n| --- | --- | --- |\n{rows}"


def codes() -> Iterator[Code]:
    """Yield each code with its error. A code can have several errors."""
    for module in pkgutil.walk_packages(parley.__path__, "parley."):
        if module.name.endswith(".errors") and not module.name.startswith(_OTHERS):
            importlib.import_module(module.name)
    for error in _subclasses(VisibleError):
        if code := vars(error).get("code"):
            yield Code(code, _kind(error), _first_sentence(error.__doc__ or ""))
    yield from _constants()
    for code in StreamDisconnected.CODES.values():
        yield Code(code, "stream", "The server ended the stream.")


def _subclasses(base: type[VisibleError]) -> Iterator[type[VisibleError]]:
    for error in base.__subclasses__():
        yield error
        yield from _subclasses(error)


def _kind(error: type[VisibleError]) -> str:
    if issubclass(error, HttpRefused):
        return f"HTTP request, status {error.status.value}"
    if issubclass(error, RequestRefused):
        number = vars(error).get("number")
        return f"request, error `{number}`" if number is not None else "request"
    return "model" if issubclass(error, ModelError) else "tool call"


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0].rstrip(".") + "."


def _constants() -> Iterator[Code]:
    """Yield the codes of events, which are constants with docstrings."""
    body = ast.parse(inspect.getsource(errors)).body
    for constant, below in pairwise(body):
        match constant, below:
            case (
                ast.AnnAssign(value=ast.Constant(value=str(code))),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                sentence = _first_sentence(text).removeprefix("The error code ").removeprefix("for ")
                yield Code(code, "event or turn", f"{sentence[0].upper()}{sentence[1:]}")
            case _:
                pass

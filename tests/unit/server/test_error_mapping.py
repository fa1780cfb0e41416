"""Every error that a client can see has a code, and the docs list exactly these codes."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import parley
from parley import errors
from parley.errors import BadArguments, UnknownConversation, VisibleError
from parley.server.error_mapping import ErrorShape, failure
from parley.server.errors import MethodFailed, PeerRefusal
from parley.server.hosts import FULL, PLAIN
from parley.server.http.errors import HttpRefused
from parley.wire.jsonrpc import encode
from parley.wire.notifications import StreamDisconnected

DOCS = Path(__file__).parents[3] / "docs" / "protocol.md"
BASES = {
    "VisibleError",
    "InvalidRequest",
    "ConfigError",
    "StoreError",
    "ModelError",
    "RequestRefused",
    HttpRefused.__name__,
}
"""Base classes that are never raised themselves."""


def visible_errors(base: type[VisibleError] = VisibleError) -> Iterator[type[VisibleError]]:
    yield base
    for one in base.__subclasses__():
        yield from visible_errors(one)


def all_visible_errors() -> set[type[VisibleError]]:
    for module in pkgutil.walk_packages(parley.__path__, "parley."):
        if module.name.endswith(".errors") and not module.name.startswith(("parley.cli.", "parley.testing.")):
            importlib.import_module(module.name)
    return {one for one in visible_errors() if one not in (MethodFailed, PeerRefusal)}


@pytest.mark.promises("errors.codes")
def test_every_error_that_a_client_can_see_has_a_code_of_its_own() -> None:
    found = all_visible_errors()
    raised = {one for one in found if one.__name__ not in BASES}

    assert [one.__name__ for one in raised if "code" not in vars(one)] == []
    assert len({one.code for one in raised}) == len(raised)
    assert {one.__name__ for one in found} & BASES == BASES


@pytest.mark.promises("errors.codes")
def test_the_docs_list_every_code_and_no_other() -> None:
    section = DOCS.read_text().split("### Error codes\n")[1].split("\n### ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.M)
    constants = {getattr(errors, name) for name in errors.__all__ if name.isupper()}
    codes = {one.code for one in all_visible_errors() if hasattr(one, "code")}

    assert listed == sorted({*codes, *constants, *StreamDisconnected.CODES.values()})


@pytest.mark.promises("errors.codes", "versions.plain")
@pytest.mark.parametrize("shape", ErrorShape)
def test_only_a_client_with_the_additions_gets_a_code(shape: ErrorShape) -> None:
    for error in (UnknownConversation("7"), BadArguments("no", field="x")):
        value = failure("tool", shape, error, FULL).structured_content
        plain = failure("tool", shape, error, PLAIN)

        assert b'"code":"%b"' % error.code.encode() in encode(value)
        assert b'"code"' not in encode(plain)

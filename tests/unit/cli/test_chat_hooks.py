"""The extensions of the chat."""

from __future__ import annotations

from parley.cli.chat.context import Hooks
from parley.cli.chat.hooks import load_hooks


def test_hooks_handle_lines_that_begin_with_a_slash() -> None:
    assert "/" in load_hooks().line_handlers


def test_without_extensions_every_line_is_a_message() -> None:
    assert Hooks() == Hooks(line_handlers={}, make_completer=None, make_key_bindings=None, pick_conversation=None)

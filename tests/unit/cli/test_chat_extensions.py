"""The extensions of the chat."""

from __future__ import annotations

import subprocess
import sys

from parley.cli.chat.extensions import load_extensions


def test_other_commands_start_without_the_libraries_of_the_chat() -> None:
    commands = "chat_command, exec, ls, show, watch, send, connecting, event_renderer, turn_options"
    code = f"""
import sys
from parley.cli import {commands}
print([name for name in ("prompt_toolkit", "rich", "pygments", "markdown_it") if name in sys.modules])
"""

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_extensions_handle_commands_and_local_commands() -> None:
    extensions = load_extensions()

    assert set(extensions.line_handlers) == {"/", "!"}
    assert None not in (
        extensions.attach,
        extensions.make_completer,
        extensions.make_key_bindings,
        extensions.pick_conversation,
    )

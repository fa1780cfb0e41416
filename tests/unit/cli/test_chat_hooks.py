"""The extensions of the chat."""

from __future__ import annotations

import subprocess
import sys

from parley.cli.chat.hooks import load_hooks


def test_other_commands_start_without_the_libraries_of_the_chat() -> None:
    commands = "chat_command, exec, ls, show, watch, send, connecting, event_renderer, turn_options"
    code = f"""
import sys
from parley.cli import {commands}
print([name for name in ("prompt_toolkit", "rich", "pygments", "markdown_it") if name in sys.modules])
"""

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_hooks_handle_commands_and_local_commands() -> None:
    hooks = load_hooks()

    assert set(hooks.line_handlers) == {"/", "!"}
    assert None not in (hooks.attach, hooks.make_completer, hooks.make_key_bindings, hooks.pick_conversation)

"""The extensions of the chat: the functions that handle lines, complete words and choose conversations."""

from __future__ import annotations

from parley.cli.chat.context import Extensions

__all__ = ["load_extensions"]


def load_extensions() -> Extensions:
    """Import and return the extensions of the chat, such as its commands and its completion. The chat calls this
    function after the first frame has been drawn.
    """
    from parley.cli.chat.attached_images import attached_images
    from parley.cli.chat.commands import PREFIX, handle_command
    from parley.cli.chat.completion import ChatCompleter
    from parley.cli.chat.keys import key_bindings
    from parley.cli.chat.local_command import PREFIX as LOCAL_PREFIX
    from parley.cli.chat.local_command import LocalCommands
    from parley.cli.chat.pickers import pick_conversation

    local = LocalCommands()
    return Extensions(
        line_handlers={PREFIX: handle_command, LOCAL_PREFIX: local.handle},
        attach=attached_images,
        make_completer=ChatCompleter,
        make_key_bindings=lambda context: key_bindings(context, local),
        pick_conversation=pick_conversation,
    )

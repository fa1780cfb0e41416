"""The extensions of the chat: the functions that handle lines, complete words and choose conversations."""

from __future__ import annotations

from parley.cli.chat.context import ChatContext, Hooks

__all__ = ["load_hooks"]


def load_hooks() -> Hooks:
    """Import and return the extensions. The chat calls this function after it has drawn the first frame."""
    return Hooks(line_handlers={"/": _handle_command})


async def _handle_command(context: ChatContext, text: str) -> bool:
    if text.strip() in ("/exit", "/quit"):
        context.exit()
        return True
    return False

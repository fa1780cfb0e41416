"""The key bindings that the extensions of the chat add."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from prompt_toolkit.key_binding import KeyBindings, KeyBindingsBase, KeyPressEvent, merge_key_bindings

from parley.cli.chat.context import ChatContext
from parley.cli.chat.local_command import LocalCommands
from parley.cli.chat.pickers import pick_conversation, pick_message
from parley.client import ClientError, ToolFailed

__all__ = ["key_bindings"]


def key_bindings(context: ChatContext, local: LocalCommands) -> KeyBindingsBase:
    """Return the bindings of the keys that open lists of messages and conversations, and of the key that stops a
    running command of `local`.
    """
    keys = KeyBindings()
    tasks: set[asyncio.Task[None]] = set()
    is_opening = False
    """True while a list is about to open. Meanwhile, further keys that open lists are ignored."""

    def opens(key: str, pick: Callable[[ChatContext], Awaitable[None]]) -> None:
        async def run() -> None:
            nonlocal is_opening
            is_opening = False
            try:
                await pick(context)
            except ToolFailed as error:
                context.note(error.message)
            except ClientError as error:
                context.note(str(error))

        @keys.add(key, eager=True)
        def _open(event: KeyPressEvent) -> None:
            nonlocal is_opening
            if not is_opening:
                is_opening = True
                task = asyncio.create_task(run())
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    opens("c-r", pick_message)
    opens("c-t", pick_conversation)
    return merge_key_bindings([keys, local.key_bindings()])

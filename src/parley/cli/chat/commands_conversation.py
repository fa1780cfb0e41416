"""The commands of the chat that choose or change conversations."""

from __future__ import annotations

from typing import Final

from parley.cli.chat.context import ChatContext
from parley.cli.chat.pickers import confirm, pick_conversation
from parley.cli.ids import SHORT, find_conversation
from parley.cli.runner import CommandFailed
from parley.client import Conversation
from parley.wire.text import visible

__all__ = [
    "archive",
    "compact",
    "continue_turn",
    "delete",
    "fork",
    "interrupt",
    "new",
    "open_conversation",
    "rename",
    "resume",
]

MAX_TITLE: Final = 1000
"""The maximum number of characters of a title."""


def open_conversation(context: ChatContext) -> Conversation:
    """Return the open conversation.

    Raises:
        CommandFailed: no conversation is open.
    """
    if context.conversation is None:
        raise CommandFailed("no conversation is open; the first message begins one, and /resume opens another one")
    return context.conversation


async def new(context: ChatContext, argument: str) -> None:
    """Begin a new conversation with the next message."""
    await context.new()


async def resume(context: ChatContext, given: str) -> None:
    """Open the conversation whose id begins with `given`. If `given` is empty, let the user choose one."""
    if not given:
        await pick_conversation(context)
        return
    found = await find_conversation(context.client, given)
    await context.open(found.id)


async def fork(context: ChatContext, argument: str) -> None:
    """Fork the open conversation, and open the fork."""
    source = open_conversation(context)
    forked = await source.fork()
    await context.open(forked.id)
    context.note(f"this is a copy; /resume {source.id[:SHORT]} opens the original")


async def rename(context: ChatContext, title: str) -> None:
    """Change the title of the open conversation to `title`."""
    if len(title) > MAX_TITLE:
        raise CommandFailed(f"the title has {len(title)} characters; at most {MAX_TITLE} are allowed")
    await open_conversation(context).rename(title)
    context.note(f"title: {visible(title)}")


async def archive(context: ChatContext, argument: str) -> None:
    """Archive the open conversation, and begin a new conversation with the next message."""
    conversation = open_conversation(context)
    await conversation.archive()
    await context.new()
    context.note(f"archived; /resume {conversation.id} opens the conversation again")


async def delete(context: ChatContext, argument: str) -> None:
    """If the user confirms, delete the open conversation, and begin a new conversation with the next message."""
    conversation = open_conversation(context)
    title = (await conversation.status()).title
    if not await confirm(context, f"Delete {conversation.id[:SHORT]} ({visible(title)}) permanently?"):
        context.note("nothing was deleted")
        return
    await conversation.delete()
    await context.new()
    context.note("deleted")


async def compact(context: ChatContext, argument: str) -> None:
    """Begin a turn that replaces the history of the open conversation with a summary."""
    await open_conversation(context).compact()


async def continue_turn(context: ChatContext, argument: str) -> None:
    """Begin a turn that continues an interrupted or failed turn."""
    await open_conversation(context).continue_turn()


async def interrupt(context: ChatContext, argument: str) -> None:
    """Interrupt the running turn, and thereby pause the queue."""
    if context.state == "idle":
        raise CommandFailed("no turn is running")
    await open_conversation(context).interrupt()

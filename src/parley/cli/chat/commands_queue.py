"""`/queue`: lists and changes the queued messages, which wait until the running turn has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from parley.cli.chat.choices import Choice
from parley.cli.chat.commands_conversation import open_conversation
from parley.cli.chat.context import ChatContext, as_message
from parley.cli.runner import CommandFailed
from parley.client import Conversation
from parley.wire.items import InputItem, is_text, text_of
from parley.wire.text import visible
from parley.wire.tools import QueuedItem, QueueListResult

__all__ = ["queue", "queue_choices"]

SHOWN: Final = 70
"""The maximum number of characters that are shown from each queued message."""


async def queue(context: ChatContext, argument: str) -> None:
    """List the queue if `argument` is empty; otherwise change the queue with `remove N`, `edit N` or `continue`."""
    conversation = open_conversation(context)
    action, _, number = argument.partition(" ")
    match action:
        case "":
            context.print(_list(await conversation.queue()), wraps=True)
        case "continue" if not number:
            await conversation.resume_queue()
            context.note("the queue continues")
        case "remove":
            found = await _numbered(conversation, number)
            await conversation.remove_queued(found.message_id)
            context.note(f"removed: {_beginning(found.content)}")
        case "edit":
            found = await _numbered(conversation, number)
            if not is_text(found.content):
                raise CommandFailed("the message contains an image or a file, so it can only be removed")
            await conversation.remove_queued(found.message_id)
            context.set_input(as_message(text_of(found.content)))
            context.note("removed from the queue; edit the message and queue it again")
        case "pause":
            raise CommandFailed("an interrupt pauses the queue (Esc or /interrupt); /queue continue resumes it")
        case _:
            raise CommandFailed("usage: /queue, /queue remove N, /queue edit N or /queue continue")


async def queue_choices(context: ChatContext) -> Sequence[Choice]:
    """Return the actions that can follow `/queue`, such as `continue`."""
    return [
        Choice("remove ", "remove the message N"),
        Choice("edit ", "move the message N to the input"),
        Choice("continue", "resume the queue after an interrupt"),
    ]


async def _numbered(conversation: Conversation, number: str) -> QueuedItem:
    messages = (await conversation.queue()).messages
    number = number.strip()
    if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= len(messages)):
        count = f"choose from 1 to {len(messages)}" if messages else "the queue is empty"
        raise CommandFailed(f"no message {number!r} in the queue ({count})")
    return messages[int(number) - 1]


def _list(found: QueueListResult) -> str:
    if not found.messages:
        return "The queue is empty."
    state = "paused; /queue continue resumes it" if found.paused else "waiting for the end of the turn"
    lines = [f"  {number}. {_beginning(one.content)}" for number, one in enumerate(found.messages, 1)]
    return "\n".join([f"Queue ({state}):", *lines])


def _beginning(content: tuple[InputItem, ...]) -> str:
    text = " ".join(text_of(content).split())
    shown = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    return visible(shown) or "(an image or a file)"

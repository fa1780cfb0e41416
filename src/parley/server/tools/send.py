"""`conversationSendMessage`: take a message and answer; the turn runs in the background."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from parley.errors import NoContent, NotSupportedYet
from parley.runtime.conversations import Accepted, Conversation
from parley.server.toolcall import ToolCall
from parley.wire.ids import MessageId
from parley.wire.items import TextItem
from parley.wire.mcp import typed_result
from parley.wire.tools import MessageAccepted, SendMessageArguments

__all__ = ["send"]

_OVERRIDES: Final = ("model", "cwd", "approval_policy", "sandbox", "config", "profile", "base_instructions")


async def send(call: ToolCall, args: SendMessageArguments) -> None:
    if not args.content:
        raise NoContent
    conversation = call.conversation(args.conversation_id)
    _refuse_what_is_not_there_yet(call, args, conversation)

    def accepted(message: Accepted) -> None:
        # The answer leaves before the turn's first event: a client that sends and then waits for
        # `task_started` must not have missed it (docs/protocol.md#sending).
        call.answer(typed_result(MessageAccepted(message_id=message.message_id if call.session.full else UNSET)))
        if (turn := message.turn) is not None:
            call.call.on_cancel(lambda: conversation.interrupt(turn))
            turn.work.add_done_callback(lambda _: call.call.finished())

    message_id = MessageId(str(args.message_id)) if args.message_id else None
    await conversation.submit(args.content, message_id=message_id, accepted=accepted)


def _refuse_what_is_not_there_yet(call: ToolCall, args: SendMessageArguments, conversation: Conversation) -> None:
    for place, item in enumerate(args.content):
        if not isinstance(item, TextItem):
            raise NotSupportedYet(f"content[{place}] of type {item.__struct_config__.tag}")
    for name in _OVERRIDES:
        if getattr(args, name) is not None:
            raise NotSupportedYet(f"{name} of a single message")
    if args.parent_message_id is not None:
        # Older clients cannot know the ids of messages: what they give as parent is ignored, as
        # it always was (docs/protocol.md#sending).
        parent = str(args.parent_message_id)
        unknown = parent != conversation.id and MessageId(parent) not in conversation.state.messages
        if call.session.full or args.message_id is not None or not unknown:
            raise NotSupportedYet("parent_message_id")

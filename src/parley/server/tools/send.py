"""The tool `conversationSendMessage`, which accepts a message and returns immediately. The turn runs in the
background.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from parley.config.types import SettingsOverrides
from parley.errors import BadArguments
from parley.runtime.message_intake import Accepted
from parley.runtime.turn_runner import Turn
from parley.server.access import allowed_overrides
from parley.server.context import Role
from parley.server.errors import NoContent
from parley.server.toolcall import ToolCall
from parley.wire.ids import MessageId
from parley.wire.items import compact
from parley.wire.jsonrpc import encode
from parley.wire.mcp import typed_result
from parley.wire.tools import MessageAccepted, PlainSendMessageArguments, SendMessageArguments

__all__ = ["send"]

MAX_SCHEMA_BYTES: Final = 64 * 1024
"""The maximum size of an encoded schema, in bytes. The size is limited because each model request of the turn
contains the schema.
"""

_OVERRIDES: Final = ("model", "cwd", "approval_policy", "sandbox", "config", "profile", "base_instructions")


async def send(call: ToolCall, args: PlainSendMessageArguments) -> None:
    if not args.content:
        raise NoContent
    args = replace(args, content=compact(args.content))
    is_queued = isinstance(args, SendMessageArguments) and args.delivery == "queue"
    if is_queued and args.parent_message_id is not None:
        raise BadArguments(
            "`parent_message_id` cannot be combined with delivery `queue`", field="parent_message_id"
        )
    conversation = call.conversation_for_command(args.conversation_id)
    overrides = SettingsOverrides(
        **{name: getattr(args, name) for name in _OVERRIDES}, output_schema=_output_schema(args)
    )
    if overrides.cwd is not None:  # another process may run the turn, with another working directory
        overrides = replace(overrides, cwd=call.session.loader.absolute(overrides.cwd))
    if overrides != SettingsOverrides() and call.principal.role < Role.ADMIN:
        current = (await call.conversation(args.conversation_id)).settings
        overrides = allowed_overrides(call.principal, overrides, call.session.loader, current=current)

    def interrupt(turn: Turn) -> None:
        if not call.features.is_timeout(call.call.cancel_reason):
            conversation.interrupt(turn, principal=call.principal.ref)

    def accepted(message: Accepted) -> None:
        turn, features = message.turn, call.features
        if message.began and turn is not None:
            call.session.note_turn(conversation, turn)
        if features.cancels_requests and call.call.cancelled and turn is not None:
            call.call.drop()
            interrupt(turn)
            return
        # The response must be sent before the first event of the turn. Otherwise a client that waits for
        # `task_started` only after the response would miss this event (docs/protocol.md#messages).
        result = MessageAccepted(
            message_id=message.message_id if features.additions else UNSET,
            queued=message.is_queued if is_queued else UNSET,
        )
        call.answer(typed_result(result))
        # Older clients interrupt the turn by cancelling the request after its response
        # (docs/protocol.md#cancellation).
        if not features.cancels_requests and turn is not None:
            call.call.on_cancel(lambda: interrupt(turn))
            _finish_with(turn, call)

    message_id = MessageId(str(args.message_id)) if args.message_id else None
    await conversation.submit(
        args.content,
        principal=call.principal.ref,
        is_limited=call.principal.is_limited,
        message_id=message_id,
        parent_id=None if args.parent_message_id is None else MessageId(str(args.parent_message_id)),
        # Older clients cannot know the ids of messages, so an unknown parent is ignored, as in Codex
        # (docs/protocol.md#messages).
        ignores_unknown_parent=not call.features.additions and args.message_id is None,
        queued=is_queued,
        wanted=None if overrides == SettingsOverrides() else overrides,
        resolve=call.session.loader.choose,
        deadline=call.deadline,
        accepted=accepted,
    )


def _output_schema(args: PlainSendMessageArguments) -> dict[str, Any] | None:
    """Return the JSON Schema that the agent's last message must match; None if the arguments contain no schema.

    Raises:
        BadArguments: the schema is empty, too large, or cannot be encoded as JSON.
    """
    if not isinstance(args, SendMessageArguments) or args.output_schema is None:
        return None
    if not args.output_schema:
        raise BadArguments("`output_schema` must not be empty", field="output_schema")
    try:
        size = len(encode(args.output_schema))
    except (ValueError, OverflowError) as error:
        raise BadArguments(f"invalid `output_schema`: {error}", field="output_schema") from None
    if size > MAX_SCHEMA_BYTES:
        raise BadArguments(
            f"`output_schema` has {size} bytes, which is more than {MAX_SCHEMA_BYTES}", field="output_schema"
        )
    return args.output_schema


def _finish_with(turn: Turn, call: ToolCall) -> None:
    """Let the client cancel the call even after the response, until the turn ends or the client leaves. A
    cancellation interrupts the turn.
    """

    def finished(_: object) -> None:
        call.session.cancel_on_leave(call)
        call.call.finished()

    def left() -> None:
        turn.work.remove_done_callback(finished)

    turn.work.add_done_callback(finished)
    call.session.on_leave(call, left)

"""`parley exec`: runs one turn in a directory and prints its answer."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from typing import Final

from parley.cli.connecting import connected
from parley.cli.event_output import show_turn
from parley.cli.printing import print_json, print_note
from parley.cli.runner import UsageError
from parley.cli.server_address import server_address
from parley.cli.turn_options import add_turn_options, check_turn_options, image_items, open_conversation
from parley.client import ClientError, Conversation
from parley.wire.items import InputItem, TextItem

__all__ = ["DESCRIPTION", "configure", "interrupt_on_sigint", "message_text", "run"]

DESCRIPTION: Final = """\
Create a conversation in the current directory, send it a message, and wait until
the turn ends. Events go to stderr and the messages of the agent to stdout; if both
are terminals, the messages are shown once. Control characters are escaped on a
terminal.

The turn runs in the resident server if one runs, and then continues even if this
command is killed. Otherwise it runs in a child process. Ctrl-C interrupts the turn;
a second Ctrl-C ends the command immediately. If the agent asks for an approval,
another client must answer, for example `parley answer`. Without an answer the
action is denied after five minutes (`approvals.timeout_seconds`).

With --json, each line of stdout is a JSON object: `{"type": "conversation"}` with
`conversation_id` and `model`, `{"type": "message"}` with `message_id`, for each
event `{"type": "event"}` with its position and `msg`, for each approval request
`{"type": "approval"}` as in `parley answer --json`, and at the end
`{"type": "result"}` with `text`, `usage`, `diff`, `reason`, and `error` if the turn
failed.

exit code: 0 on success, 1 if the turn failed, 2 for wrong arguments or settings,
130 if the turn was interrupted."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the message; `-` reads it from stdin")
    add_turn_options(parser)
    parser.add_argument("--json", action="store_true", help="print events and the result as JSON, one on each line")


async def run(args: argparse.Namespace) -> int:
    address = server_address(args)
    check_turn_options(args, address)
    content: list[InputItem] = [TextItem(text=message_text(args.prompt)), *image_items(args.image)]
    async with connected("exec", address, config=args.config, resident=args.resident) as (client, _):
        conversation, overrides, is_new = await open_conversation(client, args)
        accepted = interrupt_on_sigint(conversation, command="exec")
        async with AsyncExitStack() as stack:
            # The stream is opened before the message is sent, so that no delta is missed. In an older conversation,
            # other turns can end in the meantime, and the stream of the turn leaves them out.
            stream = await stack.enter_async_context(conversation.stream()) if is_new else None
            turn = await conversation.send(content, **overrides)
            accepted.set()
            events = turn.detailed() if stream is None else stream.detailed()
            if args.json:
                created = {"type": "conversation", "conversation_id": conversation.id, "model": conversation.model}
                print_json({name: value for name, value in created.items() if value is not None})
                print_json({"type": "message", "conversation_id": conversation.id, "message_id": turn.message_id})
            else:
                print_note("exec", f"conversation {conversation.id}")
            return await show_turn(client, conversation, events, command="exec", as_json=args.json)


def message_text(given: str) -> str:
    """Return the message in a command-line argument. If the argument is `-`, read the message from stdin.

    Raises:
        UsageError: the message is empty.
    """
    text = sys.stdin.read() if given == "-" else given
    if not text.strip():
        raise UsageError("the message is empty")
    return text


def interrupt_on_sigint(conversation: Conversation, *, command: str) -> asyncio.Event:
    """Interrupt the turn of the conversation on the first SIGINT, and cancel the current task on the second.

    The caller sets the returned event after the server has accepted the message. Before that, there is no turn to
    interrupt, so an earlier SIGINT takes effect when the event is set.
    """
    accepted = asyncio.Event()
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    interrupting: list[asyncio.Task[None]] = []

    async def interrupt() -> None:
        await accepted.wait()
        try:
            await conversation.interrupt()
        except ClientError as error:
            print_note(command, f"cannot interrupt the turn: {error}")

    def receive() -> None:
        if not interrupting:
            interrupting.append(loop.create_task(interrupt()))
        elif task is not None:
            task.cancel()

    loop.add_signal_handler(signal.SIGINT, receive)
    return accepted

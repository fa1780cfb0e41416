"""`parley exec`: runs one turn in a directory and prints the agent's last message."""

from __future__ import annotations

import argparse
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from parley.cli.answer_schema import AnswerSchema, read_schema
from parley.cli.connecting import connected
from parley.cli.durations import time_limit
from parley.cli.messages import read_prompt
from parley.cli.printing import print_json, print_note
from parley.cli.runner import UsageError
from parley.cli.server_address import ServerAddress, server_address
from parley.cli.turn_follower import TurnFollower
from parley.cli.turn_options import (
    add_turn_options,
    check_turn_options,
    enter_worktree,
    image_items,
    open_conversation,
)
from parley.client import Conversation, SendOptions, Turn
from parley.wire.items import InputItem, TextItem

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Send a message in a new conversation of the current directory, or in an older
conversation, and wait until the turn ends. The progress goes to stderr, and the last
message of the agent goes to stdout. If both are terminals, the message is shown once.
Control characters are escaped on a terminal.

If stdin is a pipe or a file, its text follows PROMPT in the message, as in
`git diff | parley exec "Review this change"`.

The turn runs in the resident server if one runs, and then continues even if this
command is killed. Otherwise it runs in a child process. Ctrl-C interrupts the turn;
a second Ctrl-C ends the command immediately. If the agent asks for an approval,
another client must answer, for example `parley answer`. Without an answer the
action is denied after five minutes (`approvals.timeout_seconds`).

With --json, each line of stdout is a JSON object: `{"type": "conversation"}` with
`conversation_id` and `model`, `{"type": "message"}` with `message_id`, for each
event `{"type": "event"}` with its position and `msg`, for each approval request
`{"type": "approval"}` as in `parley answer --json`, and at the end
`{"type": "result"}` with `text`, `usage`, `diff`, `reason`, and `error` and `code`
if the turn failed.

exit code: 0 on success, 1 if the turn failed, 2 for wrong arguments or settings, 3 if
a limit was reached, 4 if the model refused the request, 5 if an approval was not given
and the turn ended, 124 after --timeout, 130 if the turn was interrupted."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="?",
        help="the message; `-` reads it from stdin, as does a missing PROMPT if stdin is not a terminal",
    )
    add_turn_options(parser)
    parser.add_argument(
        "--output-schema",
        metavar="FILE",
        help="a JSON Schema for the answer; the command fails if the answer does not match",
    )
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        type=time_limit,
        help="interrupt the turn after this time, such as 90 (seconds), 10m or 2h",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")
    parser.add_argument("--json", action="store_true", help="print events and the result as JSON, one on each line")


def run(args: argparse.Namespace) -> Coroutine[Any, Any, int]:
    address = server_address(args)
    if args.resume == "":  # for example, a variable of a script that is not set
        raise UsageError("the id of --resume is empty")
    check_turn_options(args, address)
    schema = None if args.output_schema is None else read_schema(args.output_schema)
    images = image_items(args.image)
    # stdin is read before the event loop starts, so that Ctrl-C ends the command while it waits for stdin.
    content: list[InputItem] = [TextItem(text=read_prompt(args.prompt, command="exec")), *images]
    return _run(args, address, content, schema)


async def _run(
    args: argparse.Namespace,
    address: ServerAddress | None,
    content: Sequence[InputItem],
    schema: dict[str, Any] | None,
) -> int:
    async with connected("exec", address, config=args.config, resident=args.resident) as (client, _):
        await enter_worktree(args, partial(print_note, "exec"))
        conversation, overrides, is_new = await open_conversation(client, args)
        follower = TurnFollower(
            client,
            conversation,
            command="exec",
            as_json=args.json,
            is_quiet=args.quiet,
            timeout_seconds=args.timeout,
            check_answer=None if schema is None else AnswerSchema(schema).why_invalid,
        )
        answers: SendOptions = {} if schema is None else {"output_schema": schema}
        options: SendOptions = {**overrides, **answers}
        async with AsyncExitStack() as stack:
            # The stream of a new conversation is opened before the message is sent, so that no delta is missed. In
            # an existing conversation, another turn may still be running. `turn.detailed` omits the events of that
            # other turn.
            stream = await stack.enter_async_context(conversation.stream()) if is_new else None
            turn = await conversation.send(content, **options)
            if not args.quiet:
                _print_begin(conversation, turn, as_json=args.json)
            return await follower.follow(turn.detailed() if stream is None else stream.detailed())


def _print_begin(conversation: Conversation, turn: Turn, *, as_json: bool) -> None:
    if not as_json:
        print_note("exec", f"conversation {conversation.id}")
        return
    created = {"type": "conversation", "conversation_id": conversation.id, "model": conversation.model}
    print_json({name: value for name, value in created.items() if value is not None})
    print_json({"type": "message", "conversation_id": conversation.id, "message_id": turn.message_id})

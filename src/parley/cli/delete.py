"""`parley delete`: deletes a conversation."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from parley.cli.connecting import connected
from parley.cli.ids import find_conversation
from parley.cli.printing import for_terminal, print_json, print_note
from parley.cli.runner import UsageError, run_until_signal
from parley.cli.server_address import ServerAddress, add_server_options, server_address
from parley.wire.text import visible

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Delete a conversation of the home permanently. The command asks for confirmation on a
terminal. Without a terminal, it needs --yes. `parley archive` keeps the conversation.

With --json, the output is a JSON object `{"type": "delete"}` with `conversation_id`.

exit code: 0 on success, or if the deletion was not confirmed; 2 for wrong arguments
or settings; otherwise 1."""

STDIN: Final = 0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_server_options(parser)


def run(args: argparse.Namespace) -> int:
    conversation_id, address = args.id, server_address(args)
    if not args.yes:
        if not os.isatty(STDIN):
            raise UsageError("--yes is required, because stdin is not a terminal")
        found: list[tuple[str, str]] = []
        if code := run_until_signal(_find(args.id, address, found)):
            return code
        conversation_id, title = found[0]
        if not _is_confirmed(conversation_id, title):
            print_note("delete", "nothing was deleted")
            return 0
    return run_until_signal(_delete(conversation_id, address, as_json=args.json))


async def _find(given: str, address: ServerAddress | None, found: list[tuple[str, str]]) -> int:
    async with connected("delete", address) as (client, _):
        conversation = await find_conversation(client, given)
        found.append((conversation.id, (await conversation.status()).title))
    return 0


def _is_confirmed(conversation_id: str, title: str) -> bool:
    # The title may come from a model, so it must not control the terminal.
    shown = for_terminal(visible(title))
    print(f"Delete {conversation_id} ({shown}) permanently? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _delete(given: str, address: ServerAddress | None, *, as_json: bool) -> int:
    async with connected("delete", address) as (client, _):
        conversation = await find_conversation(client, given)
        await conversation.delete()
    if as_json:
        print_json({"type": "delete", "conversation_id": conversation.id})
    return 0

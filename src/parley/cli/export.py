"""`parley export`: writes a conversation to a file."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from parley.cli.printing import print_json
from parley.cli.runner import CommandFailed, run_until_signal
from parley.cli.settings import settings_loader
from parley.common.os_errors import os_detail
from parley.config.load import Loader
from parley.errors import UnknownConversation
from parley.wire.text import quoted

__all__ = ["DESCRIPTION", "configure", "export_to_file", "run"]

DESCRIPTION: Final = """\
Write a conversation of the home as JSON Lines: a line about the conversation, then
one line for each entry of its log, with images and the output of commands. The
export is a snapshot, even while a turn runs, and changes nothing. `parley import`
reads it, in this home or another.

With --json and --output, the command prints a JSON object `{"type": "export"}` with
`conversation_id`, `file` and `bytes`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""

STDOUT: Final = 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write to this file, which appears when the export is complete; stdout by default",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="overwrite an existing file; a symbolic link, a device, or a file of the home that is not an export "
        "is never overwritten",
    )
    parser.add_argument("--json", action="store_true", help="print JSON about the written file")


def run(args: argparse.Namespace) -> int:
    path: str | None = args.output
    home = ""
    try:
        loader = settings_loader()
        home = loader.home
        if path is None:
            return _to_stdout(loader, args.id)
        if os.path.lexists(path) and not args.force:
            raise FileExistsError

        from parley.app.files.homes import why_not_overwrite

        if (why_not := why_not_overwrite(home, path)) is not None:
            raise CommandFailed(f"{quoted(path)} {why_not}")
        return run_until_signal(_to_file(loader, args.id, path, over=args.force, as_json=args.json))
    except FileExistsError:
        text = f"{quoted(path or '')} already exists; refusing to overwrite it without --force"
        raise CommandFailed(text) from None
    except UnknownConversation as error:
        raise CommandFailed(f"no conversation {error.conversation} in {quoted(home)}") from None
    except OSError as error:
        target = "to stdout" if path is None else quoted(path)
        raise CommandFailed(f"cannot write {target}: {os_detail(error)}") from None


def _to_stdout(loader: Loader, conversation_id: str) -> int:
    # With the default handlers, a signal or a broken pipe ends the process. There is nothing to undo.
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    with open(STDOUT, "wb", closefd=False) as out:
        asyncio.run(_export(loader, conversation_id, out.write))
    return 0


async def _to_file(loader: Loader, conversation_id: str, path: str, *, over: bool, as_json: bool) -> int:
    exported = await export_to_file(loader, conversation_id, path, over=over)
    if as_json:
        size = await asyncio.to_thread(os.path.getsize, path)
        print_json({"type": "export", "conversation_id": exported, "file": path, "bytes": size})
    return 0


async def export_to_file(loader: Loader, conversation_id: str, path: str, *, over: bool = False) -> str:
    """Write the conversation whose id begins with `conversation_id` to the file `path`. The file appears when the
    export is complete. If `over` is True, replace an existing file. Return the complete id of the conversation.

    Raises:
        FileExistsError: the file exists, and `over` is False.
        UnknownConversation: the home does not contain the conversation.
    """
    from parley.app.files.exporting import atomic_write

    with atomic_write(path, over=over) as file:
        return await _export(loader, conversation_id, file.write)


async def _export(loader: Loader, given: str, write: Callable[[bytes], object]) -> str:
    """Export the conversation whose id begins with `given`, and return its complete id. `write` is called with each
    part of the export.
    """
    from parley.app.files.exporting import export_conversation
    from parley.app.stores import open_store
    from parley.app.tokens import all_conversations
    from parley.cli.ids import is_complete, match_conversation

    async with open_store(loader) as store:
        named = given.lower() if is_complete(given) else match_conversation(given, await all_conversations(store))
        await export_conversation(store, named, write, now=time.time())
    return named

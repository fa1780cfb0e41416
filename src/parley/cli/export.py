"""`parley export`: a conversation as a file."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from parley.cli.ending import run_unless_ended
from parley.cli.here import loader_here
from parley.cli.options import options_in
from parley.cli.overrides import BadLine
from parley.cli.printing import print_error
from parley.common.os_errors import os_detail
from parley.errors import ParleyError, UnknownConversation
from parley.wire.text import quoted

__all__ = ["run_export"]

USAGE: Final = """\
usage: parley export [OPTIONS] ID

Write a conversation of the home as JSON Lines: a line about it, then one for
each entry of its log. Images and the output of commands are inside. It is
written as it is at this moment, also while a turn of it runs, and nothing is
changed. `parley import` reads it, in this home or another.

options:
  -o, --output FILE   write to a file, which is there once it is whole; to stdout
                      without it
  --force             write the file also where there is one of that name; a link,
                      a device or what lies in the home and is no export is never
                      replaced
  -h, --help          this text

exit code: 0 when it was written, 2 for a wrong command line, else 1.
"""

STDOUT: Final = 1


def run_export(arguments: Sequence[str]) -> int:
    """Write it, and return the exit code that the usage tells of."""
    try:
        given = options_in(
            arguments, command="export", flags=("--force",), values={"-o": "--output", "--output": "--output"}
        )
        if given is None:
            print(USAGE, end="")
            return 0
        if len(given.operands) != 1:
            raise BadLine("expected the id of one conversation; see `parley export --help`")
    except BadLine as error:
        print_error("export", error)
        return 2
    path, over = given.last("--output"), "--force" in given.flags
    home = ""
    try:
        home = loader_here().home
        if path is not None and os.path.lexists(path) and not over:
            raise FileExistsError
        if path is None:
            return _to_stdout(home, given.operands[0])

        from parley.app.files.homes import why_not_over

        if (why_not := why_not_over(home, path)) is not None:
            print_error("export", f"{quoted(path)} {why_not}")
            return 1
        return run_unless_ended(_to_file(home, given.operands[0], path, over=over))
    except FileExistsError:
        print_error("export", f"{quoted(path or '')} already exists; refusing to overwrite it without --force")
    except UnknownConversation as error:
        print_error("export", f"no conversation {error.conversation} in {quoted(home)}")
    except ParleyError as error:
        print_error("export", error)
    except OSError as error:
        print_error("export", f"cannot write {'to stdout' if path is None else quoted(path)}: {os_detail(error)}")
    return 1


def _to_stdout(home: str, conversation_id: str) -> int:
    # There is nothing to be taken back: a signal, or a reader that has seen enough, simply ends it.
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    with open(STDOUT, "wb", closefd=False) as out:
        asyncio.run(_export(home, conversation_id, out.write))
    return 0


async def _to_file(home: str, conversation_id: str, path: str, *, over: bool) -> int:
    from parley.app.files.exporting import written_whole

    with written_whole(path, over=over) as file:
        await _export(home, conversation_id, file.write)
    return 0


async def _export(home: str, conversation_id: str, write: Callable[[bytes], object]) -> None:
    from parley.app.files.exporting import export_conversation
    from parley.app.files.homes import open_home

    async with open_home(home) as store:
        await export_conversation(store, conversation_id.lower(), write, now=time.time())

"""`parley gc`: remove what a home need not keep any longer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from parley.cli.ending import run_unless_ended
from parley.cli.here import loader_here
from parley.cli.options import options_in
from parley.cli.overrides import BadLine
from parley.cli.printing import print_error
from parley.errors import ParleyError

if TYPE_CHECKING:
    from parley.app.files.keeping import Unneeded

__all__ = ["run_gc"]

USAGE: Final = """\
usage: parley gc [OPTIONS]

Remove what the home need not keep any longer: archived conversations in which
nothing has happened for `[store] keep_days` days (without that setting, none),
images and output that belong to no conversation, and the room in the database
that deleted ones have left. Says first what that is, and asks on a terminal.

options:
  --dry-run                only say what would be removed
  --yes                    do not ask
  -c, --config KEY=VALUE   a setting that wins over config.toml, such as
                           -c store.keep_days=30. May be given more than once
  -h, --help               this text

exit code: 0, 2 for a wrong command line, else 1.
"""

STDIN: Final = 0
CTRL_C: Final = 130


def run_gc(arguments: Sequence[str]) -> int:
    """Remove it, and return the exit code that the usage tells of."""
    values = {"-c": "--config", "--config": "--config"}
    try:
        given = options_in(arguments, command="gc", flags=("--dry-run", "--yes"), values=values)
        if given is None:
            print(USAGE, end="")
            return 0
        if given.operands:
            raise BadLine(f"unexpected argument {given.operands[0]!r}; see `parley gc --help`")
    except BadLine as error:
        print_error("gc", error)
        return 2
    try:
        loader = loader_here(given.values.get("--config", ()))
        home, keep_days = loader.home, loader.store_settings().keep_days
        found: list[Unneeded] = []
        code = run_unless_ended(_look(home, keep_days, found))
        if code or "--dry-run" in given.flags or not _is_anything_in(found[0]):
            return code
        if "--yes" not in given.flags and os.isatty(STDIN) and not _is_wanted():
            return 0
        return run_unless_ended(_remove(home, found[0]))
    except ParleyError as error:
        print_error("gc", error)
        return 1
    except KeyboardInterrupt:
        return CTRL_C


async def _look(home: str, keep_days: int, found: list[Unneeded]) -> int:
    from parley.app.files.homes import open_home
    from parley.app.files.keeping import find_unneeded

    async with open_home(home) as store:
        unneeded = await find_unneeded(store, keep_days=keep_days, now=time.time())
    found.append(unneeded)
    if keep_days:
        count, size = len(unneeded.conversations), unneeded.conversation_bytes
        print(f"archived conversations, last active more than {keep_days} days ago: {count}, {size:,} bytes")
    else:
        print("archived conversations: all are kept, since [store] keep_days is not set")
    blobs = unneeded.blobs
    print(f"images and outputs of no conversation: {blobs.blobs}, {blobs.bytes:,} bytes")
    print(f"room that deleted conversations have left: {unneeded.reclaimable_bytes:,} bytes", flush=True)
    return 0


def _is_anything_in(unneeded: Unneeded) -> bool:
    return bool(unneeded.conversations or unneeded.blobs.blobs or unneeded.reclaimable_bytes)


def _is_wanted() -> bool:
    print("Remove them for ever? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _remove(home: str, unneeded: Unneeded) -> int:
    from parley.app.files.homes import open_home
    from parley.app.files.keeping import remove_unneeded

    async with open_home(home) as store:
        removed = await remove_unneeded(store, unneeded)
    blobs = removed.blobs
    print(f"removed conversations: {removed.conversations}")
    print(f"removed images and outputs: {blobs.blobs}, {blobs.bytes:,} bytes")
    return 0

"""`parley backup`: a copy of all conversations of a home."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from parley.cli.ending import run_unless_ended
from parley.cli.here import loader_here
from parley.cli.options import options_in
from parley.cli.overrides import BadLine
from parley.cli.printing import print_error
from parley.errors import ParleyError, StoreFailed
from parley.wire.text import quoted

__all__ = ["run_backup"]

USAGE: Final = """\
usage: parley backup FILE

Write all conversations of the home into one file, as they are at one moment,
while servers go on using them. The file is a home's parley.db: put into a home
under that name, with no parley.db-wal of another beside it, it is that home.
Settings and keys are not in it.

options:
  -h, --help   this text

exit code: 0 when it was written, 2 for a wrong command line, else 1.
"""


def run_backup(arguments: Sequence[str]) -> int:
    """Write it, and return the exit code that the usage tells of."""
    try:
        given = options_in(arguments, command="backup")
        if given is None:
            print(USAGE, end="")
            return 0
        if len(given.operands) != 1:
            raise BadLine("expected one file to write to; see `parley backup --help`")
    except BadLine as error:
        print_error("backup", error)
        return 2
    (path,) = given.operands
    try:
        if os.path.lexists(path):
            raise FileExistsError

        from parley.app.files.homes import why_not_over

        home = loader_here().home
        if (why_not := why_not_over(home, path)) is not None:
            print_error("backup", f"{quoted(path)} {why_not}")
            return 1
        code = run_unless_ended(_back_up(home, path))
        if code == 0:
            print(f"{quoted(path)}: {os.path.getsize(path):,} bytes")
        return code
    except FileExistsError:
        print_error("backup", f"{quoted(path)} already exists; refusing to overwrite it")
    except StoreFailed as error:
        print_error("backup", f"cannot write {quoted(path)}: {error.detail}")
    except ParleyError as error:
        print_error("backup", error)
    return 1


async def _back_up(home: str, path: str) -> int:
    from parley.app.files.homes import open_home

    async with open_home(home) as store:
        await store.backup(path)
    return 0

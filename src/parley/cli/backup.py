"""`parley backup`: copies all conversations of a home to one file."""

from __future__ import annotations

import argparse
import os
from typing import Final

from parley.cli.printing import print_json
from parley.cli.runner import CommandFailed, run_until_signal
from parley.cli.settings import refuse_database, settings_loader
from parley.errors import StoreFailed
from parley.wire.text import quoted

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Write a consistent snapshot of all conversations of the home to one file. Servers can
use the conversations meanwhile. To restore a backup, put the file into a home as
parley.db; the home must not contain a parley.db-wal of another database. Settings
and keys are not in the file.

With --json, the output is a JSON object `{"type": "backup"}` with `file` and `bytes`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the file to write; it must not exist")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from parley.app.files.homes import why_not_overwrite

    path: str = args.file
    try:
        if os.path.lexists(path):
            raise FileExistsError
        loader = settings_loader()
        refuse_database(loader, "use pg_dump")
        home = loader.home
        if (why_not := why_not_overwrite(home, path)) is not None:
            raise CommandFailed(f"{quoted(path)} {why_not}")
        code = run_until_signal(_back_up(home, path))
    except FileExistsError:
        raise CommandFailed(f"{quoted(path)} already exists; refusing to overwrite it") from None
    except StoreFailed as error:
        raise CommandFailed(f"cannot write {quoted(path)}: {error.detail}") from None
    if code == 0 and args.json:
        print_json({"type": "backup", "file": path, "bytes": os.path.getsize(path)})
    elif code == 0:
        print(f"{quoted(path)}: {os.path.getsize(path):,} bytes")
    return code


async def _back_up(home: str, path: str) -> int:
    from parley.app.files.homes import open_home

    async with open_home(home) as store:
        await store.backup(path)
    return 0

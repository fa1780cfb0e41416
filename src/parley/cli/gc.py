"""`parley gc`: removes data that is no longer needed from a home or a database."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from parley.cli.printing import print_json
from parley.cli.runner import add_config_option, run_until_signal
from parley.cli.settings import settings_loader

if TYPE_CHECKING:
    from parley.app.files.gc import Unneeded
    from parley.config.load import Loader

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Remove data that is not needed: archived conversations without activity for
`[store] keep_days` days (none if that is not set), images and output that belong to
no conversation, and the free space of the database. With PostgreSQL, the space becomes
available again, and the database does not shrink. The command first prints what it
would remove, and asks for confirmation on a terminal.

With --json, the first line is a JSON object `{"type": "unneeded"}` with the numbers
`conversations`, `conversation_bytes`, `blobs` (images and outputs), `blob_bytes` and
`reclaimable_bytes`. If something was removed, the second line is
`{"type": "removed"}` with `conversations`, `blobs` and `blob_bytes`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""

STDIN: Final = 0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print JSON, one object on each line")
    add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    loader = settings_loader(args.config)
    found: list[Unneeded] = []
    code = run_until_signal(_look(loader, found, as_json=args.json))
    if code or args.dry_run or not _is_anything_in(found[0]):
        return code
    if not args.yes and os.isatty(STDIN) and not _is_confirmed(as_json=args.json):
        return 0
    return run_until_signal(_remove(loader, found[0], as_json=args.json))


async def _look(loader: Loader, found: list[Unneeded], *, as_json: bool) -> int:
    from parley.app.files.gc import find_unneeded
    from parley.app.stores import open_store

    keep_days = loader.store_settings().keep_days
    async with open_store(loader) as store:
        unneeded = await find_unneeded(store, keep_days=keep_days, now=time.time())
    found.append(unneeded)
    blobs = unneeded.blobs
    if as_json:
        print_json(
            {
                "type": "unneeded",
                "conversations": len(unneeded.conversations),
                "conversation_bytes": unneeded.conversation_bytes,
                "blobs": blobs.blobs,
                "blob_bytes": blobs.bytes,
                "reclaimable_bytes": unneeded.reclaimable_bytes,
            }
        )
        return 0
    if keep_days:
        days = "1 day" if keep_days == 1 else f"{keep_days} days"
        count, size = len(unneeded.conversations), unneeded.conversation_bytes
        print(f"archived conversations, last active more than {days} ago: {count}, {size:,} bytes")
    else:
        print("archived conversations: all are kept, because [store] keep_days is not set")
    print(f"unused images and outputs: {blobs.blobs}, {blobs.bytes:,} bytes")
    other = "free space in the database" if loader.store_url() is None else "entries of deleted conversations"
    print(f"{other}: {unneeded.reclaimable_bytes:,} bytes", flush=True)
    return 0


def _is_anything_in(unneeded: Unneeded) -> bool:
    return bool(unneeded.conversations or unneeded.blobs.blobs or unneeded.reclaimable_bytes)


def _is_confirmed(*, as_json: bool) -> bool:
    out = sys.stderr if as_json else sys.stdout
    print("Remove them permanently? [y/N] ", end="", file=out, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def _remove(loader: Loader, unneeded: Unneeded, *, as_json: bool) -> int:
    from parley.app.files.gc import remove_unneeded
    from parley.app.stores import open_store

    async with open_store(loader) as store:
        removed = await remove_unneeded(store, unneeded)
    blobs = removed.blobs
    if as_json:
        counts = {"conversations": removed.conversations, "blobs": blobs.blobs, "blob_bytes": blobs.bytes}
        print_json({"type": "removed", **counts})
        return 0
    print(f"removed conversations: {removed.conversations}")
    print(f"removed images and outputs: {blobs.blobs}, {blobs.bytes:,} bytes")
    return 0

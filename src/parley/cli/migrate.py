"""`parley migrate`: copies the conversations of a home to a PostgreSQL database."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from parley.cli.printing import print_json
from parley.cli.runner import UsageError
from parley.cli.settings import settings_loader
from parley.config.checks import DATABASE_ADDRESS, is_database_address

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Copy all conversations, tokens and read marks of the home to an empty PostgreSQL
database. No server may use the home meanwhile. The home is not changed. A migration
that was interrupted continues when the command is repeated.

--to is the URL of the database. Without --to, the URL comes from PARLEY_STORE_URL or
`[store] url`, as for servers.

With --json, the output is a JSON object `{"type": "migrate"}` with the numbers
`conversations`, `copied` (the conversations that this run copied) and `tokens`.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to",
        metavar="URL",
        help="the database, such as postgresql://user@host/database; PARLEY_STORE_URL or `[store] url` by default."
        " Other users of this computer may see a password on the command line, but not in the variable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


async def run(args: argparse.Namespace) -> int:
    from parley.app.files.migrating import migrate_home

    loader = settings_loader()
    url: str | None = args.to or loader.store_url()
    if url is None:
        raise UsageError("option --to is required, because neither PARLEY_STORE_URL nor `[store] url` is set")
    if not is_database_address(url):
        raise UsageError(f"invalid --to: {DATABASE_ADDRESS}")
    is_watched = sys.stderr.isatty()

    def report(done: int, total: int) -> None:
        if is_watched:
            end = "\n" if done == total else ""
            print(f"\r{done} of {total} conversations", end=end, file=sys.stderr, flush=True)

    migrated = await migrate_home(loader.home, url, report=report)
    if args.json:
        numbers = {"conversations": migrated.conversations, "copied": migrated.copied, "tokens": migrated.tokens}
        print_json({"type": "migrate", **numbers})
        return 0
    print(f"conversations: {migrated.conversations}, copied now: {migrated.copied}; tokens: {migrated.tokens}")
    return 0

"""`parley share`: prints a link that lets other people read one conversation in a browser."""

from __future__ import annotations

import argparse
import time
from typing import Final
from urllib.parse import urlsplit

from parley.cli.durations import seconds
from parley.cli.ids import match_conversation
from parley.cli.printing import print_json, print_note
from parley.cli.runner import CommandFailed
from parley.cli.settings import settings_loader
from parley.common.proxies import is_loopback
from parley.wire.text import visible

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Print a link to a conversation. Everyone who has the link can read and follow this
conversation in a browser, and can see nothing else and change nothing. The link is
valid for 7 days, or for the time that --expires sets.

The link contains a new token with the role observer, which is bound to the
conversation. `parley token ls` lists the token, and `parley token revoke NAME`
makes the link invalid immediately. The token is not stored and cannot be printed
again.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""

DAYS: Final = 7


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the id of the conversation, or a unique prefix of it")
    parser.add_argument(
        "--expires",
        metavar="TIME",
        type=seconds,
        default=DAYS * 86_400.0,
        help=f"the validity of the link, such as 30m, 12h, 7d or 4w; {DAYS}d by default",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


async def run(args: argparse.Namespace) -> int:
    from parley.app.stores import open_store
    from parley.app.tokens import (
        all_conversations,
        create_share_token,
        described,
        page_address,
        reload_resident_tokens,
    )
    from parley.wire.ids import ConversationId

    loader = settings_loader()
    address = page_address(loader)
    if address is None:
        raise CommandFailed(
            "the address of the page is unknown: start `parley serve`, or set `serve.port` or `serve.public_url`"
        )
    async with open_store(loader, to_write=True) as store:
        conversation = ConversationId(match_conversation(args.id, await all_conversations(store)))
        token, stored = await create_share_token(store, conversation, valid_seconds=args.expires)
    reload_resident_tokens(loader.home)
    link = f"{address}#token={token}"
    if args.json:
        print_json({**described(stored), "type": "share", "url": link})
        return 0
    print(visible(link), flush=True)
    expiry = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stored.expires_at))
    print_note("share", f"valid until {expiry}; `parley token revoke {stored.name}` makes the link invalid")
    if is_loopback(urlsplit(address).hostname or ""):
        print_note("share", "the link works on this computer only; for others, set `serve.public_url`")
    settings = loader.serve_settings()
    if not settings.port and settings.public_url is None:
        print_note("share", "the link ends with the server, whose port changes unless `serve.port` is set")
    return 0

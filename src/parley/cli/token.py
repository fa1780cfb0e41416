"""`parley token`: creates, lists and revokes tokens for HTTP clients."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Final

from parley.cli.durations import seconds
from parley.cli.ids import match_conversation
from parley.cli.printing import print_json, print_note, print_nothing_found, print_text
from parley.cli.runner import CommandFailed, UsageError
from parley.cli.settings import settings_loader

__all__ = ["DESCRIPTION", "configure", "run"]

DESCRIPTION: Final = """\
Create, list and revoke the tokens with which HTTP clients use the resident server
of the home (PARLEY_HOME, else CODEX_HOME, else ~/.parley).

A token has a role. An observer can read. A driver can also create conversations,
send messages and interrupt turns. An approver can also decide approvals. An admin
can do everything that a local client can do.

`create` prints the configuration of an MCP client with the token in it. The token
is not stored and cannot be printed again. A running server accepts a new token
immediately. When a token is revoked, its clients are disconnected immediately.

Browsers that signed in to the page with a code are listed as `page`. `revoke page`
signs all of them out.

exit code: 0 on success, 2 for wrong arguments or settings, otherwise 1."""

ROLES: Final = ("observer", "driver", "approver", "admin")
PAGE: Final = "page"
"""The name that `ls` and `revoke` use for all browsers that signed in to the web page with a sign-in code."""
NO_ADDRESS: Final = "http://127.0.0.1:PORT/mcp"
"""The placeholder for the URL of a server that is not running and has no fixed port."""


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="create|ls|revoke", title="actions")

    def action(name: str, summary: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = actions.add_parser(
            name, help=summary, description=summary, allow_abbrev=False, add_help=False
        )
        added.add_argument("--json", action="store_true", help="print JSON")
        added.add_argument("-h", "--help", action="help", help="show this help")
        return added

    create = action("create", "create a token and print it, once")
    create.add_argument(
        "name", metavar="NAME", help="the name of the token, which identifies its user in logs and events"
    )
    create.add_argument("--role", choices=ROLES, required=True, help="what the token allows")
    create.add_argument(
        "--conversation",
        metavar="ID",
        help="allow only this conversation: its id, or a unique prefix of it",
    )
    create.add_argument(
        "--expires",
        metavar="TIME",
        type=seconds,
        help="the validity of the token, such as 30m, 12h, 7d or 4w; unlimited by default",
    )
    action("ls", "list the tokens")
    action("revoke", "revoke a token").add_argument("name", metavar="NAME", help="the name of the token")


async def run(args: argparse.Namespace) -> int:
    match args.action:
        case "create":
            return await _create(args)
        case "ls":
            return await _list(args)
        case _:
            return await _revoke(args)


async def _create(args: argparse.Namespace) -> int:
    from parley.app.stores import open_store
    from parley.app.tokens import (
        BadTokenName,
        all_conversations,
        create_token,
        described,
        http_address,
        reload_resident_tokens,
    )
    from parley.wire.ids import ConversationId

    loader = settings_loader()
    async with open_store(loader, to_write=True) as store:
        conversation = None
        if args.conversation is not None:
            conversation = ConversationId(match_conversation(args.conversation, await all_conversations(store)))
        try:
            token, stored = await create_token(
                store, args.name, args.role, conversation_id=conversation, valid_seconds=args.expires
            )
        except BadTokenName as error:
            raise UsageError(str(error), prog="parley token create") from None
    reload_resident_tokens(loader.home)
    url = http_address(loader)
    config = {
        "mcpServers": {
            "parley": {
                "type": "http",
                "url": url or NO_ADDRESS,
                "headers": {"Authorization": f"Bearer {token}"},
            }
        }
    }
    if args.json:
        print_json({**described(stored), "token": token, "url": url, "config": config})
    else:
        import json

        print(json.dumps(config, indent=2), flush=True)
        if sys.stdout.isatty():
            print_note("token", "this is the only time that the token is shown; keep it secret")
    if url is None:
        print_note(
            "token",
            "replace PORT with the port of the server: `serve.port` is not set, and no server of this home "
            "serves HTTP; `parley serve` starts one",
        )
    elif not loader.serve_settings().port and loader.serve_settings().public_url is None:
        print_note("token", "the port changes with each start of the server unless `serve.port` is set")
    return 0


async def _list(args: argparse.Namespace) -> int:
    from parley.app.stores import open_store
    from parley.app.tokens import code_sign_ins, described

    async with open_store(settings_loader(), to_write=True) as store:
        tokens, browsers = await store.tokens(), await code_sign_ins(store)
    for token in tokens:
        if args.json:
            print_json(described(token))
            continue
        rest = [f"expires {_time(token.expires_at)}" if token.expires_at is not None else "no expiry"]
        if token.expires_at is not None and token.expires_at <= time.time():
            rest = [f"expired {_time(token.expires_at)}"]
        rest.append("never used" if token.used_at is None else f"used {_time(token.used_at)}")
        if token.conversation_id is not None:
            rest.append(f"only {token.conversation_id}")
        print_text(f"{token.name:<20}  {token.role:<8}  {', '.join(rest)}")
    if browsers:
        used_at = max(one.used_at for one in browsers)
        if args.json:
            print_json({"type": "sign_ins", "name": PAGE, "count": len(browsers), "used_at": used_at})
        else:
            number = f"{len(browsers)} browser{'s' if len(browsers) > 1 else ''} signed in with a code"
            print_text(f"{PAGE:<20}  {'admin':<8}  {number}, used {_time(used_at)}")
    if not tokens and not browsers:
        print_nothing_found("token ls", "there are no tokens; `parley token create` creates one")
    return 0


async def _revoke(args: argparse.Namespace) -> int:
    from parley.app.stores import open_store
    from parley.app.tokens import end_code_sign_ins, reload_resident_tokens

    loader = settings_loader()
    async with open_store(loader, to_write=True) as store:
        if args.name == PAGE:
            await end_code_sign_ins(store)
        elif not await store.remove_token(args.name):
            raise CommandFailed(f"there is no token {args.name!r}; `parley token ls` lists them")
    reload_resident_tokens(loader.home)
    if args.json:
        print_json({"type": "token_revoked", "name": args.name})
    return 0


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))

"""Ids on a command line: the whole id, or a prefix that only one id has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import UnsetType

from parley.cli.runner import CommandFailed
from parley.client import Approval, Client, Conversation

__all__ = ["SHORT", "find_approval", "find_conversation"]

SHORT: Final = 8
"""How many characters of an id are shown in a list."""

PAGE: Final = 1000
MOST_NAMED: Final = 5

_WHOLE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PART: Final = re.compile(r"[0-9a-f][0-9a-f-]{0,35}")


async def find_conversation(client: Client, given: str) -> Conversation:
    """Return the conversation whose id begins with the given text.

    Raises:
        CommandFailed: there is none, or more than one.
    """
    wanted = given.lower()
    if _WHOLE.fullmatch(wanted):
        return client.conversation(wanted)
    if not _PART.fullmatch(wanted):
        raise CommandFailed(f"{given!r} is not the id of a conversation; `parley ls` lists them")
    found = [one for archived in (False, True) for one in await _all_ids(client, archived=archived)]
    return client.conversation(_only("conversation", given, [one for one in found if one.startswith(wanted)]))


async def find_approval(client: Client, given: str) -> Approval:
    """Return the open approval whose id begins with the given text.

    Raises:
        CommandFailed: there is none, or more than one.
    """
    approvals = {one.approval_id: one for one in await client.approvals() if one.approval_id is not None}
    return approvals[_only("open approval", given, [one for one in approvals if one.startswith(given.lower())])]


async def _all_ids(client: Client, *, archived: bool) -> list[str]:
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = await client.list(limit=PAGE, cursor=cursor, archived=archived)
        ids += [one.conversation_id for one in page.conversations]
        if isinstance(page.next_cursor, UnsetType):
            return ids
        cursor = page.next_cursor


def _only(what: str, given: str, found: Sequence[str]) -> str:
    if not found:
        raise CommandFailed(f"no {what} has an id that begins with {given!r}")
    if len(found) > 1:
        more = "" if len(found) <= MOST_NAMED else f" and {len(found) - MOST_NAMED} more"
        raise CommandFailed(f"{given!r} is ambiguous: {', '.join(found[:MOST_NAMED])}{more}")
    return found[0]

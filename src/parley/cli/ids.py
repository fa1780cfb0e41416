"""Finds the conversations, messages and approvals whose ids, or unique prefixes of ids, are on a command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import UnsetType

from parley.cli.runner import CommandFailed
from parley.client import Approval, Client, Conversation

__all__ = ["SHORT", "find_approval", "find_conversation", "is_complete", "match_conversation", "match_message"]

SHORT: Final = 8
"""The number of characters that lists show from the beginning of an id."""

PAGE: Final = 1000
MAX_NAMED: Final = 5

_WHOLE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PART: Final = re.compile(r"[0-9a-f][0-9a-f-]{0,35}")


async def find_conversation(client: Client, given: str) -> Conversation:
    """Return the conversation whose id begins with the given text.

    Raises:
        CommandFailed: no id, or more than one id, begins with the text.
    """
    if is_complete(given):
        return client.conversation(given.lower())
    _refuse_other_than_ids(given)
    found = [one for archived in (False, True) for one in await _all_ids(client, archived=archived)]
    return client.conversation(match_conversation(given, found))


def is_complete(given: str) -> bool:
    """Return whether `given` is a complete conversation id, not only a prefix of an id."""
    return _WHOLE.fullmatch(given.lower()) is not None


def match_conversation(given: str, ids: Sequence[str]) -> str:
    """Return the only id in `ids` that begins with the given text.

    Raises:
        CommandFailed: no id, or more than one id, begins with the text.
    """
    _refuse_other_than_ids(given)
    return _only("conversation", given, [one for one in ids if one.startswith(given.lower())])


def match_message(given: str, ids: Sequence[str]) -> str:
    """Return the only message id in `ids` that begins with the given text.

    Raises:
        CommandFailed: no id, or more than one id, begins with the text.
    """
    return _only("message of the conversation", given, [one for one in ids if one.startswith(given.lower())])


def _refuse_other_than_ids(given: str) -> None:
    if not _PART.fullmatch(given.lower()):
        raise CommandFailed(f"{given!r} is not the id of a conversation; `parley ls` lists them")


async def find_approval(client: Client, given: str) -> Approval:
    """Return the open approval whose id begins with the given text.

    Raises:
        CommandFailed: no id, or more than one id, begins with the text.
    """
    approvals = {one.approval_id: one for one in await client.approvals() if one.approval_id is not None}
    found = [one for one in approvals if one.startswith(given.lower())]
    if not found:
        raise CommandFailed(
            f"no open approval has an id that begins with {given!r}; it may already be decided, and "
            "`parley answer` lists the open approvals"
        )
    return approvals[_only("open approval", given, found)]


async def _all_ids(client: Client, *, archived: bool) -> list[str]:
    ids: list[str] = []
    cursor: str | None = None
    while True:
        page = await client.list(limit=PAGE, cursor=cursor, archived=archived)
        ids += [one.conversation_id for one in page.conversations]
        if isinstance(page.next_cursor, UnsetType) or page.next_cursor == cursor:
            return ids
        cursor = page.next_cursor


def _only(what: str, given: str, found: Sequence[str]) -> str:
    if not found:
        raise CommandFailed(f"no {what} has an id that begins with {given!r}")
    if len(found) > 1:
        more = "" if len(found) <= MAX_NAMED else f" and {len(found) - MAX_NAMED} more"
        raise CommandFailed(f"{given!r} is ambiguous: {', '.join(found[:MAX_NAMED])}{more}")
    return found[0]

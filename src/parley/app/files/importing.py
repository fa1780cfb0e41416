"""Files as conversations: each is read to its end before anything is written, and written whole or not at all.

Where an import was killed in the middle of that, the next one of the same file takes the place of what is there.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import Final, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from parley.app.files.homes import entries_until
from parley.app.files.source import SourceFile
from parley.config.types import Settings
from parley.conversation.exported import entry_line
from parley.conversation.log import Entry
from parley.conversation.records import SettingsChosen, record_type
from parley.errors import BadFile, BadHome, StoreError, UnknownConversation, os_detail
from parley.ports.store import Store, Summary
from parley.runtime.whole import write_whole
from parley.wire.ids import START, ConversationId, Seq

__all__ = ["Imported", "Outcome", "files_below", "import_file"]

_SETTINGS_CHOSEN: Final = record_type(SettingsChosen)


class Outcome(Enum):
    IMPORTED = "imported"
    ALREADY_HERE = "already here"
    SKIPPED = "skipped"
    FAILED = "failed"


class Imported(NamedTuple):
    """What became of one file."""

    outcome: Outcome
    text: str
    """For people to read."""


def files_below(path: str) -> list[str]:
    """The files that a directory and those in it may have conversations in; of a file, the file itself."""
    if not os.path.isdir(path):
        return [path]
    return sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(path)
        for name in names
        if name.endswith(".jsonl") and os.path.isfile(os.path.join(folder, name))
    )


async def import_file(
    store: Store, path: str, settings: Settings, *, is_named: bool = True, new_id: bool = False
) -> Imported:
    """Make a conversation of a file; `settings` are for one that does not bring its own.

    A file that `is_named` has to be one that can be imported; others are passed over if they are something else.

    Raises:
        BadHome: nothing can be imported here.
    """
    file = SourceFile(path, settings)
    try:
        if (what := file.what_else_it_is()) is not None:
            return Imported(Outcome.FAILED if is_named else Outcome.SKIPPED, what)
        summary = await file.check()
        if file.is_empty:
            return Imported(Outcome.SKIPPED, "nobody says anything in it")
        told = ""
        if new_id:
            conversation_id = ConversationId(str(uuid4()))
        else:
            conversation_id, there = await _place_for(store, file, summary)
            if there is _There.WHOLE:
                return Imported(Outcome.ALREADY_HERE, f"already here as {conversation_id}")
            if conversation_id != file.conversation_id:
                told = f", since {file.conversation_id} is another conversation here"
        await write_whole(store, conversation_id, file.entries(conversation_id), summary, archived=file.archived)
    except BadHome:
        raise
    except (BadFile, StoreError) as error:
        return Imported(Outcome.FAILED, str(error))
    except OSError as error:
        return Imported(Outcome.FAILED, os_detail(error))
    lost = f"; left out, since they have no place in it: {file.left_out}" if file.left_out else ""
    return Imported(Outcome.IMPORTED, f"imported as {conversation_id}{told}, {file.count} entries{lost}")


class _There(Enum):
    """What there is of a file in the conversation of some id."""

    NOTHING = "no such conversation"
    BEGUN = "what an import had written when it was killed"
    WHOLE = "all of it, and it may have gone on"
    ANOTHER = "something else"


async def _place_for(store: Store, file: SourceFile, summary: Summary) -> tuple[ConversationId, _There]:
    """Where the file is, or else the place where it is to be, which is free then."""
    ids = file.ids()
    while True:
        conversation_id = next(ids)
        there, last = await _what_is_there(store, conversation_id, file, summary)
        if there is _There.BEGUN:
            lease = await store.acquire(conversation_id, address="")
            if lease.last != last:
                await store.release(lease)
                continue
            await store.delete(lease)
        if there is not _There.ANOTHER:
            return conversation_id, there


async def _what_is_there(
    store: Store, conversation_id: ConversationId, file: SourceFile, summary: Summary
) -> tuple[_There, Seq]:
    """Also the last position. What a killed import has left behind shows the whole file's summary in the list."""
    try:
        head = await store.head(conversation_id)
        is_shorter = head.last < file.count
        if is_shorter and head.summary != replace(summary, state="idle"):
            return _There.ANOTHER, head.last
        theirs = file.entries(conversation_id)
        async for entry in entries_until(store, conversation_id, until=Seq(min(head.last, file.count))):
            if not _is_same(entry, next(theirs, None)):
                return _There.ANOTHER, head.last
    except UnknownConversation:
        return _There.NOTHING, START
    return _There.BEGUN if is_shorter else _There.WHOLE, head.last


def _is_same(one: Entry, other: Entry | None) -> bool:
    """Settings do not count: what a rollout file is given is not its own."""
    if other is None:
        return False
    return one.type == other.type == _SETTINGS_CHOSEN or entry_line(one) == entry_line(other)

"""Files as conversations: each is read to its end before anything is written, and written whole or not at all.

Nothing that is here is ever changed or removed by an import.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from parley.app.files.homes import entries_until
from parley.app.files.source import SourceFile, with_own_questions
from parley.common.os_errors import os_detail
from parley.config.types import Settings
from parley.conversation.export_format import entry_line
from parley.conversation.log import Entry
from parley.conversation.records import SettingsChosen, record_type
from parley.errors import BadFile, BadHome, StoreError, StoreFailed, UnknownConversation, Unreadable
from parley.ports.store import Store
from parley.runtime.whole import write_whole
from parley.wire.ids import ConversationId, Seq

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
        # A time to come would have every later activity listed as of then.
        summary = replace(summary, updated_at=min(summary.updated_at, time.time()))
        if file.is_empty:
            return Imported(Outcome.SKIPPED, "nobody says anything in it")
        while True:
            place = ConversationId(str(uuid4())) if new_id else await _place_for(store, file)
            if isinstance(place, _Here):
                return Imported(Outcome.ALREADY_HERE, f"already here as {place.conversation_id}")
            try:
                await write_whole(store, place, await _entries(store, file, place), summary, archived=file.archived)
                break
            except StoreFailed:
                if not await _is_there(store, place):
                    raise  # or else somebody has imported the same at the same time
    except BadHome:
        raise
    except (BadFile, StoreError) as error:
        return Imported(Outcome.FAILED, str(error))
    except OSError as error:
        return Imported(Outcome.FAILED, os_detail(error))
    is_another = not new_id and place != file.conversation_id
    told = f", since {file.conversation_id} is another conversation here" if is_another else ""
    lost = f"; left out, since they have no place in it: {file.left_out}" if file.left_out else ""
    return Imported(Outcome.IMPORTED, f"imported as {place}{told}, {file.count} entries{lost}")


class _Here(NamedTuple):
    """A conversation in which all of the file is, and which may have gone on."""

    conversation_id: ConversationId


async def _place_for(store: Store, file: SourceFile) -> ConversationId | _Here:
    """Where the file is, or else the id that it is to have, which is free. What is there is never changed."""
    for conversation_id in file.ids():
        try:
            if await _is_all_in(store, conversation_id, file):
                return _Here(conversation_id)
        except Unreadable:
            continue
        except UnknownConversation:
            return conversation_id
    raise AssertionError("there are always more ids")


async def _is_there(store: Store, conversation_id: ConversationId) -> bool:
    try:
        await store.head(conversation_id)
    except UnknownConversation:
        return False
    except Unreadable:
        pass
    return True


async def _is_all_in(store: Store, conversation_id: ConversationId, file: SourceFile) -> bool:
    """Whether all of the file is in a conversation, at its beginning. Raises UnknownConversation."""
    if (await store.head(conversation_id)).last < file.count:
        return False
    told = file.entries()
    async for entry in entries_until(store, conversation_id, until=Seq(file.count)):
        if not _is_same(entry, next(told, None), conversation_id):
            return False
    return True


async def _entries(store: Store, file: SourceFile, conversation_id: ConversationId) -> Iterator[Entry]:
    """As they are to be in the conversation of that id. An answer names a question by its id alone: where such a
    question was asked in another conversation, this one gets its own."""
    is_copy = conversation_id != file.conversation_id or (file.questions and await store.asks_any(file.questions))
    if not is_copy:
        return file.entries()
    return (with_own_questions(entry, conversation_id) for entry in file.entries())


def _is_same(kept: Entry, told: Entry | None, conversation_id: ConversationId) -> bool:
    """Settings do not count: a rollout file was given them. It may have been given its own questions."""
    if told is None:
        return False
    if kept.type == told.type == _SETTINGS_CHOSEN or entry_line(kept) == entry_line(told):
        return True
    return entry_line(kept) == entry_line(with_own_questions(told, conversation_id))

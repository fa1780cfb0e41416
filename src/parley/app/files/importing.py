"""Imports conversations from files.

A file is read completely before anything is written. A file is imported completely or not at all. An import never
changes or removes an existing conversation.
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
from parley.app.files.source import SourceFile, with_new_approval_id
from parley.common.os_errors import os_detail
from parley.config.types import Settings
from parley.conversation.export_format import entry_line
from parley.conversation.log import Entry
from parley.conversation.log_queries import for_copy
from parley.conversation.records import SettingsChosen, record_type
from parley.errors import BadFile, BadHome, StoreError, StoreFailed, UnknownConversation, Unreadable
from parley.ports.store import Store
from parley.runtime.bulk_create import bulk_create, pages_of
from parley.wire.ids import ConversationId, Seq

__all__ = ["Imported", "Outcome", "files_below", "import_file"]

_SETTINGS_CHOSEN: Final = record_type(SettingsChosen)


class Outcome(Enum):
    IMPORTED = "imported"
    ALREADY_HERE = "already here"
    SKIPPED = "skipped"
    FAILED = "failed"


class Imported(NamedTuple):
    """The result of importing one file."""

    outcome: Outcome
    text: str
    """A description of the result for the user."""
    conversation: ConversationId | None = None
    """The new conversation, or the existing conversation with the same content; None if nothing was imported."""


def files_below(path: str) -> list[str]:
    """Return the paths of the *.jsonl files in a directory and its subdirectories. If `path` is not a directory,
    return only `path`.
    """
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
    """Create a conversation from the file `path`, and return the outcome. `settings` are used if the file contains
    no settings.

    `is_named` is True if the user named this file. If the file is neither an export nor a supported rollout file,
    the outcome is `FAILED` for a named file and `SKIPPED` for any other file. If `new_id` is True, a new
    conversation is always created, even if the same file was imported before.

    Raises:
        BadHome: the home directory cannot be written.
    """
    file = SourceFile(path, settings)
    try:
        if (what := file.why_not_importable()) is not None:
            return Imported(Outcome.FAILED if is_named else Outcome.SKIPPED, what)
        summary = await file.check()
        # A time in the future would become the time of all later activity in lists.
        summary = replace(summary, updated_at=min(summary.updated_at, time.time()))
        if file.is_empty:
            return Imported(Outcome.SKIPPED, "it contains no messages")
        while True:
            place = ConversationId(str(uuid4())) if new_id else await _place_for(store, file)
            if isinstance(place, _Existing):
                return Imported(
                    Outcome.ALREADY_HERE, f"already here as {place.conversation_id}", place.conversation_id
                )
            try:
                pages = pages_of(await _entries(store, file, place))
                await bulk_create(store, place, pages, summary, archived=file.archived)
                break
            except StoreFailed:
                if not await _is_there(store, place):
                    raise  # the conversation was not created by a concurrent import of the same file
    except BadHome:
        raise
    except (BadFile, StoreError) as error:
        return Imported(Outcome.FAILED, str(error))
    except OSError as error:
        return Imported(Outcome.FAILED, os_detail(error))
    is_another = not new_id and place != file.conversation_id
    note = f", because {file.conversation_id} is the id of another conversation here" if is_another else ""
    lost = f"; items left out, because Parley has no equivalent: {file.left_out}" if file.left_out else ""
    return Imported(Outcome.IMPORTED, f"imported as {place}{note}, {file.count} entries{lost}", place)


class _Existing(NamedTuple):
    """An existing conversation that begins with the content of the imported file."""

    conversation_id: ConversationId


async def _place_for(store: Store, file: SourceFile) -> ConversationId | _Existing:
    """Return the existing conversation that begins with the content of the file. If there is no such conversation,
    return an unused id for the new conversation.
    """
    for conversation_id in file.ids():
        try:
            if await _is_all_in(store, conversation_id, file):
                return _Existing(conversation_id)
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
    """Return whether the conversation begins with all entries of the file.

    Raises:
        UnknownConversation: the conversation does not exist.
    """
    if (await store.head(conversation_id)).last < file.count:
        return False
    expected = file.entries()
    async for entry in entries_until(store, conversation_id, until=Seq(file.count)):
        if not _is_same(entry, next(expected, None), conversation_id):
            return False
    return True


async def _entries(store: Store, file: SourceFile, conversation_id: ConversationId) -> Iterator[Entry]:
    """Return the entries of the file as the conversation `conversation_id` stores them.

    Approvals get new ids if the conversation gets a new id, or if the store contains an approval with the same id.
    New ids are necessary because an answer identifies an approval only by its id.
    """
    is_copy = conversation_id != file.conversation_id or (
        file.approval_ids and await store.has_approvals(file.approval_ids)
    )
    entries = map(for_copy, file.entries())
    return (with_new_approval_id(entry, conversation_id) for entry in entries) if is_copy else entries


def _is_same(kept: Entry, imported: Entry | None, conversation_id: ConversationId) -> bool:
    """Return whether a stored entry equals an imported entry. Settings and approval ids are not compared, because
    an import may change them.
    """
    if imported is None:
        return False
    if kept.type == imported.type == _SETTINGS_CHOSEN or entry_line(kept) == entry_line(imported):
        return True
    return entry_line(kept) == entry_line(with_new_approval_id(imported, conversation_id))

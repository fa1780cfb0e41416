"""Copies the readable part of a damaged home directory to a new home directory, without changing the damaged
directory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID, uuid4

import msgspec

from parley.common.os_errors import os_detail
from parley.conversation.log import Entry
from parley.conversation.projections import Projections
from parley.conversation.records import SettingsChosen, record_type
from parley.errors import BadHome
from parley.ports.store import Store, Summary
from parley.runtime.bulk_create import bulk_create, pages_of
from parley.stores.sqlite.salvage import Salvaged, salvaged
from parley.stores.sqlite.store import SqliteStore
from parley.wire.ids import ConversationId, Seq
from parley.wire.jsonrpc import encode

__all__ = ["Repaired", "repair_home"]

_SETTINGS_CHOSEN: Final = record_type(SettingsChosen)


class Repaired(NamedTuple):
    """The result of a repair: how many conversations were copied completely (`whole`), in part (`partial`), or not
    at all (`lost`).
    """

    whole: int
    partial: int
    lost: int


class _Log(NamedTuple):
    """The entries and the summary of one repaired conversation."""

    entries: list[Entry]
    summary: Summary


async def repair_home(home: str, target: str, *, report: Callable[[str], None]) -> Repaired:
    """Copy the readable part of all conversations in the home directory `home` to the new home directory `target`.
    Return how many conversations were copied completely, in part, or not at all.

    `report` is called with a line of text for each conversation that could not be copied completely.

    Raises:
        BadHome: `target` is not empty or cannot be created, or nothing in `home` can be read.
        StoreError: `target` cannot be written, or another process is writing to `home`.
    """
    _create_empty(target)
    folder = tempfile.mkdtemp(prefix=".salvage-", dir=target)
    store = SqliteStore(target)
    counts = {"whole": 0, "partial": 0, "lost": 0}
    try:
        with salvaged(home, folder) as conversations:
            for one in conversations:
                kind = await _write(store, one, report)
                counts[kind] += 1
    finally:
        await store.close()
        shutil.rmtree(folder, ignore_errors=True)
    return Repaired(**counts)


def _create_empty(target: str) -> None:
    try:
        os.makedirs(target, mode=0o700, exist_ok=True)
        if os.listdir(target):
            raise BadHome(target, "is not empty; name a new directory")
        found = os.stat(target)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise BadHome(target, "can be changed by other users; name a new directory")
    except OSError as error:
        raise BadHome(target, f"cannot be created: {os_detail(error)}") from error


async def _write(store: Store, found: Salvaged, report: Callable[[str], None]) -> str:
    name = found.id if found.id is not None and _is_id(found.id) else ConversationId(str(uuid4()))
    if (log := _log(found)) is None:
        report(f"{found.id or name}: lost")
        return "lost"
    await bulk_create(store, name, pages_of(log.entries), log.summary, archived=found.archived)
    if found.id == name and _is_whole(found) and len(log.entries) == found.last:
        return "whole"
    new_id = "" if found.id == name else ", under a new id"
    report(f"{name}: partial, {len(log.entries)} of {found.last} entries{new_id}")
    return "partial"


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _is_whole(found: Salvaged) -> bool:
    return [entry.seq for entry in found.entries] == list(range(1, found.last + 1)) and found.last > 0


def _log(found: Salvaged) -> _Log | None:
    """Return the longest log that can be made from the readable entries of a conversation; None if there are none.

    The log begins with settings, and its positions have no gaps. The log ends before the first entry that cannot
    follow the previous entries.
    """
    if not found.entries:
        return None
    rest = found.entries
    if rest[0].type != _SETTINGS_CHOSEN:
        chosen = SettingsChosen(model=found.model, cwd=found.cwd or "/", asked={"cwd": found.cwd or "/"})
        rest = [Entry(Seq(1), rest[0].at, _SETTINGS_CHOSEN, False, encode(chosen)), *rest]
    projections, taken = Projections(), list[Entry]()
    for entry in rest:
        placed = msgspec.structs.replace(entry, seq=Seq(len(taken) + 1))
        try:
            projections.replay([placed])
        except ValueError:
            break
        taken.append(placed)
    if len(taken) < len(rest):  # an entry that failed may have changed the projections
        projections = Projections()
        projections.replay(taken)
    return _Log(taken, Summary.of(projections.state)) if taken else None

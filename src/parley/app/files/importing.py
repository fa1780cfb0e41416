"""Files as conversations: each is read to its end before anything is written, and written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum
from itertools import chain
from typing import BinaryIO, Final, NamedTuple
from uuid import uuid4

import msgspec

from parley.app.files.homes import entries_until
from parley.config.kept import kept, wanted_again
from parley.config.types import Settings, Wanted
from parley.conversation.exported import Line, entry_line, read_entries, read_head
from parley.conversation.folds import Folds
from parley.conversation.log import Entry, Log
from parley.conversation.records import SettingsChosen, record_type
from parley.conversation.rollout import Retelling, read_session
from parley.errors import BadFile, BadHome, StoreError, UnknownConversation, os_detail
from parley.ports.store import Store, Summary
from parley.runtime.whole import write_whole
from parley.wire.ids import ConversationId, Seq

__all__ = ["Imported", "Outcome", "files_below", "import_file"]

LINE_BYTES: Final = 256 * 1024**2
"""No line that Parley writes is as long; whatever is, is not read into memory."""


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
    file = _File(path, settings)
    try:
        if (what := file.what_else_it_is()) is not None:
            return Imported(Outcome.FAILED if is_named else Outcome.SKIPPED, what)
        summary = file.check()
        if file.is_empty:
            return Imported(Outcome.SKIPPED, "nobody says anything in it")
        conversation_id, told = file.conversation_id, ""
        if not new_id:
            same = await _is_here(store, conversation_id, file)
            if same:
                return Imported(Outcome.ALREADY_HERE, f"already here as {conversation_id}")
            told = "" if same is None else f", since {conversation_id} is another conversation here"
            new_id = same is not None
        if new_id:
            conversation_id = ConversationId(str(uuid4()))
        await write_whole(store, conversation_id, file.entries(), summary, archived=file.archived)
    except BadHome:
        raise
    except (BadFile, StoreError) as error:
        return Imported(Outcome.FAILED, str(error))
    except OSError as error:
        return Imported(Outcome.FAILED, os_detail(error))
    lost = f"; left out, since they have no place in it: {file.left_out}" if file.left_out else ""
    return Imported(Outcome.IMPORTED, f"imported as {conversation_id}{told}, {file.count} entries{lost}")


class _File:
    """A file with a conversation in it, read as often as it takes."""

    def __init__(self, path: str, settings: Settings) -> None:
        self._path, self._settings = path, settings
        self.conversation_id = ConversationId("")
        self.archived = False
        self.count = 0
        self.left_out = 0

        self._is_rollout = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but the settings that we gave it."""
        return self._is_rollout and self.count == 1

    def what_else_it_is(self) -> str | None:
        """Why there can be no conversation in it; None: there may be one.

        Raises:
            OSError: it cannot be read.
        """
        if not stat.S_ISREG(os.stat(self._path).st_mode):
            raise OSError(0, "not a regular file")
        with open(self._path, "rb") as file:
            try:
                members = msgspec.json.decode(file.readline(LINE_BYTES), type=dict[str, object])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                members = {}
        self._is_rollout = "parley_export" not in members
        if not self._is_rollout or {"id", "timestamp"} <= set(members):
            return None
        if members.get("type") == "session_meta":
            return "a rollout file of a newer Codex CLI; those up to 0.21 can be read"
        return "neither an export of Parley nor a rollout file of Codex CLI"

    def check(self) -> Summary:
        """Read it to its end, and say what it adds up to.

        Raises:
            BadFile, OSError: it cannot be used.
        """
        folds = Folds()
        for entry in self.entries(folds):
            self.count = entry.seq
        return Summary.of(folds.state)

    def entries(self, folds: Folds | None = None) -> Iterator[Entry]:
        """Raises BadFile, OSError."""
        with open(self._path, "rb") as file:
            lines = _lines(file)
            _, first = next(lines, (1, b""))
            if self._is_rollout:
                yield from self._retold(first, lines, folds or Folds())
            else:
                head = read_head(first)
                self.conversation_id, self.archived = head.conversation_id, head.archived
                for entry in read_entries(head, lines, folds or Folds()):
                    _refuse_strange_settings(entry)
                    yield entry

    def _retold(self, first: bytes, lines: Iterator[Line], folds: Folds) -> Iterator[Entry]:
        session = read_session(first)
        self.conversation_id = session.conversation_id
        try:
            began = datetime.fromisoformat(session.timestamp)
            at = (began if began.tzinfo else began.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise BadFile(1, f"{session.timestamp!r} is not a time") from None
        chosen = SettingsChosen(
            model=self._settings.model,
            cwd=self._settings.cwd,
            asked=kept(Wanted(cwd=self._settings.cwd)),
        )
        log, retelling = Log(), Retelling(session)
        for happened in chain((chosen,), retelling.read(lines)):
            entries = log.append((happened,), at=at)
            folds.replay(entries)
            yield from entries
        self.left_out = retelling.left_out


def _lines(file: BinaryIO) -> Iterator[Line]:
    number = 0
    while line := file.readline(LINE_BYTES):
        number += 1
        if len(line) == LINE_BYTES:
            raise BadFile(number, f"longer than {LINE_BYTES // 1024**2} MiB")
        yield number, line


_SETTINGS_CHOSEN: Final = record_type(SettingsChosen)


def _refuse_strange_settings(entry: Entry) -> None:
    """What was asked for has to be what somebody can ask for, or the conversation could not be gone on with."""
    if not entry.is_event and entry.type == _SETTINGS_CHOSEN:
        try:
            wanted_again(msgspec.json.decode(entry.encoded, type=SettingsChosen).asked)
        except msgspec.ValidationError as error:
            raise BadFile(entry.seq + 1, f"settings that nobody can ask for: {error}") from None


async def _is_here(store: Store, conversation_id: ConversationId, file: _File) -> bool | None:
    """Whether all of a file is in the conversation of that id, which may have gone on; None: there is none.

    Settings do not count: what a rollout file is given is not its own.
    """
    try:
        head = await store.head(conversation_id)
        if head.last < file.count:
            return False
        theirs = file.entries()
        async for entry in entries_until(store, conversation_id, until=Seq(file.count)):
            if (other := next(theirs, None)) is None:
                return False
            is_settings = entry.type == other.type == _SETTINGS_CHOSEN
            if not is_settings and entry_line(entry) != entry_line(other):
                return False
    except UnknownConversation:
        return None
    return True

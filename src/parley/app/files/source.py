"""Reads and checks a file with a conversation: an export of Parley, or a rollout file of Codex CLI.

The caller stores the entries. If a conversation could not continue from the entries in the file, reading raises
`BadFile`.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain, count
from typing import BinaryIO, Final
from uuid import UUID, uuid5

import msgspec
from msgspec.structs import replace

from parley.config.load import check_overrides
from parley.config.redaction import stored_arguments, stored_overrides
from parley.config.types import Settings, SettingsOverrides
from parley.conversation.export_format import LATEST, Line, read_entries, read_head
from parley.conversation.log import Entry, Log
from parley.conversation.projections import Projections
from parley.conversation.records import ApprovalRequest, ApprovalSettlement, SettingsChosen, record_type
from parley.conversation.rollout import RolloutReader, read_session
from parley.errors import BadFile, BadSetting
from parley.ports.store import Summary
from parley.wire.events import ApprovalSettled, event_type
from parley.wire.ids import ApprovalId, ConversationId
from parley.wire.jsonrpc import encode

__all__ = ["SourceFile", "with_new_approval_id"]

LINE_BYTES: Final = 256 * 1024**2
"""The maximum length of a line in the file, in bytes. Parley never writes longer lines."""

_SQLITE: Final = b"SQLite format 3\0"
"""The first bytes of an SQLite database, such as a backup."""

CHECKED_AT_ONCE: Final = 500
"""The number of entries after which `SourceFile.check` lets other tasks run, so that it can be cancelled."""


class SourceFile:
    """A file with a conversation. An import reads the file several times."""

    def __init__(self, path: str, settings: Settings) -> None:
        self._path, self._settings = path, settings
        self.conversation_id = ConversationId("")
        self.archived = False
        self.count = 0
        self.left_out = 0
        self.approval_ids: set[ApprovalId] = set()
        """The ids of the approvals that are requested in the file."""
        self._is_rollout = False

    @property
    def is_empty(self) -> bool:
        """True if the file is a rollout file without messages. Its only entry then contains the settings, which
        this class adds.
        """
        return self._is_rollout and self.count == 1

    def why_not_importable(self) -> str | None:
        """Return the reason why the file contains no conversation that can be imported; None if it may contain one.

        Raises:
            OSError: the file cannot be read.
        """
        if not stat.S_ISREG(os.stat(self._path).st_mode):
            raise OSError(0, "not a regular file")
        with open(self._path, "rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                return "a database, not an export; docs/files.md (parley backup) shows how to restore a backup"
            file.seek(0)
            try:
                members = msgspec.json.decode(file.readline(LINE_BYTES), type=dict[str, object])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                members = {}
        self._is_rollout = "parley_export" not in members
        if not self._is_rollout or {"id", "timestamp"} <= set(members):
            return None
        if members.get("type") == "session_meta":
            return "a rollout file of a newer Codex CLI; Parley reads rollout files of versions up to 0.21"
        return "neither an export of Parley nor a rollout file of Codex CLI"

    def ids(self) -> Iterator[ConversationId]:
        """Yield candidate ids for the conversation: first its id in the file, then ids derived from that id.

        The ids are the same in every import of the file.
        """
        yield self.conversation_id
        for number in count(1):
            yield ConversationId(str(uuid5(UUID(self.conversation_id), str(number))))

    async def check(self) -> Summary:
        """Read the whole file, and return the summary of the conversation.

        Raises:
            BadFile: the content is invalid.
            OSError: the file cannot be read.
        """
        projections = Projections()
        for entry in self._read(projections):
            self.count = entry.seq
            if not entry.is_event and entry.type == _APPROVAL_REQUEST:
                self.approval_ids.add(msgspec.json.decode(entry.encoded, type=ApprovalRequest).approval_id)
            if entry.seq % CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return Summary.of(projections.state)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of the file.

        Raises:
            BadFile: the content is invalid.
            OSError: the file cannot be read.
        """
        return self._read(Projections())

    def _read(self, projections: Projections) -> Iterator[Entry]:
        with open(self._path, "rb") as file:
            lines = _lines(file)
            _, first = next(lines, (1, b""))
            if self._is_rollout:
                yield from self._rollout_entries(first, lines, projections)
            else:
                head = read_head(first)
                self.conversation_id, self.archived = head.conversation_id, head.archived
                yield from map(_with_default_settings, read_entries(head, lines, projections))

    def _rollout_entries(self, first: bytes, lines: Iterator[Line], projections: Projections) -> Iterator[Entry]:
        session = read_session(first)
        self.conversation_id = session.conversation_id
        try:
            began = datetime.fromisoformat(session.timestamp)
            at = (began if began.tzinfo else began.replace(tzinfo=UTC)).timestamp()
            if not 0 <= at <= LATEST:
                raise ValueError
        except (ValueError, OverflowError):
            raise BadFile(1, f"{session.timestamp!r} is not a time") from None
        chosen = SettingsChosen(
            model=self._settings.model,
            cwd=self._settings.cwd,
            asked=stored_arguments(SettingsOverrides(cwd=self._settings.cwd)),
        )
        log, reader = Log(), RolloutReader(session)
        for payload in chain((chosen,), reader.read(lines)):
            entries = log.append((payload,), at=at)
            projections.replay(entries)
            yield from entries
        self.left_out = reader.left_out


def _lines(file: BinaryIO) -> Iterator[Line]:
    number = 0
    while line := file.readline(LINE_BYTES):
        number += 1
        if len(line) == LINE_BYTES:
            raise BadFile(number, f"longer than {LINE_BYTES // 1024**2} MiB")
        yield number, line


_SETTINGS_CHOSEN: Final = record_type(SettingsChosen)
_APPROVAL_REQUEST: Final = record_type(ApprovalRequest)


def _with_default_settings(entry: Entry) -> Entry:
    """If an entry contains settings, remove the secrets and the unknown keys from its settings, so that default
    values apply instead, and return the changed entry. Return any other entry unchanged.

    Raises:
        BadFile: the settings are invalid, so the conversation could not continue with them.
    """
    if entry.is_event or entry.type != _SETTINGS_CHOSEN:
        return entry
    try:
        chosen = msgspec.json.decode(entry.encoded, type=SettingsChosen)
        wanted = stored_overrides(chosen.asked)
        check_overrides(wanted)
    except (msgspec.ValidationError, BadSetting) as error:
        raise BadFile(entry.seq + 1, f"invalid settings: {error}") from None
    asked = stored_arguments(wanted)
    return entry if asked == chosen.asked else replace(entry, encoded=encode(replace(chosen, asked=asked)))


_OF_APPROVALS: Final[Mapping[tuple[bool, str], type[ApprovalRequest | ApprovalSettlement | ApprovalSettled]]] = {
    (False, _APPROVAL_REQUEST): ApprovalRequest,
    (False, record_type(ApprovalSettlement)): ApprovalSettlement,
    (True, event_type(ApprovalSettled)): ApprovalSettled,
}


def with_new_approval_id(entry: Entry, conversation_id: ConversationId) -> Entry:
    """Return the entry with a new approval id, derived from `conversation_id`. Return an entry without an approval
    id unchanged.
    """
    kind = _OF_APPROVALS.get((entry.is_event, entry.type))
    if kind is None:
        return entry
    payload = msgspec.json.decode(entry.encoded, type=kind)
    own = ApprovalId(str(uuid5(UUID(conversation_id), payload.approval_id)))
    return replace(entry, encoded=encode(replace(payload, approval_id=own)))

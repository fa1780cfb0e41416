"""The settings that clients gave with their messages, as a chain of changes.

A branch continues the chain at the change that applied after its parent message. The chain is a projection: each
appended entry updates the chain. This module does not interpret the settings.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import UNSET, Struct

from parley.conversation.errors import EarlierEntriesNeeded, ParentUnknown
from parley.conversation.log import LogPayload
from parley.conversation.records import InputRead, SettingsChosen, TurnStarted
from parley.wire.events import TaskStarted, UserMessage
from parley.wire.ids import ConversationId, MessageId

__all__ = ["SavedSettingsHistory", "SettingsChange", "SettingsHistory"]


class SettingsChange:
    """The settings that a client gave with one message or when it created the conversation. They override the
    settings in `before`, the previous change of the branch.
    """

    def __init__(self, before: SettingsChange | None, asked: dict[str, Any], by: MessageId | None = None) -> None:
        self.before, self.asked = before, asked
        self.by = by
        """The id of the message that contained the settings; None if the settings were given when the conversation
        was created.
        """


class SavedSettingsHistory(Struct, frozen=True, array_like=True):
    """The settings as stored in a checkpoint. The changes in `chain` make up three states of the settings: the
    current settings, the settings of the last turn, and the settings before the first message.
    """

    chain: tuple[tuple[int, dict[str, Any], MessageId | None], ...]
    """The changes. Each change consists of the index of the previous change in `chain` (-1 if there is none), the
    settings, and the id of the message that contained them (None if they were given when the conversation was
    created).
    """
    first: int
    """The index in `chain` of the settings before the first message."""
    now: int
    """The index in `chain` of the current settings."""
    turn: int
    """The index in `chain` of the settings at the beginning of the last turn."""
    turn_message: MessageId | None
    message: MessageId | None
    """The id of the last message if the next entry can be the record `SettingsChosen` of this message; otherwise
    None.
    """


class SettingsHistory:
    """The projection of the settings of one log."""

    __slots__ = ("_by_message", "_is_partial", "_message", "_root", "_turn_message", "first", "now")

    def __init__(self, root: MessageId | None = None) -> None:
        """Create an empty history. A message whose parent id is `root` begins a branch with the settings before the
        first message.
        """
        self._root = root
        self.first = self.now = SettingsChange(None, {})
        """`first` contains the settings before the first message, and `now` contains the current settings."""
        self._by_message: dict[MessageId, SettingsChange] = {}
        self._message: MessageId | None = None
        """The id of the last message while the next entry can be the record `SettingsChosen` of this message;
        otherwise None.
        """
        self._turn_message: MessageId | None = None
        """The id of the message that began the last turn; None if no message did."""
        self._is_partial = False
        """True if the projection was restored from a checkpoint, or if `forget` has removed messages. The settings
        after a message that is not in `_by_message` are then unknown. If False, `_by_message` contains every
        message.
        """

    def saved(self) -> SavedSettingsHistory:
        """Return the settings as a checkpoint stores them."""
        indices: dict[int, int] = {}
        chain: list[tuple[int, dict[str, Any], MessageId | None]] = []
        for end in (self.first, self.now, self.of_turn):
            unsaved: list[SettingsChange] = []
            change: SettingsChange | None = end
            while change is not None and id(change) not in indices:
                unsaved.append(change)
                change = change.before
            for one in reversed(unsaved):
                indices[id(one)] = len(chain)
                chain.append((-1 if one.before is None else indices[id(one.before)], one.asked, one.by))
        first, now, turn = (indices[id(end)] for end in (self.first, self.now, self.of_turn))
        return SavedSettingsHistory(tuple(chain), first, now, turn, self._turn_message, self._message)

    @classmethod
    def restored(cls, saved: SavedSettingsHistory, root: MessageId | None = None) -> SettingsHistory:
        """Create the settings from `saved`, their form in a checkpoint. `root` is the same as in `__init__`.

        Raises:
            ValueError, IndexError: the chain is invalid.
        """
        history, chain = cls(root), list[SettingsChange]()
        for before, asked, by in saved.chain:
            chain.append(SettingsChange(None if before < 0 else chain[before], asked, by))
        history.first, history.now, history._is_partial = (
            chain[saved.first],
            chain[saved.now],
            True,
        )
        if saved.turn_message is not None:
            history._turn_message = saved.turn_message
            history._by_message[saved.turn_message] = chain[saved.turn]
        history._message = saved.message
        return history

    def copy(self) -> SettingsHistory:
        """Return an independent copy."""
        history = SettingsHistory(self._root)
        history.first, history.now, history._by_message = self.first, self.now, dict(self._by_message)
        history._message, history._turn_message = self._message, self._turn_message
        history._is_partial = self._is_partial
        return history

    def knows(self, message_id: MessageId) -> bool:
        """Return whether the settings that apply after the message `message_id` are in memory. If the settings of
        all messages are in memory, the result is True for every id, even for an id that no message has.
        """
        return message_id in self._by_message or message_id == self._root or not self._is_partial

    def forget(self, message_ids: Collection[MessageId]) -> None:
        """Remove the settings that apply after the given messages from memory. The settings that apply after the
        message that began the last turn are kept. `after` raises `EarlierEntriesNeeded` for a message whose
        settings were removed.
        """
        for message_id in message_ids:
            if message_id != self._turn_message:
                self._by_message.pop(message_id, None)
        self._is_partial = self._is_partial or bool(message_ids)

    def apply(self, payload: LogPayload) -> None:
        """Update the projection of the settings with one entry of the log."""
        match payload:
            case SettingsChosen(asked=asked):
                if self._message is not None:
                    self.now = self._by_message[self._message] = SettingsChange(self.now, asked, self._message)
                else:
                    self.first = self.now = SettingsChange(None, asked)
            case UserMessage(message_id=message_id, parent_message_id=parent):
                self.now = self._by_message[message_id] = self.now if parent is UNSET else self._after(parent)
                self._message = message_id
                self._turn_message = self._turn_message or message_id
            case TurnStarted():
                self._message = self._turn_message = None
            case InputRead() | TaskStarted():
                pass
            case _:
                self._message = None

    @property
    def of_turn(self) -> SettingsChange:
        """The settings at the beginning of the running turn or, if none is running, of the last turn."""
        return self.first if self._turn_message is None else self._by_message[self._turn_message]

    def after(self, parent: MessageId | None, conversation_id: ConversationId) -> SettingsChange:
        """Return the settings that apply after the message `parent`.

        If `parent` is None, return the current settings. If `parent` is equal to `conversation_id`, return the
        settings before the first message.

        Raises:
            ParentUnknown: no message has the id `parent`.
            EarlierEntriesNeeded: the message is not in memory, but may be in the store.
        """
        if parent is None:
            return self.now
        if parent == MessageId(conversation_id):
            return self.first
        try:
            return self._by_message[parent]
        except KeyError:
            raise EarlierEntriesNeeded(parent) if self._is_partial else ParentUnknown(parent) from None

    def _after(self, parent: MessageId) -> SettingsChange:
        if not self.knows(parent):
            raise EarlierEntriesNeeded(parent)
        return self._by_message.get(parent, self.first)

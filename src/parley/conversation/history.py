"""The history of a conversation: its log as messages for a model. The form of the messages does not depend on the
model API.

The projection consists of the positions of entries. The content of the entries is held separately, so that it can
be removed from memory and loaded again.

The order of items is defined in docs/protocol.md#model-requests. The input comes first, then the items of each
response in the order of arrival. Each tool call is directly followed by its one output. Input that arrives while
the model is responding comes after the tool outputs of that response. Input stays in the history even if its turn
fails.

A message that names an earlier message as its parent begins a branch: the model sees the history at the end of the
parent's turn, and nothing later. A summary replaces the items that it summarizes, in the turn in which it was made
and in all later turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from enum import IntEnum
from itertools import accumulate, chain
from typing import Final

from msgspec import UNSET, Struct

from parley.conversation.errors import EarlierEntriesNeeded
from parley.conversation.log import LogPayload
from parley.conversation.records import (
    CallItem,
    CallOutput,
    HistoryCompacted,
    InputRead,
    InputRefused,
    ModelAsked,
    ModelItem,
    ModelSaid,
    TurnEnded,
    TurnStarted,
)
from parley.wire.events import UserMessage
from parley.wire.ids import START, CallId, MessageId, Seq
from parley.wire.items import InputItem, TextItem

__all__ = ["ABORTED", "REFUSED", "History", "HistoryItem", "HistoryPositions", "OutputItem", "UserItem"]

ABORTED: Final = "aborted"
"""The output that the model gets for an interrupted tool call."""


REFUSED: Final = "\n[Left out: an image or file that the provider refused]"
"""The text that the model gets in place of an image or file that the provider refused."""


class UserItem(Struct, frozen=True):
    """Input from the user, or a summary, as an item of the history."""

    content: tuple[InputItem, ...]


class OutputItem(Struct, frozen=True):
    """The output of a tool call, as an item of the history."""

    call_id: CallId
    output: str


HistoryItem = UserItem | ModelItem | OutputItem


class _Kind(IntEnum):
    """The kinds of items in the history."""

    TEXT = 0
    """Input from the user without attachments, or a summary."""
    WITH_ATTACHMENTS = 1
    """Input from the user with an image or a file."""
    REFUSED = 2
    """Input whose images and files are left out because the provider refused them."""
    ANSWER = 3
    """An item that the model sent in a response."""
    OUTPUT = 4
    """The output of a tool call."""


_KINDS: Final = 8
"""The factor by which the position is multiplied in a `_Ref`. The factor is greater than every value of `_Kind`, so
the position and the kind can be computed from a `_Ref`.
"""
_VALID_KINDS: Final = frozenset(_Kind)

_Ref = int
"""A reference to an item of the history: the position of its entry multiplied by `_KINDS`, plus its kind. It is a
plain integer to save memory, because a long history has hundreds of thousands of items.
"""


def _ref(seq: Seq, kind: _Kind) -> _Ref:
    return seq * _KINDS + kind


def _seq_of(ref: _Ref) -> Seq:
    return Seq(ref // _KINDS)


class HistoryPositions(Struct, frozen=True, array_like=True):
    """The positions of the history's items, as stored in a checkpoint. A checkpoint is made only when all input has
    been sent to the model and every tool call has its output.
    """

    steps: tuple[int, ...]
    """The positions of the items, in order. Each is stored as the difference from the previous position."""
    kinds: bytes
    cuts: tuple[int, ...]
    """The indices before which a summary may replace the items (`History.cuts`). Each is stored as the difference
    from the previous index.
    """


class _Turn:
    """The items of one turn, and a reference to the previous turn of the same branch. Two branches share the turns
    that come before the message where the branches separate.
    """

    __slots__ = ("before", "cuts", "places")

    def __init__(self, before: _Turn | None) -> None:
        self.before = before
        self.places: list[_Ref] = []
        """References to the items of the turn. A tool call without an output is followed by 0, a placeholder for
        the output.
        """
        self.cuts: list[int] = []
        """The indices in `places` at which every earlier tool call has its output. A summary may replace the items
        before any of these indices.
        """

    def branch(self) -> list[_Turn]:
        """Return this turn and all turns before this turn in the same branch, in order."""
        turns: list[_Turn] = []
        turn: _Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.before
        return turns[::-1]

    def merged(self) -> _Turn:
        """Return a new turn that contains the items of this turn and of all turns before this turn in the same
        branch.
        """
        merged = _Turn(None)
        for turn in self.branch():
            begin = len(merged.places)
            merged.places += turn.places
            merged.cuts += [begin + cut for cut in turn.cuts] if begin else turn.cuts
        return merged


class History:
    """The projection of the history of one conversation."""

    __slots__ = ("_is_partial", "_root", "_seq", "_texts", "_turn", "_turns", "_unanswered", "_waiting")

    def __init__(self, root: MessageId | None = None) -> None:
        """Create an empty history. A message whose parent id is `root` begins a branch without earlier messages."""
        self._root = root
        self._seq = START
        """The position of the last applied entry."""
        self._waiting: list[_Ref] = []
        self._turn = _Turn(None)
        self._turns: dict[MessageId, _Turn] = {}
        """Maps each message id to the turn that handled the message. A branch that begins at the message continues
        the history after this turn.
        """
        self._unanswered: dict[CallId, deque[int]] = {}
        """Maps the id of each tool call without an output to the indices of the missing outputs in `_Turn.places`.
        An id can have several indices, because a model may use a call id twice.
        """
        self._texts: dict[Seq, HistoryItem] = {}
        """The items whose content is in memory, by position. `missing` returns the positions of the items whose
        content is not in memory, and `supply` adds the content of such an item.
        """
        self._is_partial = False
        """True if the history was restored from a checkpoint, or if `forget` has removed messages. `apply` then
        raises `EarlierEntriesNeeded` if a branch begins at a message that is not in `_turns`. If False, `_turns`
        contains every message.
        """

    # --- checkpoints -------------------------------------------------------------------

    def copy(self) -> History:
        """Return an independent copy that has the positions of the items, but not their content. All input must
        have been sent to the model, and each tool call must have its output (`is_settled`).
        """
        history = History(self._root)
        history._seq, history._is_partial = self._seq, self._is_partial
        history._turn = self._turn.merged()
        history._turns = {
            message_id: history._turn if turn is self._turn else turn for message_id, turn in self._turns.items()
        }
        return history

    def positions(self) -> HistoryPositions:
        """Return the positions of the items as a checkpoint stores them. All input must have been sent to the
        model, and each tool call must have its output (`is_settled`).
        """
        refs, cuts = self._refs(), self.cuts
        seqs = [ref // _KINDS for ref in refs]
        return HistoryPositions(
            tuple(seq - before for before, seq in zip((START, *seqs), seqs, strict=False)),
            bytes(ref % _KINDS for ref in refs),
            tuple(cut - before for before, cut in zip((0, *cuts), cuts, strict=False)),
        )

    @classmethod
    def restored(cls, positions: HistoryPositions, last: Seq, root: MessageId | None = None) -> History:
        """Create the history from the `positions` in a checkpoint. The content of the items is not in memory.
        `last` is the position of the last applied entry. `root` is the same as in `__init__`.

        Raises:
            ValueError: `positions` is invalid.
        """
        history = cls(root)
        history._seq, history._is_partial = last, True
        if any(kind not in _VALID_KINDS for kind in set(positions.kinds)):
            raise ValueError("an item of the history has an unknown kind")
        seqs = accumulate(positions.steps)
        history._turn.places = [seq * _KINDS + kind for seq, kind in zip(seqs, positions.kinds, strict=True)]
        history._turn.cuts = list(accumulate(positions.cuts))
        return history

    def knows(self, message_id: MessageId) -> bool:
        """Return whether a branch can begin at the message `message_id` without reading earlier entries. If the
        history contains every message of the log, the result is True for every id, even for an id that no message
        has.
        """
        return message_id in self._turns or message_id == self._root or not self._is_partial

    @property
    def size(self) -> int:
        """The number of items in the history, without the input that has not been sent to the model yet. A missing
        tool output counts as an item.
        """
        return sum(len(turn.places) for turn in self._turn.branch())

    def forget(self, message_ids: Collection[MessageId]) -> None:
        """Discard the data that is needed to begin a branch at one of the given messages, to free memory.

        If a later entry begins a branch at one of these messages, `apply` raises `EarlierEntriesNeeded`.
        """
        for message_id in message_ids:
            self._turns.pop(message_id, None)
        self._is_partial = self._is_partial or bool(message_ids)
        kept = {self._turn, *self._turns.values()}
        first = self._turn
        while first.before is not None and first.before in kept:
            first = first.before
        if (earlier := first.before) is not None and earlier.before is not None:
            merged = earlier.merged()
            for turn in kept:
                if turn.before is earlier:
                    turn.before = merged

    @property
    def is_settled(self) -> bool:
        """True if all input was sent to the model and every tool call has its output."""
        return not self._waiting and not self._unanswered

    @property
    def missing(self) -> list[Seq]:
        """The positions of the items whose content is not in memory, in order. The content must be in memory before
        `items` or `waiting` is used.
        """
        wanted = {_seq_of(ref) for ref in (*self._refs(), *self._waiting)}
        return sorted(wanted - self._texts.keys())

    def supply(self, seq: Seq, payload: LogPayload) -> None:
        """Store `payload`, the content of the entry at the position `seq`, in memory. Do nothing if the model does
        not see the entry.
        """
        if (item := _item_of(payload)) is not None:
            self._texts[seq] = item

    def take_texts(self, earlier: History, last: Seq) -> None:
        """Replace the content in memory with the content that `earlier` has in memory for the entries up to the
        position `last`. `earlier` is another history of the same log.
        """
        self._texts = {seq: item for seq, item in earlier._texts.items() if seq <= last}

    def drop_texts(self, last: Seq | None = None) -> None:
        """Remove the content of the entries up to the position `last` from memory; by default, of all entries.
        `supply` can add the content again.
        """
        if last is None:
            self._texts.clear()
        elif any(seq <= last for seq in self._texts):
            self._texts = {seq: item for seq, item in self._texts.items() if seq > last}

    # --- the items for the model ---------------------------------------------------------

    @property
    def items(self) -> list[HistoryItem]:
        """The items of the history, without the input that has not been sent to the model yet. `missing` must be
        empty.
        """
        return [self._text(ref) for ref in self._refs()]

    @property
    def waiting(self) -> list[HistoryItem]:
        """The input that has not been sent to the model yet. The content of this input must be in memory: `missing`
        must not contain its positions.
        """
        return [self._text(ref) for ref in self._waiting]

    @property
    def cuts(self) -> list[int]:
        """The indices in `items` at which every earlier response is complete and every earlier tool call has its
        output.

        A summary may replace the items before any of these indices.
        """
        found: list[int] = []
        begin = 0
        for turn in self._turn.branch():
            found += [begin + cut for cut in turn.cuts] if begin else turn.cuts
            begin += len(turn.places)
        return found

    def for_request(self) -> tuple[list[HistoryItem], list[int]]:
        """Return two lists. The first list contains the items for the next model request, including unsent input.
        The second list contains the indices in the first list at which every earlier tool call has its output.
        """
        items = self.items
        return [*items, *self.waiting], [*self.cuts, len(items)]

    @property
    def open_calls(self) -> tuple[CallItem, ...]:
        """The tool calls without an output, in order. A turn cannot end before each tool call has an output."""
        calls = (self._turn.places[place - 1] for place in sorted(chain(*self._unanswered.values())))
        items = map(self._text, calls)
        return tuple(item for item in items if isinstance(item, CallItem))

    @property
    def unanswered(self) -> tuple[CallId, ...]:
        """The ids of the tool calls that have no output yet, in the order of the calls."""
        return tuple(call.call_id for call in self.open_calls)

    @property
    def ends_with_model(self) -> bool:
        """True if the next model request ends with an item that the model sent, and not with input or a tool
        output.
        """
        refs = self._waiting or self._refs()
        return bool(refs) and refs[-1] % _KINDS == _Kind.ANSWER

    @property
    def has_new_attachments(self) -> bool:
        """True if the history contains images or files to which the model has not responded yet."""
        return bool(self._new_attachments()) or any(map(_has_attachments, self.waiting))

    # --- applying entries ----------------------------------------------------------------

    def apply(self, payload: LogPayload, seq: Seq | None = None) -> None:
        """Update the projection with one entry: `payload` at the position `seq`; the default is the next position.

        Most entries do not change the history.

        Raises:
            EarlierEntriesNeeded: the entry begins a branch at a message for which `knows` returns False.
        """
        self._seq = seq = Seq(self._seq + 1) if seq is None else seq
        if (item := _item_of(payload)) is not None:
            self._texts[seq] = item
        match payload:
            case TurnStarted():
                self._turn = _Turn(self._turn)
            case UserMessage(message_id=message_id, content=content, parent_message_id=parent):
                # A branch whose parent is the conversation's own id begins with an empty history.
                if parent is not UNSET:
                    if not self.knows(parent):
                        raise EarlierEntriesNeeded(parent)
                    self._turn.before = self._turns.get(parent)
                self._turns[message_id] = self._turn
                self._waiting.append(_ref(seq, _kind_of(content)))
            case InputRead(content=content, message_id=None):
                self._waiting.append(_ref(seq, _kind_of(content)))
            case InputRead(content=content):
                self._waiting[-1] = _ref(seq, _kind_of(content))
            case ModelSaid(item=said):
                self._turn.places.append(_ref(seq, _Kind.ANSWER))
                if isinstance(said, CallItem):
                    self._unanswered.setdefault(said.call_id, deque()).append(len(self._turn.places))
                    self._turn.places.append(0)
            case CallOutput(call_id=call_id):
                self._answer(call_id, seq)
            case InputRefused():
                for turn, place, ref in self._new_attachments():
                    turn.places[place] = _ref(_seq_of(ref), _Kind.REFUSED)
            case HistoryCompacted(replaced=replaced):
                self._compact(seq, replaced)
            case ModelAsked(inputs=inputs):
                self._send_waiting(len(self._waiting) if inputs is None else inputs)
            case TurnEnded():
                self._send_waiting(len(self._waiting))
            case _:
                pass

    def _send_waiting(self, number: int) -> None:
        self._turn.cuts.append(len(self._turn.places))
        self._turn.places += self._waiting[:number]
        del self._waiting[:number]

    def _compact(self, seq: Seq, replaced: int) -> None:
        """Replace the first `replaced` items of the history with the summary in the entry at `seq`. The items of
        earlier turns stay unchanged in the branches that begin at those turns.
        """
        compacted = self._turn
        kept, cuts = self._refs()[replaced:], [cut - replaced + 1 for cut in self.cuts if cut >= replaced]
        compacted.places = [_ref(seq, _Kind.TEXT), *kept]
        compacted.cuts = cuts
        compacted.before = None

    def _answer(self, call_id: CallId, seq: Seq) -> None:
        places = self._unanswered.get(call_id)
        if not places:
            raise ValueError(f"no open call {call_id!r}")
        self._turn.places[places.popleft()] = _ref(seq, _Kind.OUTPUT)
        if not places:
            del self._unanswered[call_id]

    def _new_attachments(self) -> list[tuple[_Turn, int, _Ref]]:
        """Return the input items that contain attachments and come after the model's last response. The newest item
        is first.

        Each tuple contains the turn, the index of the item in `_Turn.places`, and the reference to the item.
        """
        found: list[tuple[_Turn, int, _Ref]] = []
        for turn in reversed(self._turn.branch()):
            for place in reversed(range(len(turn.places))):
                ref = turn.places[place]
                kind = ref % _KINDS
                if ref and kind == _Kind.ANSWER:
                    return found  # the model has responded to all earlier input
                if kind == _Kind.WITH_ATTACHMENTS:
                    found.append((turn, place, ref))
        return found

    def _refs(self) -> list[_Ref]:
        refs: list[_Ref] = []
        for turn in self._turn.branch():
            refs += turn.places
        return [ref for ref in refs if ref] if self._unanswered else refs

    def _text(self, ref: _Ref) -> HistoryItem:
        item = self._texts[_seq_of(ref)]
        return _without_attachments(item) if ref % _KINDS == _Kind.REFUSED else item


def _kind_of(content: tuple[InputItem, ...]) -> _Kind:
    return _Kind.TEXT if all(isinstance(part, TextItem) for part in content) else _Kind.WITH_ATTACHMENTS


def _item_of(payload: LogPayload) -> HistoryItem | None:
    """Return the item that the model sees for an entry with the content `payload`; None if the model does not see
    the entry.
    """
    match payload:
        case UserMessage(content=content) | InputRead(content=content):
            return UserItem(content)
        case ModelSaid(item=item):
            return item
        case CallOutput(call_id=call_id, output=output):
            return OutputItem(call_id, output)
        case HistoryCompacted(summary=summary):
            return UserItem((TextItem(text=summary),))
        case _:
            return None


def _without_attachments(item: HistoryItem) -> HistoryItem:
    """Return the item with the note `REFUSED` in place of its images and files. Text is not changed."""
    if not isinstance(item, UserItem):
        return item
    return UserItem(tuple(part if isinstance(part, TextItem) else TextItem(text=REFUSED) for part in item.content))


def _has_attachments(item: HistoryItem) -> bool:
    return isinstance(item, UserItem) and not all(isinstance(part, TextItem) for part in item.content)

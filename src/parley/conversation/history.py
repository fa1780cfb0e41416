"""The log as messages for a model: a projection, in a form that every model API can be given.

The projection consists of positions of entries. Their texts are kept beside it, and can be dropped and supplied
again.

The order of items (docs/protocol.md, history): first the input, then the items of each response in the order of
arrival, each call directly followed by its one output. Input that arrives while the model responds comes once,
after the outputs of that response. Input stays in the history even if its turn fails.

A message that names an earlier one as its parent begins a branch: the model sees the history at the end of the
parent's turn, and nothing later. A summary replaces the items that it summarizes, from the turn on in which it was
made.
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
"""Output, for the model, of a call that was interrupted."""


REFUSED: Final = "\n[Left out: an image or file that the provider refused]"
"""Text that replaces a refused image or file."""


class UserItem(Struct, frozen=True):
    """Input of the user."""

    content: tuple[InputItem, ...]


class OutputItem(Struct, frozen=True):
    """The output of a call."""

    call_id: CallId
    output: str


HistoryItem = UserItem | ModelItem | OutputItem


class _Kind(IntEnum):
    """The kind of an entry of the history."""

    TEXT = 0
    """Input of the user without attachments."""
    WITH_ATTACHMENTS = 1
    """Input of the user with an image or a file."""
    REFUSED = 2
    """Input whose images and files are left out, because the provider refused them."""
    ANSWER = 3
    """An item of the model."""
    OUTPUT = 4
    """The output of a call."""


_KINDS: Final = 8
"""A number above every kind."""
_VALID_KINDS: Final = frozenset(_Kind)

_Ref = int
"""An item of the history: the position of its entry times `_KINDS`, plus its kind. A plain number, because a long
history has hundreds of thousands."""


def _ref(seq: Seq, kind: _Kind) -> _Ref:
    return seq * _KINDS + kind


def _seq_of(ref: _Ref) -> Seq:
    return Seq(ref // _KINDS)


class HistoryPositions(Struct, frozen=True, array_like=True):
    """The history without texts, as a checkpoint stores it. No input waits and no call is open."""

    steps: tuple[int, ...]
    """The position of each item, as the difference from the item before."""
    kinds: bytes
    cuts: tuple[int, ...]
    """The cuts, each as the difference from the one before."""


class _Turn:
    """The items of one turn, and the turn that it follows. Branches share earlier turns."""

    __slots__ = ("before", "cuts", "places")

    def __init__(self, before: _Turn | None) -> None:
        self.before = before
        self.places: list[_Ref] = []
        """0 is the place of an output that is still missing, right after its call."""
        self.cuts: list[int] = []
        """Indices of `places` before which every call has its output."""

    def branch(self) -> list[_Turn]:
        """Return the turns that the model sees at its end, the first one first."""
        turns: list[_Turn] = []
        turn: _Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.before
        return turns[::-1]

    def merged(self) -> _Turn:
        """Return one turn with the items of this turn and of all turns before it."""
        merged = _Turn(None)
        for turn in self.branch():
            begin = len(merged.places)
            merged.places += turn.places
            merged.cuts += [begin + cut for cut in turn.cuts] if begin else turn.cuts
        return merged


class History:
    """The history of one conversation."""

    __slots__ = ("_is_partial", "_root", "_seq", "_texts", "_turn", "_turns", "_unanswered", "_waiting")

    def __init__(self, root: MessageId | None = None) -> None:
        """Create an empty history. `root` is the parent of a branch that begins before the first message."""
        self._root = root
        self._seq = START
        """The position of the last entry."""
        self._waiting: list[_Ref] = []
        self._turn = _Turn(None)
        self._turns: dict[MessageId, _Turn] = {}
        """The turn that took each message."""
        self._unanswered: dict[CallId, deque[int]] = {}
        """Indices in the turn's places of the outputs that are still missing. A model may use an id twice."""
        self._texts: dict[Seq, HistoryItem] = {}
        """The items by position. Those that are missing can be supplied (`missing`, `supply`)."""
        self._is_partial = False
        """True if it was restored: messages before that are unknown, and no branch can begin there."""

    # --- checkpoints -------------------------------------------------------------------

    def copy(self) -> History:
        """Return an independent copy without texts. No input may wait and no call may be open."""
        history = History(self._root)
        history._seq, history._is_partial = self._seq, self._is_partial
        history._turn = self._turn.merged()
        history._turns = {
            message_id: history._turn if turn is self._turn else turn for message_id, turn in self._turns.items()
        }
        return history

    def positions(self) -> HistoryPositions:
        """Return the history without texts, for a checkpoint. The history must be settled."""
        refs, cuts = self._refs(), self.cuts
        seqs = [ref // _KINDS for ref in refs]
        return HistoryPositions(
            tuple(seq - before for before, seq in zip((START, *seqs), seqs, strict=False)),
            bytes(ref % _KINDS for ref in refs),
            tuple(cut - before for before, cut in zip((0, *cuts), cuts, strict=False)),
        )

    @classmethod
    def restored(cls, positions: HistoryPositions, last: Seq, root: MessageId | None = None) -> History:
        """Return the history at the position `last`, without texts. Raises ValueError."""
        history = cls(root)
        history._seq, history._is_partial = last, True
        if any(kind not in _VALID_KINDS for kind in set(positions.kinds)):
            raise ValueError("an item of the history has no kind")
        seqs = accumulate(positions.steps)
        history._turn.places = [seq * _KINDS + kind for seq, kind in zip(seqs, positions.kinds, strict=True)]
        history._turn.cuts = list(accumulate(positions.cuts))
        return history

    def knows(self, message_id: MessageId) -> bool:
        """Return whether a branch can begin at a message."""
        return message_id in self._turns or message_id == self._root or not self._is_partial

    @property
    def size(self) -> int:
        """The number of items that the model sees."""
        return sum(len(turn.places) for turn in self._turn.branch())

    def forget(self, message_ids: Collection[MessageId]) -> None:
        """Forget the positions of these messages: a branch that begins there then raises `EarlierEntriesNeeded`."""
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
        """True if no input waits and every call has its output."""
        return not self._waiting and not self._unanswered

    @property
    def missing(self) -> list[Seq]:
        """Return the positions, in order, of the entries whose texts `items` and `waiting` need but that are not
        in memory.
        """
        wanted = {_seq_of(ref) for ref in (*self._refs(), *self._waiting)}
        return sorted(wanted - self._texts.keys())

    def supply(self, seq: Seq, payload: LogPayload) -> None:
        """Add the text of an entry."""
        if (item := _item_of(payload)) is not None:
            self._texts[seq] = item

    def take_texts(self, earlier: History, last: Seq) -> None:
        """Copy the texts of entries up to a position from another history of the same log."""
        self._texts = {seq: item for seq, item in earlier._texts.items() if seq <= last}

    def drop_texts(self, last: Seq | None = None) -> None:
        """Free the texts of entries up to a position, by default all. They can be supplied again."""
        if last is None:
            self._texts.clear()
        elif any(seq <= last for seq in self._texts):
            self._texts = {seq: item for seq, item in self._texts.items() if seq > last}

    # --- what the model sees -------------------------------------------------------------

    @property
    def items(self) -> list[HistoryItem]:
        """Return the items of the next request, without waiting input."""
        return [self._text(ref) for ref in self._refs()]

    @property
    def waiting(self) -> list[HistoryItem]:
        """Return the input that was not sent to the model yet."""
        return [self._text(ref) for ref in self._waiting]

    @property
    def cuts(self) -> list[int]:
        """Return the indices in `items` where a response and the outputs of its calls are complete. A summary may
        replace the items before such an index."""
        found: list[int] = []
        begin = 0
        for turn in self._turn.branch():
            found += [begin + cut for cut in turn.cuts] if begin else turn.cuts
            begin += len(turn.places)
        return found

    def for_request(self) -> tuple[list[HistoryItem], list[int]]:
        """Return the items of the next request, including waiting input, and their cuts."""
        items = self.items
        return [*items, *self.waiting], [*self.cuts, len(items)]

    @property
    def open_calls(self) -> tuple[CallItem, ...]:
        """Return the calls without an output, in order. A turn cannot end before each has one."""
        calls = (self._turn.places[place - 1] for place in sorted(chain(*self._unanswered.values())))
        items = map(self._text, calls)
        return tuple(item for item in items if isinstance(item, CallItem))

    @property
    def unanswered(self) -> tuple[CallId, ...]:
        """Return the ids of the calls without an output."""
        return tuple(call.call_id for call in self.open_calls)

    @property
    def ends_with_model(self) -> bool:
        """True if the last item of the next request is a text or reasoning of the model."""
        refs = self._waiting or self._refs()
        return bool(refs) and refs[-1] % _KINDS == _Kind.ANSWER

    @property
    def has_new_attachments(self) -> bool:
        """True if there are images or files to which the model has not responded yet."""
        return bool(self._new_attachments()) or any(map(_has_attachments, self.waiting))

    # --- the fold ------------------------------------------------------------------------

    def apply(self, payload: LogPayload, seq: Seq | None = None) -> None:
        """Apply one entry, by default at the next position. Most entries do not concern the model.

        Raises:
            EarlierEntriesNeeded: it begins a branch at a message that a restored history does not know.
        """
        self._seq = seq = Seq(self._seq + 1) if seq is None else seq
        if (item := _item_of(payload)) is not None:
            self._texts[seq] = item
        match payload:
            case TurnStarted():
                self._turn = _Turn(self._turn)
            case UserMessage(message_id=message_id, content=content, parent_message_id=parent):
                if parent is not UNSET:  # one that is no message is the conversation itself: nothing is before it
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
        """Replace items by a summary. Earlier turns stay unchanged, for branches that begin there."""
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
        """Return the input with attachments to which the model has not responded: its turn, its index in the
        turn, and the item.
        """
        found: list[tuple[_Turn, int, _Ref]] = []
        for turn in reversed(self._turn.branch()):
            for place in reversed(range(len(turn.places))):
                ref = turn.places[place]
                kind = ref % _KINDS
                if ref and kind == _Kind.ANSWER:
                    return found  # the model answered what stands before
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
    """Return the item that an entry adds to the history; None if it adds none."""
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
    """Keep the texts, and replace images and files by a note that they were refused."""
    if not isinstance(item, UserItem):
        return item
    return UserItem(tuple(part if isinstance(part, TextItem) else TextItem(text=REFUSED) for part in item.content))


def _has_attachments(item: HistoryItem) -> bool:
    return isinstance(item, UserItem) and not all(isinstance(part, TextItem) for part in item.content)
